"""The files of a sweep's runs, storage/name/trials/RUN: results, models and deliveries."""

from __future__ import annotations

import errno
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from raydp.sweep.store.json_files import read_state, write_json
from raydp.sweep.store.results import RunResult
from raydp.sweep.store.state import Delivery
from raydp.sweep.store.transfer import SharedFolder
from raydp.system.files import digest_of

DAMAGED = "the weights of its model changed after training: a file is damaged, or was replaced"
"""Reason of a run whose model is not the one that its worker saved."""


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """The runs' part of `SweepFolder`."""

    path: Path

    def trial(self, run_id: str) -> Path:
        """Return the folder of one run."""
        return self.path / "trials" / run_id

    def model(self, run_id: str) -> Path:
        """Return the folder of a run's trained model, which exists once the run is committed."""
        return self.trial(run_id) / "model"

    def remove_model(self, run_id: str) -> None:
        """Remove a run's trained model, if there is one."""
        shutil.rmtree(self.model(run_id), ignore_errors=True)

    def files(self, run_id: str) -> SharedFolder:
        """Return the files of one run, for a worker that sees this folder."""
        return SharedFolder(folder=self.trial(run_id), run_id=run_id)

    def result(self, run_id: str, *, history: bool = True) -> RunResult | None:
        """Return the committed result of a run; None before the commit.

        Args:
            run_id: the run.
            history: whether the rows of the steps are read. Without them a file is read several
                times as fast.
        """
        return read_state(
            self.trial(run_id) / "result.json",
            lambda document: RunResult.from_json(document, run_id),
            without=None if history else "history",
        )

    def is_finished(self, run_id: str) -> bool:
        """Return whether a run has finished: it did its last step and was measured."""
        result = self.result(run_id)
        return result is not None and result.finished

    def checkpointed(self) -> dict[str, int]:
        """Return run_id -> steps in the newest checkpoint, of the runs without a result."""
        files = sorted(self.path.glob("trials/*/checkpoints/step-*.safetensors"))
        # The newest checkpoint of a run comes last, and stays.
        steps = {file.parents[1].name: int(file.stem.removeprefix("step-")) for file in files}
        return {run_id: step for run_id, step in steps.items() if not self.has_ended(run_id)}

    def has_ended(self, run_id: str) -> bool:
        """Return whether a run must not run again: it has finished, or it was stopped early."""
        result = self.result(run_id, history=False)
        return result is not None and result.status != "failed"

    def commit(self, result: RunResult) -> None:
        """Commit a run's result once. A second call changes nothing.

        If the run did not fail, its attempts and checkpoints are removed.

        Raises:
            FileNotFoundError: the model of the attempt that the result names is not visible here
                whole (yet).
            ValueError: the folder of the trials is gone, or a finished result lacks its figures.
        """
        folder = self.trial(result.run_id)
        # Refuse a result that no selection could use.
        if result.finished and result.utility_loss is None:
            raise ValueError(
                f"utility_loss must be a number in the finished result of run {result.run_id!r}, "
                "got none. Train the run again with --resume."
            )
        self.require_trials()
        # A run is committed once. A later result changes nothing.
        if self.has_ended(result.run_id):
            return
        folder.mkdir(parents=True, exist_ok=True)
        attempt = result.attempt
        model = folder / str(attempt) / "model"
        # If only the final place has the model, an earlier call was killed after the rename.
        saved = model if model.is_dir() else folder / "model"
        # Check that the model is whole before it replaces anything.
        if attempt is not None and (not saved.is_dir() or is_damaged(saved, result)):
            raise FileNotFoundError(
                errno.ENOENT, "the trained model is not there as it was saved", str(model)
            )
        # First the model, then result.json, which is the commit, and cleaning up as last.
        if saved == model:
            shutil.rmtree(folder / "model", ignore_errors=True)
            model.rename(folder / "model")
        write_json(folder / "result.json", replace(result, attempt=None).to_json())
        if result.status != "failed":
            for leftover in [*folder.glob("attempt-*"), *folder.glob("checkpoints*")]:
                shutil.rmtree(leftover, ignore_errors=True)

    def fail_if_damaged(self, run_id: str) -> RunResult | None:
        """Return the result of a run, which has failed if the weights of its model have changed.

        A resume trains a failed run again.
        """
        result = self.result(run_id)
        if result is None or not result.finished or not is_damaged(self.model(run_id), result):
            return result
        failed = RunResult(run_id=run_id, status="failed", reason=DAMAGED, attempts=result.attempts)
        write_json(self.trial(run_id) / "result.json", failed.to_json())
        return failed

    def require_trials(self) -> None:
        """Check that the folder of the runs is where it was.

        Raises:
            ValueError: it was moved or removed.
        """
        trials = self.path / "trials"
        if not trials.is_dir():
            raise ValueError(
                f"SWEEP must keep its folder {str(trials)!r}, got it moved or removed. Put it "
                "back, or make an empty one to train every run again, and continue with --resume."
            )

    def delivery(self, run_id: str) -> Delivery | None:
        """Return the delivery of a run to MLflow; None before it."""
        return read_state(self.trial(run_id) / "tracked.json", Delivery.from_json)

    def set_delivery(self, run_id: str, delivery: Delivery) -> None:
        """Write that a run was delivered to MLflow."""
        write_json(self.trial(run_id) / "tracked.json", delivery.to_json())

    def deliveries(self) -> dict[str, Delivery]:
        """Return the deliveries to MLflow by run."""
        runs = sorted(path.parent.name for path in (self.path / "trials").glob("*/tracked.json"))
        return {
            run_id: delivery for run_id in runs if (delivery := self.delivery(run_id)) is not None
        }

    def remove_delivery(self, run_id: str) -> None:
        """Remove the mark of a delivery, so that the run is delivered again."""
        (self.trial(run_id) / "tracked.json").unlink()

    def model_uri(self, run_id: str) -> str | None:
        """Return the URI of a run's registered model; None if there is none."""
        delivery = self.delivery(run_id)
        return None if delivery is None else delivery.model_uri


def is_damaged(model: Path, result: RunResult) -> bool:
    """Return whether a folder's weights differ in any bit from those that the worker saved."""
    return result.weight_hash is not None and result.weight_hash != digest_of(
        model.glob("*.safetensors")
    )

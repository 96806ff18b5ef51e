"""What a sweep keeps on disk, in storage/name: the state that a resume starts from."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from raydp.io.files import write_atomically
from raydp.io.yaml import read_yaml
from raydp.spec.document import SweepSpec, load_spec
from raydp.spec.sections import PrivacySpec, SelectSpec
from raydp.sweep.store.json_files import read_json, write_json
from raydp.sweep.store.results import RunResult
from raydp.sweep.store.state import Delivery, Plan, SearchEnd
from raydp.sweep.store.summary import ReleasedModels, SweepSummary
from raydp.sweep.store.transfer import SharedFolder

S = TypeVar("S", bound=BaseModel)

MOST_NAMED = 20
"""So many sweeps are named in a message."""

BASE_RUN = "base"
"""The name, in the queue and in the folder, of the measurement of the untrained base model."""
OF_START = ("spec.yaml", "plan.json", "sweep.key", "secret_counts.json", "driver.lock")
"""Files that the start of a sweep makes in its folder, beside the empty folder trials."""
NOT_COMPARED = {"cluster", "tracking", "select", "stopping", "storage"}
"""Sections of the spec that may change between a run and its resume: they do not change what is trained."""


@dataclass(frozen=True, kw_only=True)
class SweepFolder:
    """The folder of one sweep, storage/name: every file that it holds is named and read here or beside here.

    | file                        | written by                 | read by                  | complete when           |
    | --------------------------- | -------------------------- | ------------------------ | ----------------------- |
    | sweep.key (mode 0600)       | start                      | every run's noise        | it has 32 bytes         |
    | plan.json                   | start                      | all                      | written whole           |
    | spec.yaml                   | start, last of its files   | all                      | it makes this a sweep   |
    | secret_counts.json          | start                      | points, reports          | written whole           |
    | driver.lock                 | whoever writes here        | whoever wants to write   | held by a process       |
    | trials/RUN/attempt-*/       | a worker                   | commit                   | the result names it     |
    | trials/RUN/checkpoints*/    | a worker                   | a worker that goes on    | written whole           |
    | trials/RUN/result.json      | `commit`, on the driver    | all                      | written whole, once     |
    | trials/RUN/model/           | `commit`, on the driver    | MLflow, scores, audits   | before result.json      |
    | trials/RUN/tracked.json     | the driver, after MLflow   | resume, points           | written whole           |
    | tracking.json               | the driver                 | resume                   | written whole           |
    | search.json                 | a search, at its end       | points, status, resume   | written whole           |
    | optuna.db                   | a search by Optuna         | the same                 | SQLite                  |
    | scores/LABEL/*.json         | `raydp score`              | points, reports          | written whole, each     |
    | audits.json                 | `raydp audit`              | the end of the sweep     | written whole           |
    | selected.json               | a private selection        | its release              | written whole, once     |
    | released.json               | the end of the sweep       | reports                  | written whole           |
    | points.csv, secrets.parquet | the end, `raydp points`    | people, analysis         | may be written again    |
    | report.html                 | the end of the sweep       | people                   | may be written again    |
    | summary.json                | the end of the sweep       | status, list             | written whole           |
    | ray/                        | Ray Train and Tune         | Ray                      | of no use after the end |
    """

    path: Path

    @classmethod
    def exists(cls, spec: SweepSpec) -> bool:
        """Whether the sweep was begun."""
        return (Path(spec.storage) / spec.name / "spec.yaml").is_file()

    @classmethod
    def require_new(cls, spec: SweepSpec) -> None:
        """Check that the sweep does not exist yet.

        Raises:
            ValueError: it does, or its folder holds what no killed start of a sweep left there.
        """
        if cls.exists(spec):
            raise ValueError(
                f"name must be new in storage {spec.storage!r}, got {spec.name!r}, which exists. Add --resume to go on "
                "with it, or choose another name."
            )
        path = Path(spec.storage) / spec.name
        others = sorted(found.name for found in path.iterdir() if not _is_of_start(found)) if path.is_dir() else []
        if others:
            named = ", ".join(repr(name) for name in others[:MOST_NAMED])
            raise ValueError(
                f"name must be of a folder that is new or empty in storage {spec.storage!r}, got {spec.name!r}, which "
                f"holds {named}{', ...' if len(others) > MOST_NAMED else ''}. Choose another name or storage."
            )

    @classmethod
    @contextmanager
    def running(cls, spec: SweepSpec) -> Iterator[None]:
        """Keep other drivers out of the sweep's folder for the time of the block; a kill lets them in again.

        Raises:
            ValueError: another driver runs the sweep.
        """
        path = Path(spec.storage) / spec.name
        path.mkdir(parents=True, exist_ok=True)
        with cls(path=path).locked():
            yield

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of the folder for the time of the block; a kill lets them in again.

        Raises:
            ValueError: another one writes there.
        """
        lock = FileLock(self.path / "driver.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise ValueError(
                f"name must be of a sweep that is not running, got {self.path.name!r} in storage "
                f"{str(self.path.parent)!r}, which another process runs. Wait for its end, or stop it first."
            ) from error
        try:
            yield
        finally:
            lock.release()

    @classmethod
    def create(cls, spec: SweepSpec, plan_fn: Callable[[bytes], Plan]) -> SweepFolder:
        """A new sweep's folder, with a key of its own.

        Args:
            plan_fn: key -> what the sweep runs.

        Raises:
            ValueError: there is one already.
        """
        cls.require_new(spec)
        folder = cls(path=Path(spec.storage) / spec.name)
        (folder.path / "trials").mkdir(parents=True, exist_ok=True)
        write_json(folder.path / "plan.json", plan_fn(folder._make_key(spec)).to_json())
        text = yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        write_atomically(folder.path / "spec.yaml", text.encode())
        return folder

    @classmethod
    def resume(cls, spec: SweepSpec) -> SweepFolder:
        """The folder of a sweep that was started before.

        Raises:
            ValueError: it was never started, or the spec has changed in what defines the runs.
        """
        cls.require_begun(spec)
        folder = cls.open(Path(spec.storage) / spec.name)
        before, now = folder.spec().model_dump(mode="json"), spec.model_dump(mode="json")
        changed = [k for k in now if k not in NOT_COMPARED and before[k] != now[k]]
        names = ("experiment", "registered_model")  # the store itself may move
        changed += [f"tracking.{k}" for k in names if before["tracking"][k] != now["tracking"][k]]
        if changed:
            raise ValueError(
                f"SPEC must be the one that the sweep was started with, got changes in {', '.join(changed)}. "
                "Undo them, or give the sweep a new name."
            )
        return folder

    @classmethod
    def require_begun(cls, spec: SweepSpec) -> None:
        """Check that the sweep was started.

        Raises:
            ValueError: it was not.
        """
        if not cls.exists(spec):
            raise ValueError(
                f"--resume must be of a sweep that was started, got {spec.name!r} in storage {spec.storage!r}, where "
                "there is none. Leave --resume out, or write --start-or-resume."
            )

    @classmethod
    def open(cls, path: Path) -> SweepFolder:
        """An existing sweep.

        Raises:
            ValueError: the folder does not hold one.
        """
        if not (path / "spec.yaml").is_file():
            beside = sorted(other.parent.name for other in path.parent.glob("*/spec.yaml"))[:MOST_NAMED]
            there = f"{str(path.parent)!r} has: {', '.join(beside)}" if beside else f"{str(path.parent)!r} has none"
            raise ValueError(
                f"SWEEP must be the folder of a sweep, got {str(path)!r}. It has no spec.yaml; {there}. Name one."
            )
        return cls(path=path)

    def spec(self) -> SweepSpec:
        """The spec that the sweep was started with."""
        return load_spec(self.path / "spec.yaml")

    def _section(self, name: str, cls: type[S]) -> S:
        """One section of that spec. The whole imports its plug-ins, which takes seconds."""
        try:
            return cls.model_validate(self._written()[name])
        except (ValidationError, LookupError, TypeError):
            self.spec()  # says what is wrong
            raise

    def select(self) -> SelectSpec:
        """How the sweep selects."""
        return self._section("select", SelectSpec)

    def privacy(self) -> PrivacySpec:
        """The guarantee that the sweep asks for."""
        return self._section("privacy", PrivacySpec)

    def is_private_selection(self) -> bool:
        """Whether the choice of the released model is part of its guarantee."""
        return self.privacy().selects

    def method(self) -> dict[str, Any]:
        """Return the method as the spec has it: its name and parameters."""
        return dict(self._written()["method"])

    def names(self) -> dict[str, str | None]:
        """Names in that spec: of the "sweep", its "model", "task" and "method", and its "search", None for a grid."""
        written = self._written()
        search = written["space"].get("search")
        return {
            "sweep": written["name"],
            **{section: written[section]["name"] for section in ("model", "task", "method")},
            "search": search["name"] if isinstance(search, dict) else None,
        }

    def _written(self) -> Any:
        return read_yaml(self.path / "spec.yaml", "SPEC")

    def key(self) -> bytes:
        """The sweep's secret key.

        Raises:
            ValueError: the file holds something else, or the public test key for runs that are certified.
        """
        path = self.path / "sweep.key"
        return _checked(path.read_bytes(), path, self.privacy())

    def plan(self) -> Plan:
        """What the sweep runs.

        Raises:
            ValueError: there is no plan, or another version of raydp wrote it.
        """
        document = read_json(self.path / "plan.json")
        if document is None:
            raise ValueError(
                f"SWEEP must have its plan.json, got {str(self.path)!r} without. Restore the file, or start "
                "a new sweep."
            )
        return Plan.from_json(document, self.path.name)

    def tracking_run(self) -> str | None:
        """The sweep's run in MLflow; None before it has one."""
        document = read_json(self.path / "tracking.json")
        return None if document is None else str(document["parent_run"])

    def set_tracking_run(self, run: str) -> None:
        """Write down the sweep's run in MLflow. Nothing is delivered to it yet: marks of another store go."""
        for mark in (self.path / "trials").glob("*/tracked.json"):
            mark.unlink()
        write_json(self.path / "tracking.json", {"parent_run": run})

    def delivery(self, run_id: str) -> Delivery | None:
        """What MLflow has of a run; None where it has nothing."""
        document = read_json(self.trial(run_id) / "tracked.json")
        return None if document is None else Delivery.from_json(document)

    def set_delivery(self, run_id: str, delivery: Delivery) -> None:
        """Write down that MLflow has a run."""
        write_json(self.trial(run_id) / "tracked.json", delivery.to_json())

    def model_uri(self, run_id: str) -> str | None:
        """The registered model of a run; None where there is none."""
        delivery = self.delivery(run_id)
        return None if delivery is None else delivery.model_uri

    def search_end(self) -> SearchEnd | None:
        """How the sweep's search ended; None before its end and where there is none."""
        document = read_json(self.path / "search.json")
        return None if document is None else SearchEnd.from_json(document)

    def set_search_end(self, end: SearchEnd) -> None:
        """Write down how the search ended."""
        write_json(self.path / "search.json", end.to_json())

    def decision(self) -> str | None:
        """The run that a private selection has chosen; None before it has."""
        document = read_json(self.path / "selected.json")
        return None if document is None else str(document["run_id"])

    def set_decision(self, run_id: str) -> None:
        """Write down which run a private selection has chosen."""
        write_json(self.path / "selected.json", {"run_id": run_id})

    def released(self) -> ReleasedModels | None:
        """Return the joint cost of all registered models; None before the end of the sweep."""
        document = read_json(self.path / "released.json")
        return None if document is None else ReleasedModels.from_json(document)

    def set_released(self, released: ReleasedModels) -> None:
        """Write the joint cost of all registered models."""
        write_json(self.path / "released.json", released.to_json())

    def summary(self) -> SweepSummary | None:
        """Return the summary of the sweep; None before its end, or if nothing was selected."""
        document = read_json(self.path / "summary.json")
        return None if document is None else SweepSummary.from_json(document)

    def set_summary(self, summary: SweepSummary) -> None:
        """Write the summary of the sweep."""
        write_json(self.path / "summary.json", summary.to_json())

    def secret_counts(self) -> dict[str, int]:
        """Name of a secret -> training examples that contain it; empty where the folder does not say."""
        counts: dict[str, int] = read_json(self.path / "secret_counts.json") or {}
        return counts

    def set_secret_counts(self, counts: Mapping[str, int]) -> None:
        """Write down in how many training examples each secret is: as private as the data, and nowhere but here."""
        write_json(self.path / "secret_counts.json", counts)

    def trial(self, run_id: str) -> Path:
        """The folder of one run."""
        return self.path / "trials" / run_id

    def files(self, run_id: str) -> SharedFolder:
        """The files of one run that a worker writes, where it sees this folder."""
        return SharedFolder(folder=self.trial(run_id), run_id=run_id)

    def result(self, run_id: str) -> RunResult | None:
        """The committed result of a run, None before it has one."""
        document = read_json(self.trial(run_id) / "result.json")
        return None if document is None else RunResult.from_json(document, run_id)

    def is_finished(self, run_id: str) -> bool:
        """Whether a run has a result, went to its last step and did not fail."""
        result = self.result(run_id)
        return result is not None and result.finished

    def has_ended(self, run_id: str) -> bool:
        """Whether a run is not to be run again: it has finished, or was stopped for being early_stopping."""
        result = self.result(run_id)
        return result is not None and result.status != "failed"

    def commit(self, result: RunResult) -> None:
        """Commit a run's result, once: a second call changes nothing. Unless it failed, attempts and checkpoints go.

        Raises:
            FileNotFoundError: the model of the attempt that the result names is not (yet) to be seen here.
        """
        folder = self.trial(result.run_id)
        if self.has_ended(result.run_id):
            return
        folder.mkdir(parents=True, exist_ok=True)
        attempt = result.attempt
        model = folder / str(attempt) / "model"
        if model.is_dir():  # not so where a call of before broke off after this
            shutil.rmtree(folder / "model", ignore_errors=True)
            model.rename(folder / "model")
        elif attempt is not None and not (folder / "model").is_dir():
            raise FileNotFoundError(errno.ENOENT, "the trained model is not there", str(model))
        write_json(folder / "result.json", replace(result, attempt=None).to_json())
        if result.status != "failed":
            for leftover in [*folder.glob("attempt-*"), *folder.glob("checkpoints*")]:
                shutil.rmtree(leftover, ignore_errors=True)

    def is_untouched(self) -> bool:
        """Whether no run has begun: none has a folder. The sweep's key was then used for nothing that is kept."""
        return not any((self.path / "trials").iterdir())

    def remove(self) -> None:
        """Remove what the start of a sweep made, with its key, and the folder where nothing else is in it.

        Files that the user put there stay.
        """
        shutil.rmtree(self.path / "ray", ignore_errors=True)  # no start is accepted where there is one before
        (self.path / "spec.yaml").unlink(missing_ok=True)  # first of the files: a kill in between leaves no sweep
        for found in filter(_is_of_start, list(self.path.iterdir())):
            found.rmdir() if found.is_dir() else found.unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            self.path.rmdir()

    def _make_key(self, spec: SweepSpec) -> bytes:
        """Draw the key, or take the test key, and write it where nobody else can read it."""
        from raydp.training.noise.stream import TEST_KEY, new_key  # brings torch along

        key = TEST_KEY if spec.privacy.noise_key == "test" else new_key()
        path = self.path / "sweep.key"
        _checked(key, path, spec.privacy)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(key)
        return key


def _is_of_start(path: Path) -> bool:
    """Whether a start of a sweep, killed before any run, may have left this in the sweep's folder."""
    if path.is_dir():
        return path.name == "trials" and not path.is_symlink() and not any(path.iterdir())
    return path.name in OF_START or any(path.match(f".{name}.*.part") for name in OF_START)


def _checked(key: bytes, path: Path, privacy: PrivacySpec) -> bytes:
    """The key, if it may be that of a sweep with these records: one that is public voids what they certify.

    Raises:
        ValueError: it may not.
    """
    from raydp.training.noise.stream import KEY_BYTES, TEST_KEY

    if len(key) != KEY_BYTES:
        raise ValueError(f"{str(path)!r} must have {KEY_BYTES} bytes, got {len(key)}. Restore the sweep's own key.")
    if key == TEST_KEY and privacy.noise_key != "test":
        raise ValueError(
            f"{str(path)!r} must be a secret key, got the public test key, with which no run is certified. Restore the "
            "sweep's own key, or start a new sweep."
        )
    return key

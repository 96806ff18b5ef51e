"""Hands committed results to MLflow, once each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from raydp.io.cache import cache_dir
from raydp.io.output import stderr, strict
from raydp.privacy import card_markdown, composed, guarantee
from raydp.spec.document import SweepSpec
from raydp.sweep.engine.committer import Committer, from_folder
from raydp.sweep.engine.searched import searched
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.measurements import claimed_figures
from raydp.sweep.store.state import Delivery
from raydp.tasks.base import TaskFacts
from raydp.tracking import NotDeliveredError, Pauses, Tracker, TrialRecord
from raydp.training.trial_plan import TrialPlan

PATIENCE_SECONDS = 90.0
"""How long the end of a sweep waits for a store that is away: a restart of the server takes less."""
RETRY_SECONDS = 5.0


@dataclass(kw_only=True)
class Recorder(Committer):
    """Writes the folder first, then MLflow, then a mark in the folder that MLflow has it."""

    tracker: Tracker
    parent_run: str
    _searched: dict[str, Any] = field(default_factory=dict)  # the same for every run
    _pauses: Pauses = field(default_factory=Pauses)
    _why: str = ""  # the store was away when it was last tried; empty where it was there

    @classmethod
    def open(cls, spec: SweepSpec, folder: SweepFolder, facts: TaskFacts, weight_hash: str) -> Self:
        """Open the sweep's run in MLflow, a new one or the one of before."""
        known = from_folder(spec, folder, facts, weight_hash)
        tracking = spec.tracking
        tracker = Tracker(tracking.uri, tracking.experiment, tracking.registered_model, tracking.signing_key)
        sweep_id = known["plan"].sweep_id
        told = spec.model_dump(mode="json", exclude={"tracking": {"signing_key"}})
        parent = tracker.sweep_run(sweep_id, spec.name, told, cls._told_of(facts))
        if folder.tracking_run() != parent:  # a store that knows nothing of the sweep
            folder.set_tracking_run(parent)
        tuned = searched(spec, list(known["_trials"].values()))
        return cls(tracker=tracker, parent_run=parent, _searched=tuned, **known)

    @classmethod
    def _told_of(cls, facts: TaskFacts) -> dict[str, Any]:
        """What MLflow is told of the data."""
        return asdict(facts)

    def track(self, trial: TrialPlan) -> None:
        """Hand a committed run to MLflow. Where it is away the run waits in the folder, and training goes on; when it
        is back, the next run takes those along that wait."""
        if not self._pauses.over():
            return
        waiting = self.undelivered() if self._why else [trial]
        try:
            for one in waiting:
                self.deliver(one)
        except NotDeliveredError as error:
            self._pauses.failed()
            if not self._why:
                stderr.print(f"warning: MLflow is away, runs wait in {self.folder.path}: {error}", markup=False)
            self._why = str(error)
            return
        if self._why:
            stderr.print(f"MLflow is back: {len(waiting)} runs that waited are delivered", markup=False)
        self._why = ""
        self._pauses.succeeded()

    def track_missing(self, trials: list[TrialPlan]) -> None:
        """Deliver what waits; a store that is away is waited for, as long as a restart of it takes."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while waiting := [trial for trial in trials if self._waits(trial)]:
            try:
                for trial in waiting:
                    self.deliver(trial)
            except NotDeliveredError as error:
                self._why = str(error)
                if time.monotonic() + RETRY_SECONDS > deadline:
                    return
                time.sleep(RETRY_SECONDS)

    def undelivered(self) -> list[TrialPlan]:
        """The committed runs that MLflow has not got."""
        return [trial for trial in self._trials.values() if self._waits(trial)]

    def not_delivered(self, reason: str = "") -> str:
        """What MLflow was not told, and what delivers it."""
        waiting, all_runs = len(self.undelivered()), len(self._trials)
        what = f"{waiting} of {all_runs} runs" if waiting else "all runs, but not their end and the aliases"
        had = "has not got" if waiting else "has got"
        return (
            f"MLflow {had} {what} ({reason or self._why}). Everything is in {self.folder.path}; once it is there, "
            "`raydp sweep SPEC --resume` delivers what is missing, once each, and trains nothing again"
        )

    def _waits(self, trial: TrialPlan) -> bool:
        result, delivery = self.folder.result(trial.run_id), self.folder.delivery(trial.run_id)
        return result is not None and (delivery is None or delivery.status != result["status"])

    def deliver(self, trial: TrialPlan) -> None:
        """Hand a committed run to MLflow, unless the folder says that it has it.

        Raises:
            NotDeliveredError: the store is away.
        """
        if not self._waits(trial):
            return
        result = self.folder.result(trial.run_id)
        assert result is not None, "a run that waits has a result"
        if result["status"] == "finished":
            uri = self.tracker.log_trial(self._record(trial, result))
        else:
            self.tracker.fail_trial(trial.run_id, result["reason"], self._params(trial), status=result["status"])
            uri = None
        self.folder.set_delivery(trial.run_id, Delivery(status=result["status"], model_uri=uri))

    def release(self) -> dict[str, Any] | None:
        """What all registered models cost together; written to the folder and onto every card. None without models."""
        released = [t for t in self._trials.values() if self.folder.model_uri(t.run_id) is not None]
        if not released:
            return None
        method, accountant = self.spec.method.params, self.spec.privacy.accountant
        together = {
            "models": len(released),
            "run_ids": [t.run_id for t in released],
            **cost_together(method, released, self.plan.delta, accountant),
            **self._steered(),
        }
        self.folder.set_released(strict(together))
        told = {k: v for k, v in strict(together).items() if k != "run_ids"}  # every card would grow with the sweep
        for trial in released:
            result = self.folder.result(trial.run_id)
            assert result is not None
            privacy = {**self._privacy(trial, result), "released_together": told}
            record = replace(self._record(trial, result), privacy=privacy, card=card_markdown(privacy))
            self.tracker.update_privacy(str(self.folder.model_uri(trial.run_id)), record)
        return together

    def _steered(self) -> dict[str, str]:
        """What the ε of all together does not cover where results chose what ran next (see `composed_epsilon`)."""
        search = self.spec.space.search
        if search is None or search.name == "random":
            return {}
        return {"note": "which configurations ran was chosen by utility and scores, which are not covered"}

    def _privacy(self, trial: TrialPlan, result: dict[str, Any]) -> dict[str, Any]:
        """The run's privacy record, with what was tuned, what its guarantee says and the steps that were executed."""
        event = self.spec.method.params.event(trial, trial.noise_multiplier)
        said = guarantee(event, self.spec.privacy.accountant, cache_dir=cache_dir() / "guarantee")
        return {
            **self.plan.privacy[trial.run_id],
            "searched": self._searched,
            "guarantee": strict(said),
            "ledger": result["ledger"],
        }

    def _params(self, trial: TrialPlan) -> dict[str, Any]:
        return {"batch_size": trial.batch_size, "num_steps": trial.num_steps, "learning_rate": trial.learning_rate,
                "seed": trial.seed}  # fmt: skip

    def _record(self, trial: TrialPlan, result: dict[str, Any]) -> TrialRecord:
        base, privacy = self.base(), self._privacy(trial, result)
        scores = result["scores"]
        method = self.spec.method.params.model_dump(mode="json")
        return TrialRecord(
            run_id=trial.run_id,
            **self._params(trial),
            params={
                "method": self.spec.method.name,
                "task_hash": self.facts.content_hash,
                **method,
                **({"claimed_epsilon": privacy["claimed_epsilon"]} if "claimed_epsilon" in privacy else {}),
            },
            step_metrics=result["history"],
            metrics={
                "utility_loss": result["utility_loss"],
                "score": scores[self.spec.select.score]["value"],
                **_against(base, result["utility_loss"]),
                **{f"score.{name}": m["value"] for name, m in scores.items()},
                **{f"score.{name}.std_error": m["std_error"] for name, m in scores.items()},
                **claimed_figures(result),
            },
            privacy=privacy,
            card=card_markdown(privacy),
            base={
                "name": _public_name(self.spec.model.name),
                "weight_hash": self.weight_hash,
                "dtype": self.spec.model.weight_dtype,
            },
            model_dir=self.folder.trial(trial.run_id) / "model",
            seconds=result["train_seconds"] + result["score_seconds"],
        )


def cost_together(method: Any, trials: Sequence[TrialPlan], delta: float, accountant: str) -> dict[str, Any]:
    """What the models of all these runs cost together: each run counts, also where its event equals another's."""
    return composed([method.event(trial, trial.noise_multiplier) for trial in trials], delta, accountant)


def _against(base: dict[str, Any] | None, utility_loss: float) -> dict[str, float]:
    """The untrained model's utility and the gain over it, where it could be measured."""
    if base is None:
        return {}
    return {"base_utility_loss": base["utility_loss"], "utility_gain": base["utility_loss"] - utility_loss}


def _public_name(name: str) -> str:
    """A base model's name for records: an absolute path of this machine by its last part only."""
    return Path(name).name if Path(name).is_absolute() else name

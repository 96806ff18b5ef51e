"""The state of a sweep, as its files hold it: the plan, what MLflow has, what a search left out, what was decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from raydp.privacy import PrivacyRecord
from raydp.tasks.base import TaskFacts
from raydp.training.trial_plan import TrialPlan
from search_spaces import Configuration
from search_spaces.configuration import HYPERPARAMETERS

PLAN_FORMAT = 1
"""Plans of before have no format; they are read as this one."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a sweep runs: decided at its start and never changed.

    Attributes:
        sweep_id: 16 random hex digits that name the sweep in MLflow and in an object store.
        facts: of the task.
        delta: δ of every run.
        trials: the runs, in the order in which they are begun.
        privacy: run_id -> the run's privacy record, as its card and the registry have it.
        configurations: with private selection, one run of each configuration that could have been drawn.
    """

    sweep_id: str
    facts: TaskFacts
    delta: float
    trials: tuple[TrialPlan, ...]
    privacy: Mapping[str, PrivacyRecord]
    configurations: tuple[TrialPlan, ...] = ()

    @property
    def record(self) -> PrivacyRecord:
        """The privacy record of one run, for what all runs share.

        Raises:
            ValueError: the sweep has no run.
        """
        for record in self.privacy.values():
            return record
        raise ValueError("SWEEP must hold a run, got one whose number of runs was drawn as 0. Start a new sweep.")

    def to_json(self) -> dict[str, Any]:
        """The content of plan.json."""
        return {
            "format": PLAN_FORMAT,
            "facts": asdict(self.facts),
            "delta": self.delta,
            "trials": [asdict(trial) for trial in self.trials],
            "privacy": {run_id: record.to_json() for run_id, record in self.privacy.items()},
            **({"configurations": [asdict(c) for c in self.configurations]} if self.configurations else {}),
            "sweep_id": self.sweep_id,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any], name: str) -> Plan:
        """A plan as it was written.

        Args:
            name: of the sweep, for the message.

        Raises:
            ValueError: it is of a version that this one does not know.
        """
        written = document.get("format", PLAN_FORMAT)
        try:
            if written != PLAN_FORMAT:
                raise TypeError(f"its plan has format {written}, this version reads {PLAN_FORMAT}")
            return cls(
                sweep_id=document["sweep_id"],
                facts=TaskFacts(**document["facts"]),
                delta=document["delta"],
                trials=tuple(TrialPlan(**trial) for trial in document["trials"]),
                privacy={name: PrivacyRecord.from_json(record) for name, record in document["privacy"].items()},
                configurations=tuple(TrialPlan(**c) for c in document.get("configurations", ())),
            )
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(
                f"SWEEP must be one that this version of raydp can read, got {name!r} ({error}). Use the version that "
                "wrote it, or start a new sweep."
            ) from error


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """That MLflow has a run.

    Attributes:
        status: of the run when it was delivered.
        model_uri: of its registered model; None of a run without one.
    """

    status: str
    model_uri: str | None

    def to_json(self) -> dict[str, Any]:
        """The content of tracked.json."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Delivery:
        """As it was written."""
        return cls(status=document["status"], model_uri=document["model_uri"])


@dataclass(frozen=True, kw_only=True)
class SearchEnd:
    """How a search ended.

    Attributes:
        reason: why it gave out no more configurations; None where it had given out all.
        skipped: what it did not run, each with the reason.
    """

    reason: str | None
    skipped: Mapping[Configuration, str]

    def to_json(self) -> dict[str, Any]:
        """The content of search.json."""
        rows = [{**asdict(configuration), "reason": why} for configuration, why in self.skipped.items()]
        return {"reason": self.reason, "skipped": rows}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SearchEnd:
        """As it was written."""
        names = tuple(HYPERPARAMETERS)
        rows = document["skipped"]
        skipped = {Configuration(**{name: row[name] for name in names}): row["reason"] for row in rows}
        return cls(reason=document["reason"], skipped=skipped)

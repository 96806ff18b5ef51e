"""The state of a sweep as its files hold it: plan, deliveries, ends and progress."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from raydp.analysis.statistics.results import given
from raydp.privacy.records.cautions import Caution
from raydp.privacy.records.record import PrivacyRecord
from raydp.search_spaces import Configuration
from raydp.tasks.task import TaskFacts
from raydp.training.trial_plan import TrialPlan

PLAN_FORMAT = 2
"""Format of plan.json.

Formats 1 and none, of earlier versions, have no fingerprint of the key and a record for each run.
"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The runs of a sweep. They are decided at its start and never changed; added seeds add runs.

    Attributes:
        sweep_id: 16 random hex digits that name the sweep in MLflow and in an object store.
        facts: of the task.
        delta: δ of every run.
        trials: the runs, in the order in which they are started.
        privacy: run_id -> the run's privacy record, which its card and the registry show.
        configurations: one run of each configuration that could have been drawn; empty if all runs
            are made.
        key_fingerprint: names the sweep's key, see `raydp.training.noise.stream.key_fingerprint`.
            None in a plan that an earlier version wrote, until a resume.
        warnings: what makes the guarantee, the utility or the scores say little.

    Raises:
        ValueError: a run has no privacy record, or its record has other noise than the run.
    """

    sweep_id: str
    facts: TaskFacts
    delta: float
    trials: tuple[TrialPlan, ...]
    privacy: Mapping[str, PrivacyRecord]
    configurations: tuple[TrialPlan, ...] = ()
    key_fingerprint: str | None = None
    warnings: tuple[Caution, ...] = ()

    def __post_init__(self) -> None:
        for trial in self.trials:
            record = self.privacy.get(trial.run_id)
            if record is None:
                raise ValueError(f"run {trial.run_id!r} has no privacy record")
            accounted = record.mechanism.noise_multiplier
            # The record must account for the noise that the run is trained with.
            if record.mechanism.private and accounted != trial.noise_multiplier:
                raise ValueError(
                    f"run {trial.run_id!r} has noise_multiplier {trial.noise_multiplier}, and "
                    f"{accounted} in its record"
                )

    @property
    def record(self) -> PrivacyRecord:
        """Return the privacy record of the run with the largest ε.

        It stands for all runs: its ε bounds theirs, and they share the other entries.

        Raises:
            ValueError: the sweep has no run.
        """
        if not self.privacy:
            raise ValueError(
                "SWEEP must hold a run, got one whose number of runs was drawn as 0. Start a new "
                "sweep."
            )
        return max(self.privacy.values(), key=lambda record: record.accounted.epsilon)

    def to_json(self) -> dict[str, object]:
        """Return the content of plan.json."""
        # Thousands of runs share few records: write each record once, and its place for each run.
        texts = {run_id: json.dumps(record.to_json()) for run_id, record in self.privacy.items()}
        places = {text: place for place, text in enumerate(dict.fromkeys(texts.values()))}
        return {
            "format": PLAN_FORMAT,
            "key_fingerprint": self.key_fingerprint,
            "facts": asdict(self.facts),
            "delta": self.delta,
            "trials": [trial.to_json() for trial in self.trials],
            "records": [json.loads(text) for text in places],
            "privacy": {run_id: places[text] for run_id, text in texts.items()},
            **given(
                configurations=[c.to_json() for c in self.configurations] or None,
                warnings=[caution.to_json() for caution in self.warnings] or None,
            ),
            "sweep_id": self.sweep_id,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any], name: str) -> Plan:
        """Read what `to_json` wrote.

        Args:
            document: the content of plan.json.
            name: name of the sweep, for the message.

        Raises:
            ValueError: an unknown version of raydp wrote the plan, or its runs and privacy records
                do not agree.
        """
        try:
            # Refuse a format that this version does not know, rather than misread a guarantee.
            written = document.get("format", 1)
            if written not in (1, PLAN_FORMAT):
                raise TypeError(
                    f"its plan has format {written}, this version reads 1 and {PLAN_FORMAT}"
                )
            privacy, records = document["privacy"], document.get("records")
            # Format 1 has one record for each run, and no places.
            if records is None:
                records, privacy = (
                    list(privacy.values()),
                    {run_id: place for place, run_id in enumerate(privacy)},
                )
            # A field of the facts that only an earlier version had is left out.
            known = {field.name for field in fields(TaskFacts)}
            # Read each record once, for all runs that share it.
            read = [PrivacyRecord.from_json(record) for record in records]
            trials, configurations = (
                tuple(map(TrialPlan.from_json, rows))
                for rows in (document["trials"], document.get("configurations", ()))
            )
            return cls(
                sweep_id=document["sweep_id"],
                facts=TaskFacts(**{n: v for n, v in document["facts"].items() if n in known}),
                delta=document["delta"],
                trials=trials,
                privacy={run_id: read[place] for run_id, place in privacy.items()},
                configurations=configurations,
                key_fingerprint=document.get("key_fingerprint"),
                warnings=tuple(Caution.from_json(c) for c in document.get("warnings", ())),
            )
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"SWEEP must have a plan.json that this version of raydp can read, got {name!r} "
                f"({error}). Restore the file, use the version that wrote it, or start a new sweep."
            ) from error


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The delivery of a run to MLflow.

    Attributes:
        status: status of the run when it was delivered.
        model_uri: registered model of the run; None if it has none.
    """

    status: str
    model_uri: str | None

    def to_json(self) -> dict[str, object]:
        """Return the content of tracked.json."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Delivery:
        """Read what `to_json` wrote."""
        return cls(status=document["status"], model_uri=document["model_uri"])


@dataclass(frozen=True, kw_only=True)
class SeedsEnd:
    """The end of adaptive seeds.

    Attributes:
        state: how they ended, see `raydp.analysis.seeds.allocation.NextSeed`.
        reason: why, in a sentence; None if the state says all.
        further_runs: number of runs beyond the first pass.
        cost_share: their cost, in costs of the first pass.
        left_out: the planned runs that were not needed.
        measured_again: what was measured again after the first pass, in a sentence; None if
            nothing.
    """

    state: str
    reason: str | None
    further_runs: int
    cost_share: float
    left_out: tuple[str, ...]
    measured_again: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return the content of seeds.json."""
        return {**asdict(self), "left_out": list(self.left_out)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SeedsEnd:
        """Read what `to_json` wrote."""
        return cls(**{**document, "left_out": tuple(document["left_out"])})

    def sentence(self) -> str:
        """Return how the seeds ended, in a sentence or two."""
        said = "".join(
            f" {part}" for part in (self.measured_again, self.reason) if part is not None
        )
        return (
            f"The further seeds ended as {self.state!r} after {self.further_runs} runs, which cost "
            f"{self.cost_share:.2g} times the first pass; {len(self.left_out)} planned runs were "
            f"not needed.{said}"
        )


@dataclass(frozen=True, kw_only=True)
class SearchEnd:
    """The end of a search.

    Attributes:
        reason: why the search gave out no more configurations; None if it had given out all.
        skipped: configuration that was not run -> the reason.
    """

    reason: str | None
    skipped: Mapping[Configuration, str]

    def to_json(self) -> dict[str, object]:
        """Return the content of search.json."""
        rows = [
            {**configuration.to_json(), "reason": why}
            for configuration, why in self.skipped.items()
        ]
        return {"reason": self.reason, "skipped": rows}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SearchEnd:
        """Read what `to_json` wrote."""
        skipped = {Configuration.from_json(row): row["reason"] for row in document["skipped"]}
        return cls(reason=document["reason"], skipped=skipped)


@dataclass(frozen=True, kw_only=True)
class DriverProgress:
    """How far a sweep is, while its driver runs.

    Attributes:
        sentence: the runs that are done, and the time left.
        running: run_id -> (steps done, steps in all) of each run in progress. Both are 0 before the
            first step.
        seconds_ago: the age of this, in seconds.
    """

    sentence: str
    running: Mapping[str, tuple[int, int]]
    seconds_ago: float = 0.0

    def to_json(self) -> dict[str, object]:
        """Return the content of progress.json."""
        return {
            "sentence": self.sentence,
            "running": {run_id: list(at) for run_id, at in self.running.items()},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any], *, seconds_ago: float) -> DriverProgress:
        """Read what `to_json` wrote so many seconds ago."""
        running = {run_id: (done, of) for run_id, (done, of) in document["running"].items()}
        return cls(sentence=document["sentence"], running=running, seconds_ago=seconds_ago)

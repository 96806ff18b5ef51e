"""The result of a run, as a worker hands it in and as `result.json` keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from raydp.privacy import LedgerSummary
from raydp.scores.base import Measurement

Status = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class ClaimedFigures:
    """Utility and scores of the same training with the noise of another claimed ε.

    Attributes:
        utility_loss: nats a token, as in RunResult.
        scores: name of a score -> its measurement.
    """

    claimed_epsilon: float
    utility_loss: float
    scores: Mapping[str, Measurement]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended, or what the untrained base model measures.

    Attributes:
        status: "finished" after the last step, "stopped" early at a check, or "failed".
        reason: why the run was stopped or failed.
        utility_loss: loss on held-out data (nats); None unless the run has finished.
        scores: name of a score -> its measurement.
        history: one row a step (see `raydp.training.trial.Trained`). None for the base model, which is not trained.
        ledger: executed noisy steps (see `raydp.training.ledger.Ledger.summary`).
        checks: name of a check -> the utility loss there.
        executed: of a stopped run: "num_steps", "epsilon" and the other figures of the steps that it did.
        variants: of a method that claims its ε: the figures at further claimed ε.
        resumed_from: steps that a checkpoint spared.
        attempts: how often the run was started.
        attempt: the folder that holds the trained model until the result is committed.
        train_seconds, score_seconds: wall-clock times.
        details: what else the method knows of the run. As private as the data.
        notes: sentences for the user.
    """

    run_id: str
    status: Status
    reason: str | None = None
    utility_loss: float | None = None
    scores: Mapping[str, Measurement] = field(default_factory=dict)
    history: Sequence[Mapping[str, float]] | None = None
    ledger: LedgerSummary | None = None
    checks: Mapping[str, float] = field(default_factory=dict)
    executed: Mapping[str, object] | None = None
    variants: Sequence[ClaimedFigures] = ()
    resumed_from: int | None = None
    attempts: int | None = None
    attempt: str | None = None
    train_seconds: float | None = None
    score_seconds: float | None = None
    details: Mapping[str, object] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def finished(self) -> bool:
        """Whether the run did its last step and was measured."""
        return self.status == "finished"

    @property
    def loss(self) -> float:
        """The utility loss of a run that has finished."""
        assert self.utility_loss is not None, f"run {self.run_id} has not finished"
        return self.utility_loss

    def to_json(self) -> dict[str, object]:
        """The content of result.json: what is known of the run, with measurements as documents."""
        known = {f.name: value for f in fields(self) if _is_known(value := getattr(self, f.name))}
        if self.scores:
            known["scores"] = _documents(self.scores)
        if self.variants:
            known["variants"] = [
                {
                    "claimed_epsilon": v.claimed_epsilon,
                    "utility_loss": v.utility_loss,
                    "scores": _documents(v.scores),
                }
                for v in self.variants
            ]
        return known

    @classmethod
    def from_json(cls, document: Mapping[str, Any], run_id: str) -> RunResult:
        """Read what `to_json` wrote.

        Args:
            run_id: the run's id, which old files do not repeat.
        """
        known = {name: value for name, value in document.items() if value is not None}
        variants = [
            ClaimedFigures(
                claimed_epsilon=variant["claimed_epsilon"],
                utility_loss=variant["utility_loss"],
                scores=_measurements(variant["scores"]),
            )
            for variant in known.get("variants", ())
        ]
        scores = _measurements(known.get("scores", {}))
        return cls(**{**known, "run_id": run_id, "scores": scores, "variants": tuple(variants)})


def _is_known(value: object) -> bool:
    """Whether a field says something: an empty history is known, an empty mapping is not."""
    return value is not None and not (isinstance(value, Mapping | tuple) and not value)


def _documents(scores: Mapping[str, Measurement]) -> dict[str, object]:
    return {name: measurement.document() for name, measurement in scores.items()}


def _measurements(documents: Mapping[str, Any]) -> dict[str, Measurement]:
    return {name: Measurement(**document) for name, document in documents.items()}

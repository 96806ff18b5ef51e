"""The result of a run, which a worker hands in and `result.json` keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from raydp.analysis.tables.statements import Statement
from raydp.privacy.records.parts import LedgerSummary
from raydp.scores.score import Measurement

Status = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class VariantFigures:
    """Utility and scores of the same training with the noise of another stated ε.

    Attributes:
        utility_loss: nats a token, as in RunResult.
        scores: name of a score -> its measurement.
    """

    stated: Statement
    utility_loss: float
    scores: Mapping[str, Measurement]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The end of a run, or the measurement of the untrained base model.

    Attributes:
        status: "finished" after the last step, "stopped" early at a check, or "failed".
        reason: why the run was stopped or failed.
        utility_loss: loss on held-out data (nats); None unless the run has finished.
        scores: name of a score -> its measurement.
        history: one row per step (see `raydp.training.trial.Trained`). None for the base model,
            which is not trained.
        ledger: executed noisy steps (see `raydp.training.ledger.Ledger.summary`).
        checks: name of a check -> the utility loss there.
        executed: figures of the steps that a stopped run did: "num_steps", "epsilon" and others.
        variants: figures at further ε, for a method that states its ε.
        resumed_from: number of steps that were restored from a checkpoint.
        attempts: number of times that the run was started.
        attempt: name of the folder that holds the trained model until the result is committed.
        weight_hash: SHA-256 over the safetensors files of the trained model, as its worker saved
            them. None without a model, and in files of early versions.
        train_seconds, score_seconds: wall-clock times, of training since the last resume.
        details: further figures of the method. They are as private as the data.
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
    variants: Sequence[VariantFigures] = ()
    resumed_from: int | None = None
    attempts: int | None = None
    attempt: str | None = None
    weight_hash: str | None = None
    train_seconds: float | None = None
    score_seconds: float | None = None
    details: Mapping[str, object] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def finished(self) -> bool:
        """Return whether the run did its last step and was measured."""
        return self.status == "finished"

    @property
    def loss(self) -> float:
        """Return the utility loss of a finished run."""
        assert self.utility_loss is not None, f"run {self.run_id} has not finished"
        return self.utility_loss

    def to_json(self) -> dict[str, object]:
        """Return the content of result.json: the fields that are known."""
        known = {f.name: value for f in fields(self) if _is_known(value := getattr(self, f.name))}
        if self.scores:
            known["scores"] = _documents(self.scores)
        if self.variants:
            known["variants"] = [
                {
                    v.stated.column: v.stated.epsilon,
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
            document: the content of result.json.
            run_id: the run's id, which files of early versions do not repeat.

        Raises:
            LookupError: the file is of another run.
        """
        # Null and a missing entry mean the same: the field is not known.
        known = {name: value for name, value in document.items() if value is not None}
        if (own := known.get("run_id", run_id)) != run_id:
            raise LookupError(f"it is the result of run {own}")
        loss = known.get("utility_loss")
        # Selections compare losses, so a finished run must have one.
        if not isinstance(loss, int | float) and (
            loss is not None or known["status"] == "finished"
        ):
            raise TypeError(f"utility_loss is no number but {type(loss).__name__}")
        variants = tuple(
            VariantFigures(
                stated=stated,
                utility_loss=variant["utility_loss"],
                scores=_measurements(variant["scores"]),
            )
            for variant in known.get("variants", ())
            if (stated := Statement.of(variant)) is not None
        )
        scores = _measurements(known.get("scores", {}))
        return cls(**{**known, "run_id": run_id, "scores": scores, "variants": variants})


def _is_known(value: object) -> bool:
    """Return whether a field is known: an empty history is, an empty mapping or tuple is not."""
    return value is not None and not (isinstance(value, Mapping | tuple) and not value)


def _documents(scores: Mapping[str, Measurement]) -> dict[str, object]:
    return {name: measurement.document() for name, measurement in scores.items()}


def _measurements(documents: Mapping[str, Any]) -> dict[str, Measurement]:
    return {name: Measurement(**document) for name, document in documents.items()}

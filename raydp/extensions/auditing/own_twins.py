"""Audit of a sweep's own models by the twins that its spec has planted. No model is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydp.analysis.statistics.correlations import ScorePair, score_correlations
from raydp.extensions.auditing.source import AuditSubject
from raydp.extensions.later_scores.requests import requests_of
from raydp.extensions.later_scores.sweep import score_sweep
from raydp.search_spaces.configuration import HYPERPARAMETERS
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.source import PointsSource
from raydp.system.interruption import Interrupted
from raydp.system.output import stderr

SCORE = "twin_audit"


@dataclass(frozen=True, kw_only=True)
class OwnAudit:
    """The bounds of a sweep's own models, and their correlations with the models' other scores.

    Attributes:
        audited: name of the sweep.
        folder: its folder.
        epsilon: the stated ε; None for a method without a guarantee.
        runs: for each model b, T, η, seed and `epsilon_hat`, a bound at 95 % for this model alone.
        correlations: of `epsilon_hat` with each other score and with the utility loss, over these
            models.
        interrupted: whether the audit stopped before all models had a bound.
    """

    audited: str
    folder: Path
    epsilon: float | None
    runs: tuple[dict[str, Any], ...]
    correlations: tuple[ScorePair, ...]
    interrupted: bool

    @property
    def above(self) -> int:
        """Return the number of models whose bound is above the stated ε."""
        stated = math.inf if self.epsilon is None else self.epsilon
        return sum(row["epsilon_hat"] > stated for row in self.runs)

    def document(self) -> dict[str, object]:
        """Return the document that `raydp audit --json` prints."""
        return {**vars(self), "above": self.above}


def has_own_canaries(source: AuditSubject) -> bool:
    """Return whether a sweep has begun whose spec plants twins."""
    task = source.spec.task
    planted = task.name == "planted" and bool(task.params.twins)
    return planted and source.only is None and SweepFolder.is_at(source.folder)


def audit_own(source: AuditSubject) -> OwnAudit:
    """Measure `twin_audit` for every finished model of a sweep, and correlate it.

    Models that were measured in training keep their value.

    Raises:
        ValueError: as `score_sweep`.
    """
    folder, spec, interrupted = SweepFolder.open(source.folder), source.spec, False
    # The sweep's own parameters of the score, if it has them.
    asked = next((score.as_dict() for score in spec.scores if score.name == SCORE), {"name": SCORE})
    try:
        score_sweep(folder, requests_of([asked]), console=stderr)
    except Interrupted:
        interrupted = True
    # Models without a value take no part in the correlations.
    table = PointsSource(folder=folder).points(scored=False)
    column = f"score.{SCORE}"
    measured = table[table[column].notna()] if column in table else table[:0]
    rows = measured.rename(columns={column: "epsilon_hat"}).reindex(
        columns=[*HYPERPARAMETERS, "seed", "epsilon_hat"]
    )
    pairs = score_correlations(measured)["pairs"] if len(measured) else []
    # Without a guarantee or a claim there is no ε to compare with.
    private = spec.method.params.private or spec.method.params.states
    # With a given σ the models differ in their ε, and the largest bounds them all.
    stated = spec.privacy.target_epsilon or folder.plan().record.accounted.epsilon
    return OwnAudit(
        audited=spec.name,
        folder=folder.path,
        epsilon=stated if private else None,
        runs=tuple(
            {str(name): value for name, value in row.items()} for row in rows.to_dict("records")
        ),
        correlations=tuple(pair for pair in pairs if SCORE in (pair["a"], pair["b"])),
        interrupted=interrupted,
    )

"""Correlation of empirical privacy with audits: scores against audited lower bounds on ε."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.statistics.correlations import (
    RESAMPLES,
    CorrelatedPair,
    Correlations,
    correlate,
    spearman,
)
from raydp.analysis.tables.columns import KEY, SETTINGS, with_settings
from raydp.analysis.tables.files import numbered, place_of
from raydp.analysis.tables.per_secret import score_names, score_values
from raydp.analysis.tables.points import check_column, require_hyperparameters
from raydp.search_spaces.configuration import HYPERPARAMETERS
from raydp.search_spaces.names import require_columns

Array = NDArray[np.float64]

EPSILON_HAT = "epsilon_hat"
PERMUTATIONS = 5000
_ROUNDING = 1e-9  # correlations of equal ranks can differ by rounding


class AuditCorrelation(Correlations):
    """The correlations of one score with ε̂ over configurations, with the permutation test's p."""

    configurations: int
    p: float | None


class AuditPair(CorrelatedPair, AuditCorrelation):
    """The correlations of one named score with ε̂."""


class AuditCorrelations(TypedDict):
    """The correlations of every score with ε̂."""

    configurations: int
    only_points: int
    only_audit: int
    zeros: int
    resamples: int
    permutations: int
    pairs: list[AuditPair]


def audit_correlations(
    points: pd.DataFrame, audited: pd.DataFrame, *, num_resamples: int = RESAMPLES, seed: int = 0
) -> AuditCorrelations:
    """Compute Spearman's correlation of each score, and of the utility loss, with the audited ε̂.

    Args:
        points: a points table.
        audited: columns batch_size, num_steps, learning_rate, settings (if configurations set
            further fields) and epsilon_hat (>= 0), one row per configuration.
        num_resamples, seed: settings of the bootstrap over configurations. The seed also serves the
            5,000 permutations.

    A configuration's score is its mean over seeds. The column `score` is correlated too if it
    equals none of the columns score.<name>, such as the worst case over secrets. p is two-sided,
    for the null hypothesis that scores and bounds are independent: the share of permutations of ε̂
    whose correlation is at least as far from 0. ε̂ is a lower bound; it is 0 if an audit proves
    nothing, and such configurations tie.

    Returns:
        {"configurations" (number in both tables), "only_points", "only_audit" (number in one table
        only), "zeros" (with ε̂ = 0), "resamples", "permutations", "pairs": [{"a", "b":
        "epsilon_hat", "configurations", "spearman", "p", "spearman_interval": [low, high],
        "pearson", "pearson_interval"}]}. Undefined figures are None, with a "reason".

    Raises:
        ValueError: as `require_hyperparameters`; a table of bounds that lacks columns, has values
            that are not numbers, or repeats a configuration; no configuration in common.

    Source: Hu et al. 2025, section 5.1 and App. E.1 (ε̂ against ACR: -0.13, against utility:
    -0.71).
    """
    means = _means(require_hyperparameters(points))
    bounds = _checked_bounds(audited)
    both = means.join(bounds, how="inner")
    if both.empty:
        raise ValueError(
            "audit must share a configuration (b, T, η) with the points, got none of its "
            f"{len(bounds)}. Audit the same space."
        )
    epsilon = both.pop(EPSILON_HAT).to_numpy(dtype=np.float64)
    figures = {str(name): both[name].to_numpy(dtype=np.float64) for name in both}
    pairs: list[AuditPair] = [
        {"a": name, "b": EPSILON_HAT, **_with_epsilon(figure, epsilon, num_resamples, seed)}
        for name, figure in figures.items()
    ]
    return {
        "configurations": len(both),
        "only_points": len(means) - len(both),
        "only_audit": len(bounds) - len(both),
        "zeros": int((epsilon == 0).sum()),
        "resamples": num_resamples,
        "permutations": PERMUTATIONS,
        "pairs": pairs,
    }


def _means(points: pd.DataFrame) -> pd.DataFrame:
    """Return means over seeds of the scores (NaN if no run has one) and the loss, by (T, b, η)."""
    figures = {name: score_values(points, name) for name in score_names(points)}
    if not any(np.array_equal(values, points["score"]) for values in figures.values()):
        figures = {"score": points["score"], **figures}
    figures["utility_loss"] = points["utility_loss"]
    return pd.DataFrame(figures).groupby([points[name] for name in KEY], sort=True).mean()


def _checked_bounds(audited: pd.DataFrame) -> pd.DataFrame:
    """Return the checked bounds, indexed by (T, b, η)."""
    columns = [*HYPERPARAMETERS, EPSILON_HAT]
    require_columns("audit", columns, audited.columns)
    audited = with_settings(numbered(audited))
    table = pd.DataFrame({name: check_column(audited[name]) for name in columns}).assign(
        settings=audited[SETTINGS]
    )
    # A missing hyperparameter would silently drop the row where the tables are joined.
    null = int(table[KEY].isna().any(axis=1).sum())
    if null:
        raise ValueError(
            f"audit must give batch_size, num_steps and learning_rate in every row, got {null} "
            "without. Add them."
        )
    if (table[EPSILON_HAT] < 0).any():
        place = place_of(table, int(np.argmax(table[EPSILON_HAT] < 0)))
        raise ValueError(
            f"{EPSILON_HAT} must be >= 0, got another number in {place}. Correct the row."
        )
    # A bound holds for all runs of a configuration, so a second one would contradict it.
    if table.duplicated(KEY).any():
        raise ValueError(
            "audit must have one row per configuration, got one twice. Keep the bound for all its "
            "runs."
        )
    return table.set_index(KEY)


def _with_epsilon(score: Array, epsilon: Array, num_resamples: int, seed: int) -> AuditCorrelation:
    """Correlate one score with ε̂."""
    known = np.isfinite(score)
    score, epsilon = score[known], epsilon[known]
    rng = np.random.default_rng(seed)
    correlations = correlate(
        score, epsilon, np.arange(len(score)), num_resamples, rng, of="configuration"
    )
    result: AuditCorrelation = {"configurations": len(score), **correlations, "p": None}
    if len(epsilon) and not epsilon.any():
        result["reason"] = "epsilon_hat is 0 in every configuration: the audit proves nothing there"
    if correlations["spearman"] is not None:
        # Permuting ε̂ keeps its ties, which are many where an audit proves nothing.
        permuted = spearman(score, rng.permuted(np.tile(epsilon, (PERMUTATIONS, 1)), axis=1))
        reached = np.count_nonzero(np.abs(permuted) >= abs(correlations["spearman"]) - _ROUNDING)
        # The measured order counts as one permutation, so p is never 0.
        result["p"] = (1 + reached) / (1 + PERMUTATIONS)
    return result

"""Correlations between the scores of a sweep's models."""

from __future__ import annotations

from itertools import combinations
from typing import TypedDict, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.statistics.results import Reason, because, unknown_figures
from raydp.analysis.statistics.spread import unit_of
from raydp.analysis.tables.columns import KEY
from raydp.analysis.tables.per_secret import score_names, score_values
from raydp.analysis.tables.points import require_hyperparameters

Array = NDArray[np.float64]

RESAMPLES = 2000
TAILS = (0.025, 0.975)
MIN_DEFINED = 0.9
"""The share of resamples in which a correlation must be defined: no figure may be constant."""


class Correlations(Reason):
    """Both correlations of two figures."""

    spearman: float | None
    spearman_interval: list[float] | None
    pearson: float | None
    pearson_interval: list[float] | None


class CorrelatedPair(Correlations):
    """Both correlations of two named figures."""

    a: str
    b: str


class ScorePair(CorrelatedPair):
    """The correlations of two figures over models."""

    models: int


class ScoreCorrelations(TypedDict):
    """The correlations of every two figures over models."""

    models: int
    configurations: int
    resamples: int
    pairs: list[ScorePair]


def score_correlations(
    points: pd.DataFrame, *, num_resamples: int = RESAMPLES, seed: int = 0
) -> ScoreCorrelations:
    """Compute both correlations of every two scores, and of each score with the utility loss.

    Args:
        points: a points table with columns score.<name>; one row is one model.
        num_resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.

    The 95 % intervals are percentiles of a bootstrap over configurations. A configuration is drawn
    with all its seeds, because models of one configuration are not independent.

    Returns:
        {"models", "configurations", "resamples", "pairs": [{"a", "b", "models" (number that have
        both figures), "spearman", "spearman_interval": [low, high], "pearson",
        "pearson_interval"}]}. Undefined figures are None, with a "reason".

    Raises:
        ValueError: as `require_hyperparameters`, or the table has no column score.<name>.

    Source: Hu et al. 2025, section 5.1 (Spearman); Efron and Tibshirani 1993 (percentile bootstrap
    of clusters).
    """
    points = require_hyperparameters(points)
    names = score_names(points)
    if not names:
        raise ValueError(
            "points must have a column score.<name>, got none. Use a sweep's own table."
        )
    figures = {name: score_values(points, name).to_numpy() for name in names}
    figures["utility_loss"] = points["utility_loss"].to_numpy(dtype=np.float64)
    groups = points.groupby(KEY, sort=True).ngroup().to_numpy()
    pairs: list[ScorePair] = []
    for a, b in combinations(figures, 2):
        both = np.isfinite(figures[a]) & np.isfinite(figures[b])
        # Every pair sees the same resamples, so that intervals can be compared.
        seeded = np.random.default_rng(seed)
        correlations = correlate(
            figures[a][both], figures[b][both], groups[both], num_resamples, seeded
        )
        pairs.append({"a": a, "b": b, "models": int(both.sum()), **correlations})
    return {
        "models": len(points),
        "configurations": int(groups.max()) + 1,
        "resamples": num_resamples,
        "pairs": pairs,
    }


def correlate(
    one: Array,
    other: Array,
    groups: NDArray[np.int64],
    num_resamples: int,
    rng: np.random.Generator,
    *,
    of: str = "model",
) -> Correlations:
    """Compute both correlations of two figures of n models, with intervals over groups of models.

    Args:
        one, other: [n] finite values.
        groups: [n] group of each model. The models of a group are drawn together.
        num_resamples, rng: number of bootstrap resamples, and their generator.
        of: the word for a model in the reasons.
    """
    if len(one) < 3:
        return _undefined(f"fewer than 3 {of}s have both")
    if min(np.ptp(one), np.ptp(other)) == 0:
        return _undefined(f"one of the two is the same in every {of}")
    _, of_group = np.unique(groups, return_inverse=True)
    # A correlation has no unit: choose one in which squares neither vanish nor overflow.
    one, other = one / unit_of(one), other / unit_of(other)
    weights = resampled(rng, num_resamples, int(of_group.max()) + 1)[:, of_group]
    everything = np.ones((1, len(one)))
    of_ranks, of_values = (
        _interval(_correlation(one, other, weights, ranked)) for ranked in (True, False)
    )
    few = "too few configurations differ for an interval"
    return {
        "spearman": float(_correlation(one, other, everything, ranked=True)[0]),
        "spearman_interval": of_ranks,
        **because(few if of_ranks is None else None),
        "pearson": float(_correlation(one, other, everything, ranked=False)[0]),
        "pearson_interval": of_values,
        **because(few if of_values is None else None),
    }


def resampled(rng: np.random.Generator, num_resamples: int, size: int) -> Array:
    """Return how often each item occurs in draws with replacement, [num_resamples, size]."""
    return rng.multinomial(size, np.full(size, 1 / size), num_resamples).astype(np.float64)


def _undefined(reason: str) -> Correlations:
    """Return undefined correlations."""
    return {**cast("Correlations", unknown_figures(Correlations)), "reason": reason}


def _interval(draws: Array) -> list[float] | None:
    """Return percentiles of a correlation in resamples, None if too few define it."""
    defined = draws[np.isfinite(draws)]
    if len(defined) < MIN_DEFINED * len(draws):
        return None
    return [float(q) for q in np.quantile(defined, TAILS)]


def spearman(one: Array, others: Array) -> Array:
    """Return the rank correlations of values, [n], with rows that vary, [B, n]: shape [B]."""
    middle = (len(one) + 1) / 2
    a = pd.Series(one).rank().to_numpy() - middle
    b = pd.DataFrame(others).rank(axis=1).to_numpy() - middle
    correlations: Array = b @ a / np.sqrt((a @ a) * (b * b).sum(axis=1))
    return correlations


def _correlation(one: Array, other: Array, weights: Array, ranked: bool) -> Array:
    """Return correlations, [B], with value i weights[b, i] times; NaN if a figure is constant."""
    a, b = (
        _ranks(values, weights) if ranked else np.tile(values, (len(weights), 1))
        for values in (one, other)
    )
    total = weights.sum(axis=1, keepdims=True)
    a, b = (values - (weights * values).sum(axis=1, keepdims=True) / total for values in (a, b))
    covariance, spread = (
        (weights * a * b).sum(axis=1),
        [(weights * v * v).sum(axis=1) for v in (a, b)],
    )
    scale = np.sqrt(spread[0] * spread[1])
    # So small a spread is the rounding of a constant figure.
    smallest = 1e-12 * np.sqrt(np.prod([(v * v).max(axis=1) * total[:, 0] for v in (a, b)], axis=0))
    correlations: Array = np.divide(
        covariance, scale, out=np.full(len(weights), np.nan), where=scale > smallest
    )
    return correlations


def _ranks(values: Array, weights: Array) -> Array:
    """Return the average ranks, [B, n], if value i occurs weights[b, i] times."""
    _, level = np.unique(values, return_inverse=True)
    at_level = np.zeros((len(weights), int(level.max()) + 1))
    np.add.at(at_level.T, level, weights.T)
    # Average ranks: all values of lower levels, and half of the level's own.
    ranks: Array = (at_level.cumsum(axis=1) - at_level + (at_level + 1) / 2)[:, level]
    return ranks

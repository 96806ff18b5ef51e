"""Intervals of scores: mean, worst case and quantiles, bootstrapped over secrets and seeds."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.statistics.correlations import RESAMPLES, TAILS, resampled
from raydp.analysis.statistics.results import Reason, because
from raydp.analysis.statistics.spread import std
from raydp.analysis.tables.columns import KEY
from raydp.analysis.tables.per_secret import PREFIX, as_array, by_secret, score_names, score_values
from raydp.analysis.tables.points import configurations, require_hyperparameters
from raydp.search_spaces.configuration import Hyperparameters

QUANTILES = (0.5, 0.9)

Array = NDArray[np.float64]


class ConfigurationFigures(Reason):
    """The figures of one score of one configuration."""

    num_seeds: int
    num_secrets: int | None
    mean: float
    interval: list[float] | None
    levels: list[str]
    max: float | None
    max_interval: list[float] | None
    quantiles: dict[str, float | None]


class ConfigurationScore(Hyperparameters, ConfigurationFigures):
    """One score of one configuration."""


class ScoreFigures(Reason):
    """One score of every configuration."""

    configurations: list[ConfigurationScore]
    score_std: float | None
    worst_case_std: float | None


class ScoreIntervals(TypedDict):
    """Every score of every configuration."""

    resamples: int
    scores: dict[str, ScoreFigures]


def score_intervals(
    points: pd.DataFrame, secrets: pd.DataFrame, *, num_resamples: int = RESAMPLES, seed: int = 0
) -> ScoreIntervals:
    """Compute every score of every configuration, over its secrets and seeds, with 95 % intervals.

    Args:
        points: a points table with run_id and the columns score.<name>.
        secrets: the sweep's secrets.parquet.
        num_resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.

    The bootstrap has two levels. The seeds of the configuration are drawn with replacement, and so
    are the secrets. The same secrets are drawn for all seeds and configurations, because all models
    are measured on the same secrets. The interval consists of percentiles. With two or three seeds,
    the interval is too narrow over seeds. With one seed, it is over secrets alone (`levels` tells).
    The worst case has an interval over seeds alone: the maximum of a resample never exceeds the
    maximum of the sample, so resampling tells nothing about worse secrets that were not measured.

    Returns:
        {"resamples", "scores": {name: {"configurations": [{"batch_size", "num_steps",
        "learning_rate", "num_seeds", "num_secrets", "mean", "interval": [low, high] or None,
        "levels": ["seeds", "secrets"], "max", "max_interval", "quantiles": {"0.5", "0.9"}}],
        "score_std" (over configurations, of means), "worst_case_std" (of maxima)}}}. max and
        quantiles are computed over secrets in one model, then averaged over seeds. They are None
        for a score without values by secret.

    Raises:
        ValueError: as `require_hyperparameters`, or no score has a column.

    Source: Hu et al. 2025, App. F (worst case); Owen 2007 (the pigeonhole bootstrap) for crossed
    levels.
    """
    # Sorted, so that the draws do not depend on the order of the rows.
    points = require_hyperparameters(points).sort_values([*KEY, "seed"], ignore_index=True)
    names = score_names(points)
    if not names:
        raise ValueError(
            "points must have a column score.<name>, got none. Use a sweep's own table."
        )
    known = set(secrets["score"])
    scores = {}
    for name in names:
        measured = points[points[PREFIX + name].notna()]
        values = as_array(by_secret(measured, secrets, name)[0]) if name in known else None
        if len(measured):
            scores[name] = _of_score(
                measured, score_values(measured, name), values, num_resamples, seed
            )
    return {"resamples": num_resamples, "scores": scores}


def _of_score(
    points: pd.DataFrame, score: pd.Series, values: Array | None, num_resamples: int, seed: int
) -> ScoreFigures:
    rng = np.random.default_rng(seed)
    table = values if values is not None else score.to_numpy(dtype=np.float64)[:, None]
    # One set of draws serves all configurations: all are measured on the same secrets.
    drawn = resampled(rng, num_resamples, table.shape[1])
    rows: list[ConfigurationScore] = []
    keys = list(points[KEY].itertuples(index=False, name=None))
    for key in dict.fromkeys(keys):
        chosen = np.array([k == key for k in keys])
        (own,) = configurations(points[chosen].iloc[:1])
        rows.append(
            {**own.to_json(), **_of_configuration(table[chosen], values is not None, drawn, rng)}
        )
    reasons = [
        *(["a spread needs at least 2 configurations"] if len(rows) < 2 else []),
        *(["the score has no values by secret"] if values is None else []),
    ]
    return {
        "configurations": rows,
        "score_std": _std([row["mean"] for row in rows]),
        "worst_case_std": _std([row["max"] for row in rows if row["max"] is not None]),
        **because(*reasons[:1]),
    }


def _of_configuration(
    table: Array, has_secrets: bool, drawn: Array, rng: np.random.Generator
) -> ConfigurationFigures:
    """Return the figures of [seed, secret] values, with one column if there are no secrets."""
    num_seeds, num_secrets = table.shape
    seeds = resampled(rng, len(drawn), num_seeds)
    levels = [name for name, size in (("seeds", num_seeds), ("secrets", num_secrets)) if size > 1]
    # Pigeonhole bootstrap (Owen 2007): weights of seeds times weights of secrets.
    means = np.einsum("bs,sk,bk->b", seeds, table, drawn) / table.size
    maxima = table.max(axis=1)
    # No resample of secrets exceeds the sample's maximum, so only seeds tell of its error.
    of_maxima = seeds @ maxima / num_seeds
    reasons = [
        *([] if has_secrets else ["the score has no values by secret"]),
        *([] if num_seeds > 1 else ["an interval over seeds needs two"]),
    ]
    return {
        "num_seeds": num_seeds,
        "num_secrets": num_secrets if has_secrets else None,
        "mean": float(table.mean()),
        "interval": np.quantile(means, TAILS).tolist() if levels else None,
        "levels": levels,
        "max": float(maxima.mean()) if has_secrets else None,
        "max_interval": np.quantile(of_maxima, TAILS).tolist()
        if has_secrets and num_seeds > 1
        else None,
        "quantiles": {
            f"{q:g}": float(np.quantile(table, q, axis=1).mean()) if has_secrets else None
            for q in QUANTILES
        },
        **because(*reasons),
    }


def _std(values: list[float]) -> float | None:
    return std(np.array(values)) if len(values) > 1 else None

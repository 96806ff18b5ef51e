"""Empirical privacy variance on subsets of the secrets (Hu et al. 2025, Figures 3 and 17)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import pandas as pd

from raydp.analysis.statistics.results import Reason, because
from raydp.analysis.statistics.variance import score_variance
from raydp.analysis.tables.per_secret import by_secret
from raydp.analysis.tables.points import require_hyperparameters

FEW_COUNTS = 3
"""Up to this number of distinct counts, each is a subset. More are split into terciles."""


class Subset(Reason):
    """One score on one subset of the secrets. `secret_subsets` documents the keys."""

    subset: str
    secrets: int
    counts: list[int] | None
    mean: float
    score_std: float | None
    seed_std: float | None


class Subsets(TypedDict):
    """One score on every subset of the secrets."""

    score: str
    subsets: list[Subset]


def secret_subsets(
    points: pd.DataFrame,
    secrets: pd.DataFrame,
    *,
    score: str,
    given: Sequence[str] | None = None,
    num_random: int = 3,
    seed: int = 0,
) -> Subsets:
    """Compute one score on subsets of its secrets, to see whether its spread depends on them.

    Args:
        points: a points table with run_id.
        secrets: the content of the sweep's secrets.parquet.
        score: name of the score.
        given: names of secrets that form a subset of their own.
        num_random: number of random halves of the secrets, without replacement, as in the paper.
        seed: seed of the halves.

    Returns:
        {"score", "subsets": [{"subset": "all" | "given" | "half 0" | "count 20" | "count low", ...,
        "secrets" (number of secrets), "counts": [least, most] training examples that contain a
        secret (None if the table does not tell), "mean" (over all models), "score_std" (over
        configurations, the empirical privacy variance), "seed_std"}]}. Counts are as private as the
        data.

    Raises:
        ValueError: as `require_hyperparameters` and `by_secret`, a model without values, or an
            unknown secret.
    """
    points = require_hyperparameters(points)
    values, counts, subsets = subsets_of(points, secrets, score, given, num_random, seed)
    return {
        "score": score,
        "subsets": [_figures(points, values, counts, *entry) for entry in subsets.items()],
    }


def subsets_of(
    points: pd.DataFrame,
    secrets: pd.DataFrame,
    score: str,
    given: Sequence[str] | None,
    num_random: int,
    seed: int,
) -> tuple[pd.DataFrame, pd.Series, dict[str, list[str]]]:
    """Return [model, secret] values, counts, and each subset's secrets; see `secret_subsets`."""
    values, counts = by_secret(points, secrets, score)
    # A missing value would compare subsets over different models.
    if values.isna().to_numpy().any():
        raise ValueError(
            f"score {score!r} must be measured for every finished row and secret, got rows "
            "without. Run `raydp score` for it again."
        )
    names = list(map(str, values.columns))
    for name in given or ():
        if name not in names:
            raise ValueError(
                f"--secrets must name secrets of the sweep, got {name!r}. It has {len(names)}, "
                "named as secret-001."
            )
    # The subsets: all secrets, the given ones, random halves, and secrets of similar counts.
    subsets: dict[str, list[str]] = {"all": names}
    if given:
        subsets["given"] = list(given)
    rng = np.random.default_rng(seed)
    for number in range(num_random if len(names) > 1 else 0):
        subsets[f"half {number}"] = sorted(
            rng.choice(names, len(names) // 2, replace=False).tolist()
        )
    return values, counts, subsets | _by_count(counts)


def _by_count(counts: pd.Series) -> dict[str, list[str]]:
    """Group secrets by count, or by tercile of many counts. Equal counts stay together."""
    if counts.isna().any() or counts.nunique() < 2:
        return {}
    numbers = counts.astype("int64")
    if numbers.nunique() <= FEW_COUNTS:
        return {
            f"count {count}": list(map(str, part.index)) for count, part in numbers.groupby(numbers)
        }
    # Terciles over the secrets, cut between two counts.
    low, high = np.quantile(numbers, [1 / 3, 2 / 3])
    parts = {
        "count low": numbers <= low,
        "count middle": (numbers > low) & (numbers <= high),
        "count high": numbers > high,
    }
    return {
        name: list(map(str, numbers.index[chosen]))
        for name, chosen in parts.items()
        if chosen.any()
    }


def _figures(
    points: pd.DataFrame, values: pd.DataFrame, counts: pd.Series, name: str, chosen: list[str]
) -> Subset:
    """Compute the score on the subset `name`, as the mean of the secrets `chosen`."""
    means = values[chosen].mean(axis=1)
    variance = score_variance(points.assign(score=means))
    known = counts[chosen].dropna()
    reasons = [] if len(known) else ["the table does not say how often a secret occurs"]
    if None in (variance["score_std"], variance["seed_std"]):
        reasons.append(variance["reason"])
    return {
        "subset": name,
        "secrets": len(chosen),
        "counts": [int(known.min()), int(known.max())] if len(known) else None,
        "mean": float(means.mean()),
        "score_std": variance["score_std"],
        "seed_std": variance["seed_std"],
        **because(*reasons),
    }

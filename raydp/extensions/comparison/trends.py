"""Empirical privacy variance across groups, such as ε, model or data (Hu et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import NotRequired, TypedDict

import numpy as np
import pandas as pd

from raydp.analysis.statistics.results import Reason, because, holm
from raydp.analysis.statistics.spread import (
    Array,
    log_std,
    log_std_pseudovalues,
    std_interval,
    t_quantile,
)
from raydp.analysis.tables.columns import KEY
from raydp.analysis.tables.old_names import reads_old_name
from raydp.analysis.tables.points import configuration_means
from raydp.analysis.tables.utility_filter import useful_points


class Group(Reason):
    """Level and spread of the mean scores in one group."""

    group: str
    configurations: int
    mean: float
    score_std: float | None
    interval: list[float] | None
    score_min: float
    score_max: float


class Ratio(Reason):
    """The ratio of two standard deviations.

    Attributes:
        p_holm: p after Holm's correction, if the ratio is one of several.
    """

    ratio: float | None
    interval: list[float] | None
    p: float | None
    p_holm: NotRequired[float]


class GroupRatio(Ratio):
    """The spread of group b over the one of group a."""

    a: str
    b: str
    paired: bool


class Trends(TypedDict):
    """Every group, and every two groups compared."""

    groups: list[Group]
    comparisons: list[GroupRatio]


@reads_old_name
def variance_trends(
    groups: Mapping[str, pd.DataFrame],
    *,
    min_gain_share: float | None = None,
    max_loss: float | None = None,
    values: bool = False,
) -> Trends:
    """Return level and spread of the mean scores in each group, and compare the groups.

    Args:
        groups: name -> points table, in the order in which a trend is expected.
        values: whether the names are values of a column. A message shows such a name only if it is
            a number.
        min_gain_share, max_loss: which configurations of each group count (Hu et al. keep 90 % of
            the best gain).

    Returns:
        "groups": [{"group", "configurations", "mean", "score_std", "interval", "score_min",
        "score_max"}], and "comparisons" of every two: {"a", "b", "paired", "ratio" (std of b over
        std of a), "interval", "p", "p_holm"}. Groups with the same configurations are compared in
        pairs, which is more precise. Undefined figures are None with a "reason".

    Raises:
        ValueError: fewer than two groups, or a group that `useful_points` refuses. The message
            names the group.

    Source: Hu et al. 2025, Fig. 2, 3 and 14 to 18.
    """
    if len(groups) < 2:
        raise ValueError(
            f"groups must be at least 2, got {len(groups)}. Give more sweeps, or another column."
        )
    means = {}
    for position, (name, points) in enumerate(groups.items(), start=1):
        try:
            means[name] = configuration_means(
                useful_points(points, min_gain_share=min_gain_share, max_loss=max_loss)
            )
        except ValueError as error:
            raise ValueError(
                f"group {_shown(name, position) if values else repr(name)}: {error}"
            ) from error
    comparisons = [_comparison(a, b, means[a], means[b]) for a, b in combinations(means, 2)]
    # Every two groups are tested, so p is corrected for all these tests.
    for row, adjusted in zip(comparisons, holm([row["p"] for row in comparisons]), strict=True):
        if adjusted is not None:
            row["p_holm"] = adjusted
    return {
        "groups": [_group(name, table) for name, table in means.items()],
        "comparisons": comparisons,
    }


def _shown(name: str, position: int) -> str:
    """Return a group's name for a message: a number, else its position in the order."""
    # A text may come from private data, so it is not printed.
    try:
        float(name)
    except ValueError:
        return f"{position} in their order"
    return repr(name)


def _group(name: str, means: pd.DataFrame) -> Group:
    score = means["score"]
    interval = std_interval(score.to_numpy())
    return {
        "group": name,
        "configurations": len(means),
        "mean": float(score.mean()),
        "score_std": float(score.std(ddof=1)) if len(means) > 1 else None,
        "interval": interval,
        "score_min": float(score.min()),
        "score_max": float(score.max()),
        **because(
            None if interval else "an interval needs at least 4 configurations, whose scores differ"
        ),
    }


def _comparison(a: str, b: str, first: pd.DataFrame, second: pd.DataFrame) -> GroupRatio:
    one, other = (table["score"].to_numpy(dtype=float) for table in (first, second))
    # Pairs need the same configurations in the same order.
    paired = first[KEY].equals(second[KEY])
    return {"a": a, "b": b, "paired": paired, **std_ratio(one, other, paired=paired)}


def std_ratio(one: Array, other: Array, *, paired: bool) -> Ratio:
    """Return the ratio of `other`'s standard deviation to `one`'s, with a 95 % interval and p.

    The p-value is for the hypothesis that both standard deviations are equal.

    Args:
        one, other: [n], [m] values.
        paired: whether values at the same position belong to one configuration, so that they are
            correlated; n = m.

    Returns:
        {"ratio", "interval", "p"}. Undefined figures are None, with a "reason".

    Source: Miller 1968; Welch 1947 for independent samples.
    """
    from scipy.special import stdtr

    first, second = log_std_pseudovalues(one), log_std_pseudovalues(other)
    if first is None or second is None:
        reason = "a group has fewer than 4 configurations, or too few whose scores differ"
        return {"ratio": None, "interval": None, "p": None, "reason": reason}
    centre = log_std(other) - log_std(one)
    if paired:
        # Pairs are correlated, so the error is the error of their pseudovalues' difference.
        error = float((second - first).std(ddof=1) / np.sqrt(len(first)))
        degrees = len(first) - 1.0
    else:
        # Welch 1947: independent samples of unequal variances.
        parts = [p.var(ddof=1) / len(p) for p in (first, second)]
        error = float(np.sqrt(sum(parts)))
        degrees = sum(parts) ** 2 / sum(
            v**2 / (len(p) - 1) for v, p in zip(parts, (first, second), strict=True)
        )
    margin = float(t_quantile(degrees, 0.975)) * error
    # Without an error, only equal standard deviations agree.
    p = float(2 * stdtr(degrees, -abs(centre) / error)) if error > 0 else float(centre == 0)
    interval = [float(np.exp(centre - margin)), float(np.exp(centre + margin))]
    return {"ratio": float(np.exp(centre)), "interval": interval, "p": p}

"""Comparison of several methods on the same configurations (Zagardo 2024, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TypedDict, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.statistics.results import because, holm, unknown_figures
from raydp.analysis.statistics.spread import unit_of
from raydp.analysis.tables.columns import KEY, SETTINGS
from raydp.analysis.tables.per_secret import PREFIX, score_names, score_values
from raydp.analysis.tables.points import column_means, configuration_means, require_hyperparameters
from raydp.extensions.comparison.agreement import ROUNDING, Agreement, agreement
from raydp.search_spaces.settings import Settings

Array = NDArray[np.float64]

CONFIDENCE = 0.95
LARGEST = 1e150
"""The largest value that is squared."""
LARGEST_LOG = 345.0
"""The largest loss whose perplexity is computed. The perplexity stays below `LARGEST`."""


class Paired(Agreement):
    """The statistics of the pairs of two methods' values."""

    mean_difference: float | None
    interval: list[float] | None
    t: float | None
    p: float | None
    p_holm: float | None
    wilcoxon: float | None
    wilcoxon_p: float | None
    rmse: float | None
    pearson: float | None
    pearson_interval: list[float] | None


_UNTESTED = cast("Paired", unknown_figures(Paired))


class Comparison(Paired):
    """Two methods, compared by one figure."""

    a: str
    b: str
    figure: str
    configurations: int


class Comparisons(TypedDict):
    """Every two methods, compared by every figure that both have."""

    comparisons: list[Comparison]


def compare_methods(
    methods: Mapping[str, pd.DataFrame], *, with_perplexity: bool = True
) -> Comparisons:
    """Compare every two methods by every figure that both have, paired by configuration.

    Args:
        methods: name -> points table; a configuration's value is the mean over its seeds.
        with_perplexity: whether the losses are mean negative log-likelihoods, so that a perplexity
            exists. An error rate has no perplexity.

    Returns:
        "comparisons": [{"a", "b", "figure", "configurations" (number in both), "mean_difference" (a
        minus b), "interval" (95 %, Student), "t", "p", "p_holm" (over all rows), "wilcoxon"
        (smaller of the two rank sums), "wilcoxon_p", "rmse" (root of the mean squared difference),
        "pearson", "pearson_interval" (95 %, Fisher), and the keys of `Agreement`}]. The figures are
        utility_loss, perplexity (its exponential), each score.<name>, and score if it equals none
        of them. Undefined figures are None with a "reason".

    The configurations of one grid are not a sample of a population, and their errors share data and
    secrets. So the tests tell whether two methods differ on this grid, not on other grids. Finding
    no difference does not prove that there is none.

    Raises:
        ValueError: fewer than two methods, two without a configuration in common, or a table that
            `configuration_means` refuses. The message names the method.

    Source: Zagardo 2024, sections 4.3 and 4.4 (which compares runs of several batch sizes as if
        they were one sample; here only the same configuration is compared).
    """
    if len(methods) < 2:
        raise ValueError(f"methods must be at least two, got {len(methods)}. Name another sweep.")
    figures = {name: _figures(name, table, with_perplexity) for name, table in methods.items()}
    rows: list[Comparison] = []
    for (a, one), (b, other) in combinations(figures.items(), 2):
        both = one.add_suffix(" a").join(other.add_suffix(" b"), how="inner")
        if not len(both):
            raise ValueError(
                f"{b} must share a configuration with {a}, got none. Run both with one space."
            )
        # A figure that only one method has cannot be compared.
        for figure in [f for f in one if f in other and not _is_repeated(f, one, other)]:
            sides = [both[f"{figure} {side}"].to_numpy(dtype=np.float64) for side in "ab"]
            known = np.isfinite(sides[0]) & np.isfinite(sides[1])
            statistics = _paired(sides[0][known], sides[1][known])
            rows.append(
                {
                    "a": a,
                    "b": b,
                    "figure": str(figure),
                    "configurations": int(known.sum()),
                    **statistics,
                }
            )
    # Holm over all rows, because a reader looks at all of them.
    for row, adjusted in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = adjusted
    return {"comparisons": rows}


def without_axis(groups: Mapping[str, pd.DataFrame], axis: str) -> dict[str, pd.DataFrame]:
    """Leave an axis out of the settings, so that configurations that differ in it alone are pairs.

    Args:
        groups: name -> points table, as `split_by` returns them for the axis's column.
        axis: the path of the axis, such as method.
    """
    return {
        name: table
        if SETTINGS not in table
        else table.assign(
            **{SETTINGS: [_without(str(text), axis) for text in table[SETTINGS].fillna("")]}
        )
        for name, table in groups.items()
    }


def _without(text: str, axis: str) -> str:
    """Return the text of settings without one of them."""
    return Settings({k: v for k, v in Settings.parse(text).items() if k != axis}).text


def _is_repeated(figure: object, *tables: pd.DataFrame) -> bool:
    """Return whether `score` repeats one `score.NAME` in all tables, and would be tested twice."""
    if figure != "score":
        return False
    named = [
        f for f in tables[0] if str(f).startswith(PREFIX) and all(f in table for table in tables)
    ]
    return any(all(np.array_equal(t[f], t["score"], equal_nan=True) for t in tables) for f in named)


def _figures(name: str, table: pd.DataFrame, with_perplexity: bool) -> pd.DataFrame:
    """Return the means over seeds by configuration."""
    try:
        table = require_hyperparameters(table)
        means = configuration_means(table)
        figures = means[["utility_loss", "score"]].copy()
        loss = figures["utility_loss"]
        if with_perplexity:
            figures.insert(1, "perplexity", np.exp(loss.where(loss <= LARGEST_LOG)))
        for score in score_names(table):
            column = PREFIX + score
            figures[column] = column_means(
                table.assign(**{column: score_values(table, score)}), column
            )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return figures.set_index(pd.MultiIndex.from_frame(means[KEY]))


def _paired(one: Array, other: Array) -> Paired:
    """Return the statistics of n pairs."""
    from scipy.stats import t as student
    from scipy.stats import wilcoxon

    result: Paired = {**_UNTESTED}
    if not len(one):
        return {**result, "reason": "no configuration has both"}
    largest = float(np.abs(np.concatenate([one, other])).max())
    if largest > LARGEST:
        return {**result, "reason": f"a value is above {LARGEST:g} in size"}
    # Mean difference and its tests, in a unit in which squares neither vanish nor overflow.
    unit = unit_of(one - other)
    difference = (one - other) / unit
    result["mean_difference"] = float(difference.mean() * unit)
    result["rmse"] = float(np.sqrt(np.mean(difference**2)) * unit)
    agrees, reasons = agreement(one, other)
    result = {**result, **agrees}
    if len(one) < 2:
        reasons.append("a test needs two configurations")
    elif np.ptp(difference) * unit <= ROUNDING * largest:
        reasons.append("the difference is the same everywhere")
    else:
        error = difference.std(ddof=1) / np.sqrt(len(one))
        half = float(student.isf((1 - CONFIDENCE) / 2, len(one) - 1) * error)
        result["interval"] = [
            float((difference.mean() - half) * unit),
            float((difference.mean() + half) * unit),
        ]
        result["t"] = t = float(difference.mean() / error)
        result["p"] = float(2 * student.sf(abs(t), len(one) - 1))
        # Differences that are equal up to rounding must share a rank.
        step = ROUNDING * (largest / unit)
        ranked = wilcoxon(np.round(difference / step))
        result["wilcoxon"], result["wilcoxon_p"] = float(ranked.statistic), float(ranked.pvalue)
    # Correlation of the two methods' values.
    if len(one) < 3 or any(np.ptp(side) <= ROUNDING * np.abs(side).max() for side in (one, other)):
        reasons.append("a correlation needs three configurations that differ")
    else:
        # Centred and scaled, so that no product overflows.
        sides = [(side - side.mean()) / np.ptp(side) for side in (one, other)]
        result["pearson"] = pearson = float(np.clip(np.corrcoef(*sides)[0, 1], -1, 1))
        # Fisher's interval needs n > 3, and arctanh is infinite for points on a line.
        if len(one) > 3 and abs(pearson) < 1 - ROUNDING:
            result["pearson_interval"] = _fisher(pearson, len(one))
        else:
            reasons.append(
                "an interval of a correlation needs four configurations that are not on a line"
            )
    return {**result, **because(*reasons)}


def _fisher(correlation: float, count: int) -> list[float]:
    """Return the 95 % interval of a correlation of n pairs (Fisher's transformation)."""
    from scipy.stats import norm

    half = float(norm.isf((1 - CONFIDENCE) / 2)) / np.sqrt(count - 3)
    return [float(np.tanh(np.arctanh(correlation) + sign * half)) for sign in (-1, 1)]

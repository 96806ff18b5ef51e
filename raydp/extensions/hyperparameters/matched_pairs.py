"""Pairs of equal utility: how far their scores differ, how often the heuristics are right."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.statistics.heuristics import Accuracy, Coded, pair_accuracies
from raydp.analysis.statistics.noise import SeedNoise
from raydp.analysis.statistics.results import Reason, because
from raydp.analysis.tables.points import configurations
from raydp.analysis.tables.thinning import evenly
from raydp.search_spaces.configuration import Configuration, Hyperparameters

Array = NDArray[np.float64]

_SHOWN = 20
_MOST_PAIRED = 5000  # the largest number of configurations paired; more are thinned evenly by loss
_CELLS_AT_ONCE = 1_000_000


class PairMember(Hyperparameters):
    """One configuration of a pair."""

    utility_loss: float
    score: float


class Pair(TypedDict):
    """Two configurations of equal utility, by score."""

    lower: PairMember
    higher: PairMember


class MatchedPairs(Reason):
    """The pairs of configurations of equal utility."""

    tolerance: float
    paired: int
    count: int
    mean_difference: float | None
    largest_difference: float | None
    heuristics: dict[str, Accuracy]
    widest: list[Pair]


def matched_pairs(means: pd.DataFrame, loss: Array, score: Array) -> MatchedPairs:
    """Return the pairs of equal utility, up to the utility's error."""
    # The tolerance within which two losses count as equal.
    noise = SeedNoise.of(means["utility_loss_std"].to_numpy(), means["num_seeds"].to_numpy())
    tolerance = 0.02 * float(np.ptp(loss))
    if noise is not None:
        # Two standard errors of the difference between two mean losses.
        tolerance = 2 * float(np.sqrt(2 * (noise.std_error() ** 2).mean()))
    # Sort by loss, and find the last configuration within the tolerance of each.
    order = np.argsort(loss, kind="stable")[evenly(len(loss), _MOST_PAIRED)]
    ends = np.searchsorted(loss[order], loss[order] + tolerance, side="right")
    count, total = 0, 0.0
    widest: list[tuple[float, int, int]] = []
    start = 0
    # Go through the pairs in blocks, keeping the sums and the widest pairs.
    while start < len(order):
        stop = start + max(1, _CELLS_AT_ONCE // max(1, int(ends[start] - start)))
        rows, columns = (
            np.arange(start, min(stop, len(order))),
            np.arange(start, ends[min(stop, len(order)) - 1]),
        )
        near = (columns > rows[:, None]) & (columns < ends[rows][:, None])
        i, j = np.nonzero(near)
        i, j = order[rows[i]], order[columns[j]]
        apart = np.abs(score[i] - score[j])
        count, total = count + len(apart), total + float(apart.sum())
        # Only the block's own widest pairs are sorted, which are few.
        least = np.partition(apart, -_SHOWN)[-_SHOWN] if len(apart) > _SHOWN else -np.inf
        top = np.flatnonzero(apart >= least)
        top = top[np.argsort(-apart[top], kind="stable")][:_SHOWN]
        widest = sorted(
            [*widest, *zip(apart[top].tolist(), i[top].tolist(), j[top].tolist(), strict=True)],
            reverse=True,
        )
        widest, start = widest[:_SHOWN], stop
    listed = configurations(means)
    return {
        "tolerance": tolerance,
        "paired": len(order),
        "count": count,
        "mean_difference": total / count if count else None,
        "largest_difference": widest[0][0] if widest else None,
        **because(None if count else "no two configurations have equal utility"),
        "heuristics": _accuracy_at_equal_utility(means, loss, score, tolerance),
        "widest": [_pair(listed, loss, score, i, j) for _, i, j in widest],
    }


def _accuracy_at_equal_utility(
    means: pd.DataFrame, loss: Array, score: Array, tolerance: float
) -> dict[str, Accuracy]:
    """Return how often each heuristic is right among pairs of equal utility."""
    accuracies = pair_accuracies(
        Coded.of(means),
        score,
        lambda rows, columns: np.abs(loss[rows, None] - loss[columns]) <= tolerance,
    )
    for accuracy in accuracies.values():
        if not accuracy["pairs"]:
            accuracy["reason"] = "no such pair satisfies its condition"
    return accuracies


def _pair(listed: list[Configuration], loss: Array, score: Array, i: int, j: int) -> Pair:
    """Return the record of two configurations, the one with the lower score first."""
    lower, higher = (
        PairMember(**listed[k].to_json(), utility_loss=float(loss[k]), score=float(score[k]))
        for k in ((i, j) if score[i] <= score[j] else (j, i))
    )
    return {"lower": lower, "higher": higher}

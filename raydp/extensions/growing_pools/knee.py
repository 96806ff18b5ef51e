"""The knee of the Pareto front of loss and score, for one pool and for growing pools.

The front is scaled: its end of lowest loss is at (0, 1), its end of lowest score at (1, 0). The
knee is the member that lies farthest below the line between the two ends. So a configuration that
another one beats in loss and score is never the knee. Members are compared exactly, as the
fractions that their doubles represent. Members at the same distance therefore tie regardless of
rounding, and the lower score decides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from raydp.analysis.selection.rules import ORACLE, Array, Layout, Pools, Rule, RuleStep
from raydp.analysis.selection.thresholds import Positions

# The sum of two quotients of differences errs by less than 5 units of rounding (1e-15). A sum that
# exceeds the least sum by more than this tolerance is not the least. The absolute part is for
# quotients so small that they lose digits.
_RELATIVE, _ABSOLUTE = 1e-12, 1e-300


def nearest_to_both_ends(loss: Array, score: Array, pools: Pools) -> Pools:
    """Return the members of each pool that are nearest to both ends of its Pareto front.

    Args:
        loss, score: figures that broadcast to the shape of pools.
        pools: [..., m], none empty.

    Returns:
        [..., m] the members with exactly the smallest sum of scaled distances.
    """
    # Scale both figures by the front's ends, and sum them in floating point.
    least_loss, its_score = _corner(loss, score, pools)
    least_score, its_loss = _corner(score, loss, pools)
    # Fronts of one member divide 0 by 0, and some widths lie beyond doubles.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        across, down = its_loss - least_loss, its_score - least_score
        sums = (loss - least_loss) / across + (score - least_score) / down
        # The only member of a front is its knee.
        alone = across == 0
        sums = np.where(
            alone, np.where((loss == least_loss) & (score == least_score), 0.0, np.inf), sums
        )
        # Where a width overflows, all members stay candidates, and exact arithmetic decides.
        known = np.isfinite(across) & np.isfinite(down)
        sums = np.where(pools & (known | alone), sums, np.where(pools, 0.0, np.inf))
        close: Pools = pools & (
            sums <= sums.min(axis=-1, keepdims=True) * (1 + _RELATIVE) + _ABSOLUTE
        )
    # Decide between the close candidates in exact arithmetic.
    undecided = (close.sum(axis=-1) > 1) & ~alone[..., 0]
    losses, scores = np.broadcast_to(loss, pools.shape), np.broadcast_to(score, pools.shape)
    for at in np.ndindex(undecided.shape) if undecided.any() else ():
        if undecided[at]:
            ends = [
                float(figure[at].item())
                for figure in (least_loss, its_score, its_loss, least_score)
            ]
            members = np.flatnonzero(close[at])
            close[at] = False
            close[(*at, _exactly_nearest(losses[at], scores[at], members, ends))] = True
    return close


def keep_the_nearest(layout: Layout, pools: Pools) -> Pools:
    """Keep the members that are nearest to the lowest loss and the lowest score at once."""
    return nearest_to_both_ends(layout.utility_loss, layout.score, pools)


PARETO_KNEE: Rule = (
    RuleStep(
        name="knee",
        text="of the configurations that no other beats in both loss and score, keep the one nearest to both ends",
        keep=keep_the_nearest,
    ),
    *ORACLE,
)


def knee_on_growing_pools(layout: Layout) -> Positions:
    """Return the rule's selection from P_u = {utility_loss <= u} at every configuration's u.

    Args:
        layout: utility_loss and score [layouts, m].

    Returns:
        [layouts, m] positions of the selected configurations.
    """
    pairs = zip(layout.utility_loss, layout.score, strict=True)
    return np.array([knees_of_growing_pools(loss, score) for loss, score in pairs])


def knees_of_growing_pools(loss: Array, score: Array) -> Positions:
    """Return the knee of P_u = {loss <= u} at the loss u of every configuration.

    Args:
        loss, score: [m] figures of one layout.

    Returns:
        [m] positions; the first among equal figures. The time is O(m log m).
    """
    order = np.lexsort((score, loss))  # stable: the first of equal figures comes first
    ordered = score[order]
    # The front: scores below every score of a lower or equal loss.
    in_front = np.ones(len(order), dtype=np.bool_)
    in_front[1:] = ordered[1:] < np.minimum.accumulate(ordered)[:-1]
    front = order[in_front]
    of_prefix = np.array(_knees(_integers(loss[front]), _integers(score[front])), dtype=np.intp)
    knees = np.empty(len(order), dtype=np.intp)
    knees[order] = front[of_prefix[np.cumsum(in_front) - 1]]
    return knees


def _corner(figure: Array, other: Array, pools: Pools) -> tuple[Array, Array]:
    """Return each pool's lowest figure, and the lowest other figure of its members, [..., 1]."""
    least = np.where(pools, figure, np.inf).min(axis=-1, keepdims=True)
    return least, np.where(pools & (figure == least), other, np.inf).min(axis=-1, keepdims=True)


def _exactly_nearest(
    loss: Array, score: Array, members: Positions, ends: Sequence[float]
) -> Positions:
    """Return the members with exactly the least sum of distances, scaled by the front's ends."""
    size = len(members)
    losses = _integers(np.array([*loss[members], ends[0], ends[2]]))
    scores = _integers(np.array([*score[members], ends[1], ends[3]]))
    across, down = losses[-1] - losses[-2], scores[-2] - scores[-1]
    # Multiplied by both widths, the sum of the quotients is a whole number.
    sums = [losses[i] * down + scores[i] * across for i in range(size)]
    return members[[one == min(sums) for one in sums]]


def _knees(loss: Sequence[int], score: Sequence[int]) -> list[int]:
    """Return the knee's place in each prefix of a front of ascending losses, descending scores.

    The sum of the distances to a prefix's ends is a linear function of (loss, score). The sum is
    therefore least at a corner of the convex hull below the prefix, which is maintained as in
    Andrew's algorithm. Along the hull the sum first falls and then rises, so bisection finds the
    corner.
    """
    hull: list[int] = []
    places = []
    for end in range(len(loss)):
        while len(hull) > 1 and not _bends_upwards(loss, score, hull[-2], hull[-1], end):
            hull.pop()
        hull.append(end)
        down, across = score[0] - score[end], loss[end] - loss[0]

        def rises(corner: int, down: int = down, across: int = across) -> bool:
            here, there = hull[corner], hull[corner + 1]
            return (loss[there] - loss[here]) * down + (score[there] - score[here]) * across > 0

        places.append(hull[bisect_left(range(len(hull) - 1), True, key=rises)])
    return places


def _bends_upwards(loss: Sequence[int], score: Sequence[int], a: int, b: int, c: int) -> bool:
    """Return whether b lies below the line from a to c."""
    return (loss[b] - loss[a]) * (score[c] - score[a]) > (score[b] - score[a]) * (loss[c] - loss[a])


def _integers(values: Array) -> list[int]:
    """Multiply doubles by the power of two that makes all of them whole. The result is exact."""
    ratios = [value.as_integer_ratio() for value in values.tolist()]
    common: int = max(denominator for _, denominator in ratios)
    return [numerator * (common // denominator) for numerator, denominator in ratios]

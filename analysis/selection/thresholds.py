"""What a rule selects at every utility threshold, without going through the pools one by one where that is possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analysis.selection.rules import PROCEDURE, Extreme, Layout, choose, rule_steps
from analysis.statistics.heuristics import Coded

_CELLS_AT_ONCE = 4_000_000  # pool members evaluated together: 16 MB as float32
_LAYOUT_CELLS = 100_000  # configurations of all layouts together: their arrays stay in a processor's cache

Positions = NDArray[np.intp]
Counts = NDArray[np.int64]


def along_thresholds(rule: str, layout: Layout) -> Positions:
    """What a rule selects from P_u = {utility_loss <= u} at the utility u of every configuration.

    Args:
        rule: a name in `RULES`.
        layout: m configurations in the order (T, b, η), utility_loss and score [layouts, m].

    Returns:
        [layouts, m] position of the selected configuration at the utility of each; the same as `choose` on every pool.
        Algorithm 1 and the rules of one extreme take memory in proportion to layouts · m, and Algorithm 1 at most
        m steps on arrays of that size; other rules m² cells, in parts.
    """
    of_rule = rule_steps(rule)
    steps = tuple(step.keep for step in of_rule)
    parts = []
    for part in _chunks(len(layout.score), layout.score.shape[1]):
        some = replace(layout, utility_loss=layout.utility_loss[part], score=layout.score[part])
        if len(steps) == 1 and isinstance(steps[0], Extreme):
            parts.append(_extreme(some, steps[0]))
        elif of_rule is PROCEDURE:
            parts.append(_procedure(some))
        else:
            parts.append(_every_pool(rule, some))
    return np.concatenate(parts)


@dataclass(frozen=True, kw_only=True)
class _Entries:
    """When configurations enter the pool as the threshold rises, in each of the layouts.

    Attributes:
        order: [layouts, m] configurations by utility loss.
        first: [layouts, m] the first place in that order at whose utility a configuration is in the pool.
        last: [layouts, m] the last place with the utility of each configuration: there the pool is P_u.
    """

    order: Positions
    first: Positions
    last: Positions

    @classmethod
    def of(cls, utility_loss: NDArray[np.float64]) -> _Entries:
        order = np.argsort(utility_loss, axis=1, kind="stable")
        ordered = np.take_along_axis(utility_loss, order, axis=1)
        places = np.broadcast_to(np.arange(order.shape[1]), order.shape)
        begins = np.ones(order.shape, dtype=np.bool_)
        begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        ends = np.ones(order.shape, dtype=np.bool_)
        ends[:, :-1] = begins[:, 1:]
        first = np.maximum.accumulate(np.where(begins, places, 0), axis=1)
        last = np.minimum.accumulate(np.where(ends, places, order.shape[1])[:, ::-1], axis=1)[:, ::-1]
        of_configuration = np.argsort(order, axis=1)
        return cls(
            order=order,
            first=np.take_along_axis(first, of_configuration, axis=1),
            last=np.take_along_axis(last, of_configuration, axis=1),
        )


def _extreme(layout: Layout, step: Extreme) -> Positions:
    """The lowest so far, by figure and then by position."""
    entries = _Entries.of(layout.utility_loss)
    best_first = np.argsort(step.figure(layout), axis=1, kind="stable")
    rank = np.argsort(best_first, axis=1)
    so_far = np.minimum.accumulate(np.take_along_axis(rank, entries.order, axis=1), axis=1)
    return np.take_along_axis(best_first, np.take_along_axis(so_far, entries.last, axis=1), axis=1)


def _procedure(layout: Layout) -> Positions:
    """Algorithm 1 (Hu et al. 2025) on the growing pool.

    Who is beaten under the updates or the compute heuristic stays beaten: what beats its beater beats it too. So every
    configuration is left after step 2 from when it enters the pool to when the first that beats it enters. Step 3 drops
    it where these intervals of smaller configurations cover its own.
    """
    coded, entries = layout.coded, _Entries.of(layout.utility_loss)
    out = _beaten_from(coded, entries.first)
    layouts, size = entries.first.shape
    places, rows = np.arange(size), np.arange(layouts)[:, None] * (size + 1)
    worst = np.full((layouts, size), -np.inf)
    selected = np.zeros((layouts, size), dtype=np.intp)
    for i in range(size):
        since, until = entries.first[:, i, None], out[:, i, None]
        if not (since < until).any():
            continue
        smaller = (coded.batch_size[:i] <= coded.batch_size[i]) & (coded.learning_rate[:i] <= coded.learning_rate[i])
        smaller = np.flatnonzero(smaller)
        always = (entries.first[:, smaller] <= since) & (out[:, smaller] == size)  # there before it, and never beaten
        if always.any(axis=1).all():
            continue
        left = (since <= places) & (places < until)
        if len(smaller):
            begin, end = entries.first[:, smaller], np.maximum(entries.first[:, smaller], out[:, smaller])
            count = _counts(rows + begin, layouts, size) - _counts(rows + end, layouts, size)
            left &= np.cumsum(count, axis=1)[:, :size] == 0
        loss = layout.utility_loss[:, i, None]
        left &= loss > worst
        worst, selected = np.where(left, loss, worst), np.where(left, i, selected)
    return np.take_along_axis(selected, entries.last, axis=1)


def _beaten_from(coded: Coded, first: Positions) -> Positions:
    """[layouts, m] the place from which on something in the pool beats a configuration by updates or compute."""
    size = first.shape[1]
    out = np.full(first.shape, size)
    for groups, rank in ((coded.same_updates, coded.learning_rate), (coded.same_compute, -coded.batch_size)):
        order = np.lexsort((rank, groups))
        starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
        for members in np.split(order, starts[1:]):
            if len(members) < 2:
                continue
            earliest = np.minimum.accumulate(first[:, members], axis=1)
            better = np.searchsorted(rank[members], rank[members], side="left")  # how many have a smaller rank
            some = better > 0
            beaten = earliest[:, better[some] - 1]
            out[:, members[some]] = np.minimum(out[:, members[some]], beaten)
    return out


def _counts(cells: Positions, layouts: int, size: int) -> Counts:
    """[layouts, size + 1] how often each cell occurs."""
    counts: Counts = np.bincount(cells.ravel(), minlength=layouts * (size + 1)).reshape(layouts, size + 1)
    return counts


def _every_pool(rule: str, layout: Layout) -> Positions:
    """Any rule, pool by pool; many thresholds at a time."""
    loss, score = layout.utility_loss, layout.score
    selected = np.empty(loss.shape, dtype=np.intp)
    step = max(1, _CELLS_AT_ONCE // max(1, loss.size))
    for start in range(0, loss.shape[1], step):
        some = slice(start, start + step)
        pools = loss[:, None, :] <= loss[:, some, None]  # [layouts, threshold, configuration]
        drawn = replace(layout, utility_loss=loss[:, None, :], score=score[:, None, :])
        selected[:, some] = choose(rule, drawn, pools)
    return selected


def _chunks(layouts: int, size: int) -> Iterator[slice]:
    """Slices of layouts whose arrays stay in a processor's cache."""
    step = max(1, _LAYOUT_CELLS // size)
    return (slice(start, start + step) for start in range(0, layouts, step))

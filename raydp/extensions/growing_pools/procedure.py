"""Algorithm 1 of Hu et al. (2025) at all utility thresholds, on pools that grow with them.

A configuration that another one beats under the updates or the compute heuristic stays beaten as
the pool grows, because both heuristics are transitive. So step 2 keeps a configuration from the
moment it enters the pool until the first configuration that beats it enters. Step 3 drops a kept
configuration while a smaller one is also kept.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from raydp.analysis.selection.rules import Layout
from raydp.analysis.selection.thresholds import Entries, Positions
from raydp.analysis.statistics.heuristics import Coded

_MANY = 2000
"""Layouts with more configurations are processed one by one, smaller layouts together.

Together, that takes m steps on arrays of m values per layout: 10 ms per layout at 1,000
configurations, against 15 ms one by one.
"""

Counts = NDArray[np.int64]


def procedure_on_growing_pools(layout: Layout) -> Positions:
    """Return Algorithm 1's selection from P_u = {utility_loss <= u} at every configuration's u.

    Args:
        layout: utility_loss [layouts, m].

    Returns:
        [layouts, m] positions of the selected configurations.
    """
    coded, entries = layout.coded, Entries.of(layout.utility_loss)
    out = _beaten_from(coded, entries.first)
    if len(coded) > _MANY:
        each = zip(layout.utility_loss, entries.order, entries.first, out, strict=True)
        selected = np.array([_follow(coded, *one) for one in each])
    else:
        selected = _together(layout, entries, out)
    return np.take_along_axis(selected, entries.last, axis=1)


def _together(layout: Layout, entries: Entries, out: Positions) -> Positions:
    """Return the selection at every place of the order, [layouts, m], for all layouts at once.

    Step 3 drops a configuration while the intervals of smaller configurations cover its own.
    """
    coded = layout.coded
    layouts, size = entries.first.shape
    places, rows = np.arange(size), np.arange(layouts)[:, None] * (size + 1)
    worst = np.full((layouts, size), -np.inf)
    selected = np.zeros((layouts, size), dtype=np.intp)
    # Configurations are sorted by T first, so every smaller configuration comes before i.
    for i in range(size):
        since, until = entries.first[:, i, None], out[:, i, None]
        # If others beat it before it enters in every layout, step 2 never keeps it.
        if not (since < until).any():
            continue
        smaller = (coded.batch_size[:i] <= coded.batch_size[i]) & (
            coded.learning_rate[:i] <= coded.learning_rate[i]
        )
        smaller = np.flatnonzero(smaller & (coded.same_settings[:i] == coded.same_settings[i]))
        # A smaller configuration that enters no later and is never beaten drops this one for good.
        always = (entries.first[:, smaller] <= since) & (out[:, smaller] == size)
        if always.any(axis=1).all():
            continue
        # The places at which step 2 keeps this configuration, and no smaller configuration is kept.
        left = (since <= places) & (places < until)
        if len(smaller):
            begin, end = (
                entries.first[:, smaller],
                np.maximum(entries.first[:, smaller], out[:, smaller]),
            )
            # A difference array: smaller configurations are kept from `begin` until `end`.
            count = _counts(rows + begin, layouts, size) - _counts(rows + end, layouts, size)
            left &= np.cumsum(count, axis=1)[:, :size] == 0
        # The procedure selects the kept configuration with the highest loss.
        loss = layout.utility_loss[:, i, None]
        left &= loss > worst
        worst, selected = np.where(left, loss, worst), np.where(left, i, selected)
    return selected


def _follow(
    coded: Coded,
    utility_loss: NDArray[np.float64],
    order: Positions,
    first: Positions,
    out: Positions,
) -> Positions:
    """Return the selection at every place of one layout's order, shape [m]."""
    size = len(order)
    left = _Left(coded, out)
    # The last step selects the highest loss, so the heap orders by falling loss.
    worst_first = np.lexsort((np.arange(size), -utility_loss))
    rank = np.argsort(worst_first).tolist()
    leaving = [i for i in np.argsort(out, kind="stable").tolist() if first[i] < out[i] < size]
    selected = np.empty(size, dtype=np.intp)
    # plain integers, since they are read one by one
    enters, leaves, next_out = (first.tolist(), out.tolist(), 0)
    heap: list[int] = []
    for place, i in enumerate(order.tolist()):
        # Remove what has become beaten. Places of equal loss share one threshold, so the first of
        # them suffices.
        if enters[i] == place:
            while next_out < len(leaving) and leaves[leaving[next_out]] <= place:
                for back in left.leave(leaving[next_out], place):
                    heappush(heap, rank[back])
                next_out += 1
        if leaves[i] > enters[i] and left.enter(i):
            heappush(heap, rank[i])
        # Configurations that have left the pool are removed when they reach the top of the heap.
        while heap and worst_first[heap[0]] not in left:
            heappop(heap)
        # If the heap is empty, a later configuration of equal loss beats all others.
        selected[place] = worst_first[heap[0]] if heap else -1
    return selected


class _Left:
    """The configurations of the pool that step 3 keeps.

    A dropped configuration waits for a smaller one to leave: the one that stays longest of those
    that drop it. It is forgotten if that smaller one stays at least as long as the dropped
    configuration itself.
    """

    def __init__(self, coded: Coded, out: Positions) -> None:
        # A configuration is smaller if no code is larger. Of two opposite codes that holds only if
        # both are equal.
        strata = (coded.same_settings, -coded.same_settings)
        self._codes = np.stack([coded.batch_size, coded.num_steps, coded.learning_rate, *strata])
        self._out = out
        self._members = np.empty(16, dtype=np.intp)
        self._figures = np.empty((len(self._codes), 16), dtype=self._codes.dtype)
        self._place: dict[int, int] = {}
        self._waiting: dict[int, list[int]] = {}

    def __contains__(self, i: int) -> bool:
        return i in self._place

    def enter(self, i: int) -> bool:
        """Add a configuration to the pool, and return whether step 3 keeps it."""
        count = len(self._place)
        members, figures, own = (
            self._members[:count],
            self._figures[:, :count],
            self._codes[:, i, None],
        )
        smaller = np.flatnonzero((figures <= own).all(axis=0))
        if len(smaller):
            by = members[smaller]
            longest = int(by[self._out[by].argmax()])
            self._wait(i, longest)
            return False
        # A new member drops the larger ones, which wait for it to leave.
        for larger in members[(figures >= own).all(axis=0)].tolist():
            self._remove(larger)
            self._wait(larger, i)
        self._append(i)
        return True

    def leave(self, i: int, place: int) -> list[int]:
        """Take a configuration out of the pool; return those that step 3 keeps as a consequence."""
        if i in self._place:
            self._remove(i)
        return [j for j in self._waiting.pop(i, []) if self._out[j] > place and self.enter(j)]

    def _wait(self, i: int, smaller: int) -> None:
        # One that leaves no later than the smaller one never comes back.
        if self._out[i] > self._out[smaller]:
            self._waiting.setdefault(smaller, []).append(i)

    def _append(self, i: int) -> None:
        count = len(self._place)
        if count == len(self._members):
            # Doubling keeps the total cost of growing linear.
            self._members = np.concatenate([self._members, self._members])
            self._figures = np.concatenate([self._figures, self._figures], axis=1)
        self._members[count], self._figures[:, count] = i, self._codes[:, i]
        self._place[i] = count

    def _remove(self, i: int) -> None:
        """Remove a configuration, moving the last one into its place."""
        at, last = self._place.pop(i), len(self._place)
        self._members[at], self._figures[:, at] = self._members[last], self._figures[:, last]
        if at < last:
            self._place[int(self._members[at])] = at


def _beaten_from(coded: Coded, first: Positions) -> Positions:
    """Return the place from which the pool holds a configuration that beats each, [layouts, m]."""
    size = first.shape[1]
    out = np.full(first.shape, size)
    # The updates heuristic prefers the smaller η, the compute heuristic the larger b.
    for groups, rank in (
        (coded.same_updates, coded.learning_rate),
        (coded.same_compute, -coded.batch_size),
    ):
        order = np.lexsort((rank, groups))
        starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
        for members in np.split(order, starts[1:]):
            if len(members) < 2:
                continue
            # A member is beaten from the earliest entry of a member with a smaller rank.
            earliest = np.minimum.accumulate(first[:, members], axis=1)
            # How many members have a smaller rank.
            better = np.searchsorted(rank[members], rank[members], side="left")
            some = better > 0
            beaten = earliest[:, better[some] - 1]
            out[:, members[some]] = np.minimum(out[:, members[some]], beaten)
    return out


def _counts(cells: Positions, layouts: int, size: int) -> Counts:
    """Return how often each cell occurs, shape [layouts, size + 1]."""
    counts: Counts = np.bincount(cells.ravel(), minlength=layouts * (size + 1)).reshape(
        layouts, size + 1
    )
    return counts

"""A rule's selection at every utility threshold, if possible without evaluating each pool."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from raydp.analysis.entry_points import entries, is_own
from raydp.analysis.selection.rules import INFORMED, RULES, Extreme, Layout, choose, rule_steps

GROWING_POOLS = "raydp.growing_pools"
"""The group of entry points for quick ways of rules, by the rule's name.

Each is a function: layout with utility_loss and score [layouts, m] -> [layouts, m] positions, as
from `select_at_thresholds`.
"""
Positions = NDArray[np.intp]

_CELLS_AT_ONCE = 4_000_000  # pool members evaluated together: 16 MB as float32
# configurations of the layouts evaluated together: their arrays fit a processor's cache
_LAYOUT_CELLS = 100_000


@dataclass(frozen=True, kw_only=True)
class Entries:
    """The places at which configurations enter the pool as the threshold rises, in each layout.

    Attributes:
        order: [layouts, m] configurations sorted by utility loss.
        first: [layouts, m] each configuration's first place in `order` at whose threshold the pool
            contains it.
        last: [layouts, m] the last place with the same loss as each configuration. At that place,
            the pool is P_u.
    """

    order: Positions
    first: Positions
    last: Positions

    @classmethod
    def of(cls, utility_loss: NDArray[np.float64]) -> Entries:
        """Return the place at which each configuration enters, from losses [layouts, m]."""
        order = np.argsort(utility_loss, axis=1, kind="stable")
        ordered = np.take_along_axis(utility_loss, order, axis=1)
        places = np.broadcast_to(np.arange(order.shape[1]), order.shape)
        # Equal losses enter together: mark the first and the last place of each tie.
        begins = np.ones(order.shape, dtype=np.bool_)
        begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        ends = np.ones(order.shape, dtype=np.bool_)
        ends[:, :-1] = begins[:, 1:]
        # Carry a tie's first place forwards, and its last place backwards.
        first = np.maximum.accumulate(np.where(begins, places, 0), axis=1)
        last = np.minimum.accumulate(np.where(ends, places, order.shape[1])[:, ::-1], axis=1)[
            :, ::-1
        ]
        # The argsort of a permutation is its inverse: from places to configurations.
        of_configuration = np.argsort(order, axis=1)
        return cls(
            order=order,
            first=np.take_along_axis(first, of_configuration, axis=1),
            last=np.take_along_axis(last, of_configuration, axis=1),
        )


def select_at_thresholds(rule: str, layout: Layout) -> Positions:
    """Return a rule's selection from P_u = {utility_loss <= u} at every configuration's u.

    Args:
        rule: a name in `RULES`.
        layout: m configurations in the order (T, b, η), utility_loss and score [layouts, m].

    Returns:
        [layouts, m] position of the configuration selected at the utility of each, as `choose`
        selects on every pool. Every pool holds the measured losses up to its threshold;
        `Layout.certainty`, which belongs to one threshold, is not used. Nor is `Layout.precision`,
        because the errors belong to the measured scores, not to redrawn ones. A rule by one figure,
        the default rule and the rules of GROWING_POOLS process configurations as they enter the
        pool, in memory in proportion to layouts · m. Other rules evaluate every pool, which takes
        m² cells, processed in parts.
    """
    of_rule = rule_steps(rule)
    layout = replace(layout, certainty=None, precision=None)
    steps = tuple(step.keep for step in of_rule)
    quick, parts = entries(GROWING_POOLS).get(rule), []
    for part in _chunks(len(layout.score), layout.score.shape[1]):
        some = replace(layout, utility_loss=layout.utility_loss[part], score=layout.score[part])
        # Most rules need not see every pool: they follow configurations as they enter.
        if len(steps) == 1 and isinstance(steps[0], Extreme):
            parts.append(_extreme(some, steps[0]))
        elif of_rule is INFORMED:
            parts.append(_informed(some))
        elif quick is not None and (rule not in RULES or is_own(quick)):
            parts.append(quick.load()(some))
        else:
            parts.append(_every_pool(rule, some))
    return np.concatenate(parts)


def _extreme(layout: Layout, *steps: Extreme) -> Positions:
    """Return the running best by the steps' figures in turn, then by position."""
    entries = Entries.of(layout.utility_loss)
    # The best of a growing pool is the least rank so far.
    best_first = np.lexsort([step.figure(layout) for step in reversed(steps)], axis=1)
    rank = np.argsort(best_first, axis=1)
    so_far = np.minimum.accumulate(np.take_along_axis(rank, entries.order, axis=1), axis=1)
    return np.take_along_axis(best_first, np.take_along_axis(so_far, entries.last, axis=1), axis=1)


def _informed(layout: Layout) -> Positions:
    """Return the running lowest expected score, ties by loss; the lowest loss until one leaks."""
    selected = _extreme(
        layout, Extreme("expected_score", "lowest"), Extreme("utility_loss", "lowest")
    )
    if layout.leaks is None:
        return selected
    entries = Entries.of(layout.utility_loss)
    leaks = np.broadcast_to(layout.leaks, layout.score.shape)
    # A growing pool leaks from its first leaking member on.
    any_so_far = np.logical_or.accumulate(np.take_along_axis(leaks, entries.order, axis=1), axis=1)
    any_member = np.take_along_axis(any_so_far, entries.last, axis=1)
    useful = _extreme(layout, Extreme("utility_loss", "lowest"), Extreme("score", "lowest"))
    return np.where(any_member, selected, useful)


def _every_pool(rule: str, layout: Layout) -> Positions:
    """Apply any rule to every pool, many thresholds at a time."""
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
    """Return slices of layouts whose arrays fit a processor's cache."""
    step = max(1, _LAYOUT_CELLS // size)
    return (slice(start, start + step) for start in range(0, layouts, step))

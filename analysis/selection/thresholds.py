"""A rule's selection at every utility threshold, if possible without evaluating each pool."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from raydp.analysis.selection.growing_pools import Entries, Positions, procedure_on_growing_pools
from raydp.analysis.selection.knee import knees_of_growing_pools
from raydp.analysis.selection.rules import (
    INFORMED,
    PARETO_KNEE,
    PROCEDURE,
    Extreme,
    Layout,
    choose,
    rule_steps,
)

_CELLS_AT_ONCE = 4_000_000  # pool members evaluated together: 16 MB as float32
# configurations of the layouts evaluated together: their arrays fit a processor's cache
_LAYOUT_CELLS = 100_000


def select_at_thresholds(rule: str, layout: Layout) -> Positions:
    """Return a rule's selection from P_u = {utility_loss <= u} at every configuration's u.

    Args:
        rule: a name in `RULES`.
        layout: m configurations in the order (T, b, η), utility_loss and score [layouts, m].

    Returns:
        [layouts, m] position of the configuration selected at the utility of each, as `choose`
        selects on every pool. Every pool holds the measured losses up to its threshold;
        `Layout.certainty`, which belongs to one threshold, is not used. Nor is `Layout.precision`,
        because the errors belong to the measured scores, not to redrawn ones. The built-in rules
        need memory in proportion to layouts · m, because they process configurations as they enter
        the pool. Other rules evaluate every pool, which takes m² cells, processed in parts.
    """
    of_rule = rule_steps(rule)
    layout = replace(layout, certainty=None, precision=None)
    steps = tuple(step.keep for step in of_rule)
    parts = []
    for part in _chunks(len(layout.score), layout.score.shape[1]):
        some = replace(layout, utility_loss=layout.utility_loss[part], score=layout.score[part])
        # The built-in rules need not see every pool: they follow configurations as they enter.
        if len(steps) == 1 and isinstance(steps[0], Extreme):
            parts.append(_extreme(some, steps[0]))
        elif of_rule is PROCEDURE:
            parts.append(procedure_on_growing_pools(some))
        elif of_rule is INFORMED:
            parts.append(_informed(some))
        elif of_rule is PARETO_KNEE:
            pairs = zip(some.utility_loss, some.score, strict=True)
            parts.append(np.array([knees_of_growing_pools(loss, score) for loss, score in pairs]))
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

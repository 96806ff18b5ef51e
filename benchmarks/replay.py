"""A search replayed on a complete sweep: what it would have run, paid and selected."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.selection.rules import Layout, choose
from raydp.analysis.tables.points import configuration_means, configurations
from raydp.analysis.tables.utility_filter import loss_threshold, pool_within
from raydp.search_spaces import Configuration
from raydp.sweep.search import Goal, Search, SearchState


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What a search did on a table that it could not see.

    Attributes:
        order: configurations in the order in which it ran them.
        cost_share: their compute over that of the whole table.
        selected: what the rule selects from what was run, None where none of it keeps to the
            threshold.
        of_all: what it selects from the whole table.
        excess: the selected one's score less that of `of_all`, and relative to it; None without a
            selection, and the relative one where the score is not above 0.
        reason: why it ended.
        reached: the share of the cost after which the choice from what had run stayed within 5 % of
            `of_all`'s score; None if it never did. A search does not know it, and goes on until it
            ends.
    """

    order: tuple[Configuration, ...]
    cost_share: float
    selected: Configuration | None
    of_all: Configuration
    excess: float | None
    relative_excess: float | None
    reason: str | None
    reached: float | None


WITHIN = 0.05


def replay(
    points: pd.DataFrame, search: Search, goal: Goal, *, batch: int = 1, folder: Path | None = None
) -> Replay:
    """Let a search run on a complete points table.

    Args:
        points: a points table in which every configuration of the space has finished.
        goal: with a threshold that at least one configuration keeps to.
        batch: configurations that run side by side: as many are proposed before any of them is
            seen.
        folder: where the search may keep what a sweep's folder would hold; None for nowhere.
    """
    means = configuration_means(points)
    candidates = tuple(configurations(means))
    threshold = loss_threshold(
        means,
        max_loss=goal.max_loss,
        min_gain_share=goal.min_gain_share,
        base_utility_loss=goal.base_utility_loss,
    )
    allowed = (
        np.ones(len(means), dtype=np.bool_) if threshold is None else pool_within(means, threshold)
    )
    layout = Layout.of(means)
    of_all = int(choose(goal.rule, layout, allowed))
    order: list[Configuration] = []
    reason = None
    while True:
        state = SearchState(candidates=candidates, points=_of(points, order), folder=folder)
        proposal = search.propose(state, goal, batch)
        if proposal.finished or not proposal.configurations:
            reason = proposal.reason
            break
        order += proposal.configurations
    cost = np.array([c.compute for c in candidates], dtype=np.float64)
    known = set(order)
    ran = np.array([c in known for c in candidates])
    share = float(cost[ran].sum() / cost.sum())
    found = {
        "order": tuple(order),
        "cost_share": share,
        "of_all": candidates[of_all],
        "reason": reason,
        "reached": _reached(
            goal.rule, layout, allowed, cost, [candidates.index(c) for c in order], of_all
        ),
    }
    if not (ran & allowed).any():
        return Replay(**found, selected=None, excess=None, relative_excess=None)
    selected = int(choose(goal.rule, layout, ran & allowed))
    score = means["score"].to_numpy()
    excess = float(score[selected] - score[of_all])
    relative = excess / float(score[of_all]) if score[of_all] > 0 else None
    return Replay(**found, selected=candidates[selected], excess=excess, relative_excess=relative)


def _reached(
    rule: str,
    layout: Layout,
    allowed: NDArray[np.bool_],
    cost: NDArray[np.float64],
    order: list[int],
    of_all: int,
) -> float | None:
    """The cost share after which the choice stays close to that of the whole table."""
    most = layout.score[of_all] + WITHIN * abs(layout.score[of_all])
    ran, spent, since = np.zeros(len(cost), dtype=np.bool_), 0.0, None
    for at in order:
        ran[at] = True
        spent += float(cost[at] / cost.sum())
        pool = ran & allowed
        close = bool(pool.any()) and layout.score[int(choose(rule, layout, pool))] <= most
        since = (spent if since is None else since) if close else None
    return since


def _of(points: pd.DataFrame, order: list[Configuration]) -> pd.DataFrame | None:
    """The rows of what has run, in the order in which it did."""
    if not order:
        return None
    places = {configuration: place for place, configuration in enumerate(order)}
    place = pd.Series([places.get(configuration, -1) for configuration in configurations(points)])
    return points.iloc[place[place >= 0].sort_values(kind="stable").index]

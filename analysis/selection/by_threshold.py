"""The choice of every rule as a function of the utility threshold (Hu et al. 2025, Fig. 20)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.selection.constraints import Constraints
from raydp.analysis.selection.equivalents import Precision
from raydp.analysis.selection.evidence import Evidence, certainty_at
from raydp.analysis.selection.rules import INFORMED, Layout, choose, rule_names, rule_steps
from raydp.analysis.selection.thresholds import select_at_thresholds
from raydp.analysis.tables.columns import known
from raydp.analysis.tables.points import (
    configuration_means,
    configurations,
    require_hyperparameters,
)
from raydp.analysis.tables.thinning import evenly
from raydp.analysis.tables.utility_filter import shown_threshold, within
from raydp.search_spaces.configuration import Configuration

Array = NDArray[np.float64]
Pool = NDArray[np.bool_]
Positions = NDArray[np.intp]
Narrowing = tuple[str, str, Pool]
"""A constraint: its name, the rule in words, and [m] whether a configuration keeps to it."""

MOST_THRESHOLDS = 400
"""The default limit on the number of thresholds. Thinning keeps the lowest and the highest."""
_MOST_CONFIGURATIONS = 100
"""Up to this number of configurations, every threshold is tried. Some rules take long."""


@dataclass(frozen=True, kw_only=True)
class SelectionsByThreshold:
    """Every rule's selection as the utility threshold rises.

    Attributes:
        means: [m] configuration means in the order (T, b, η).
        thresholds: [k] utility losses, ascending, of the configurations that keep to the other
            constraints.
        members: [k] number of configurations that each threshold leaves.
        selected: rule -> [k] position in means of the rule's selection at each threshold, as from
            `select`.
        allowed: [m] whether a configuration keeps to the constraints other than the threshold.
        passed: [m] whether a configuration keeps to all constraints, the given threshold included.
        threshold: the given utility threshold, else the highest loss among the passed
            configurations.
        start: rule -> the position that the rule selects from `passed`.
    """

    means: pd.DataFrame
    thresholds: Array
    members: NDArray[np.int64]
    selected: Mapping[str, Positions]
    allowed: Pool
    passed: Pool
    threshold: float
    start: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class ThresholdChange:
    """A utility threshold at which the rule selects another configuration.

    Attributes:
        threshold: the utility threshold.
        text: the threshold as a short text that, entered as `max_loss`, gives the same pool.
        configuration, utility_loss, score: the configuration that the rule selects there, and its
            means over seeds. The score is None if none was measured.
    """

    threshold: float
    text: str
    configuration: Configuration
    utility_loss: float
    score: float | None

    def to_dict(self) -> dict[str, object]:
        """Return the change as data for JSON."""
        figures = {"utility_loss": self.utility_loss, "score": self.score}
        return {"max_loss": self.threshold, **self.configuration.to_json(), **figures}


def selections_by_threshold(
    points: pd.DataFrame,
    constraints: Constraints | None = None,
    *,
    by_secret: tuple[pd.DataFrame, str] | None = None,
    log_base: float | None = None,
    no_leak: float | None = 0.0,
    precision: Precision | None = None,
    max_thresholds: int = MOST_THRESHOLDS,
    further_rules: Sequence[str] = (),
) -> SelectionsByThreshold:
    """Apply every rule at the utility loss of every configuration as threshold.

    Args:
        points: a points table.
        constraints: all but the utility threshold hold at every threshold. The utility threshold,
            if there is one, is the starting threshold.
        by_secret, log_base, no_leak: as for `select`.
        precision: the confidence and the tolerance as for `select`, by default `Precision()`.
        max_thresholds: at least 2. More thresholds are thinned evenly.
        further_rules: rules that are given as objects, from `own_rules.named_rule`.

    Raises:
        ValueError: as `select`.

    Source: Hu et al. 2025, Fig. 9 and 20.
    """
    # Find the configurations that keep to the constraints, with and without the utility threshold.
    points, constraints = require_hyperparameters(points), constraints or Constraints()
    means = configuration_means(points)
    narrowings = constraints.narrowings(points, means, by_secret)
    passed = _all(means, [kept for _, _, kept in narrowings])
    allowed = without_threshold(means, narrowings)
    # Only at the loss of a configuration does the pool change, so these losses are all thresholds.
    loss = means["utility_loss"].to_numpy()
    thresholds = (every := np.unique(loss[allowed]))[evenly(len(every), max_thresholds)]
    given = constraints.thresholds(means)
    layout = Evidence.of(
        points, means, constraints, passed, by_secret, log_base, no_leak, precision
    ).layout
    selected, start = dict[str, Positions](), dict[str, int]()
    for rule in (*rule_names(), *further_rules):
        start[rule] = int(choose(rule, layout, passed))
        selected[rule] = _along(rule, layout, allowed, thresholds)
        # Without a threshold to keep to, the last one excludes nothing.
        selected[rule][-1] = start[rule] if given is None else selected[rule][-1]
    return SelectionsByThreshold(
        means=means,
        thresholds=thresholds,
        members=np.array([int((within(loss, u) & allowed).sum()) for u in thresholds]),
        selected=selected,
        allowed=allowed,
        passed=passed,
        threshold=float(loss[passed].max() if given is None else given.max()),
        start=start,
    )


def threshold_changes(
    rule: str,
    layout: Layout,
    means: pd.DataFrame,
    narrowings: Sequence[Narrowing],
    passed: Pool,
    selected: int,
) -> tuple[ThresholdChange, ...] | None:
    """Return the nearest stricter and looser threshold at which a rule's selection changes.

    Args:
        rule: the rule's name.
        layout: the m configurations in the order (T, b, η), as for `choose`.
        means: [m] configuration means in that order.
        narrowings: the constraints, from `Constraints.narrowings`.
        passed: [m] whether a configuration keeps to all constraints.
        selected: position of what the rule selects from `passed`.

    Returns:
        At most two changes, the stricter one first. None if there are more than 100 configurations.
    """
    if len(means) > _MOST_CONFIGURATIONS:
        return None
    loss, allowed = means["utility_loss"].to_numpy(), without_threshold(means, narrowings)
    thresholds = np.unique(loss[allowed])
    positions = _along(rule, layout, allowed, thresholds)
    other = np.flatnonzero(positions != selected)
    inside = within(thresholds, loss[passed].max())
    # The last change inside the pool is the nearest stricter one, the first outside the looser one.
    nearest = [*other[inside[other]][-1:], *other[~inside[other]][:1]]
    listed = configurations(means)
    return tuple(
        ThresholdChange(
            threshold=float(thresholds[at]),
            text=shown_threshold(loss, float(thresholds[at])),
            configuration=listed[positions[at]],
            utility_loss=float(loss[positions[at]]),
            score=known(means["score"].iloc[positions[at]]),
        )
        for at in nearest
    )


def without_threshold(means: pd.DataFrame, narrowings: Sequence[Narrowing]) -> Pool:
    """Return the configurations that keep to all constraints but the threshold, shape [m].

    Raises:
        ValueError: no configuration is left.
    """
    return _all(means, [kept for name, _, kept in narrowings if name != "utility threshold"])


def _all(means: pd.DataFrame, kept: list[Pool]) -> Pool:
    """Return the configurations that all constraints keep, shape [m].

    Raises:
        ValueError: no configuration is left.
    """
    pool = np.ones(len(means), dtype=np.bool_)
    for one in kept:
        pool &= one
    if not pool.any():
        raise ValueError(
            "constraints must leave a configuration, got none that keeps to all. Relax one of them."
        )
    return pool


def _along(rule: str, layout: Layout, allowed: Pool, thresholds: Array) -> Positions:
    """Return a rule's selection from the allowed configurations at each threshold, shape [k]."""
    loss = layout.utility_loss
    # The shortcut below needs pools that grow with loss alone, and no certainty per threshold.
    if rule_steps(rule) is INFORMED or not allowed.all():
        # Eight parts bound the memory that the [k, m] pools take.
        return np.concatenate(
            [_from_pools(rule, layout, allowed, part) for part in np.array_split(thresholds, 8)]
        )
    # The pools grow with the loss: one pass selects at every threshold.
    one = replace(layout, utility_loss=loss[None], score=layout.score[None])
    at_every = select_at_thresholds(rule, one)[0]
    order = np.argsort(loss, kind="stable")
    # The last configuration that the threshold admits. `within` forgives rounding.
    last = np.array([np.flatnonzero(within(loss[order], u))[-1] for u in thresholds])
    positions: Positions = at_every[order[last]]
    return positions


def _from_pools(rule: str, layout: Layout, allowed: Pool, thresholds: Array) -> Positions:
    """Return a rule's selection from the allowed configurations at each threshold, shape [k]."""
    pools = within(layout.utility_loss, thresholds[:, None]) & allowed
    # The certainty to keep to a threshold differs between thresholds. Single seeds give none.
    if rule_steps(rule) is INFORMED and layout.models.means["num_seeds"].max() > 1:
        layout = layout.with_certainty(certainty_at(layout.models.losses, thresholds))
    return choose(rule, layout, pools)

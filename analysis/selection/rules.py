"""Selection rules, and the registry of them.

Each rule is a list of steps that narrow a pool of configurations.

A new rule is one step and one line in `RULES`. A rule of another package is an entry point; a
user may also give an object (`own_rules`). Steps work on whole arrays of pools at once, so
selecting from one table and evaluating the risk at every threshold use the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.entry_points import entries
from raydp.analysis.selection.equivalents import Precision, cheapest_of_the_most_useful, equivalents
from raydp.analysis.statistics.heuristics import Coded, Codes, pair_blocks
from raydp.analysis.statistics.noise import SeedNoise
from raydp.analysis.surface.hierarchy import loss_posterior, score_posterior
from raydp.analysis.surface.posterior import Posterior
from raydp.search_spaces.names import unknown_name

Array = NDArray[np.float64]
Pools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The data that a rule may use, for m configurations in the order (T, b, η, settings).

    Attributes:
        coded: the integer codes that the heuristics compare.
        utility_loss: [..., m], lower is better.
        score: [..., m], higher is more leakage; `procedure` does not use it.
        models: models of the figures, fitted when a rule first needs them.
        leaks: [m] which configurations leak measurably (see `leakage`), None if that is unknown.
        certainty: [..., m] probability that a configuration keeps to the utility threshold, None if
            it is not asked.
        precision: the confidence, and what makes scores equivalent. None: no scores are, and the
            score alone decides.
    """

    coded: Coded
    utility_loss: Array
    score: Array
    models: Models
    leaks: Pools | None = None
    certainty: Array | None = None
    precision: Precision | None = None

    @classmethod
    def of(
        cls,
        means: pd.DataFrame,
        *,
        by_secret: Array | None = None,
        log_base: float | None = None,
        pool: Pools | None = None,
        leaks: Pools | None = None,
        precision: Precision | None = None,
    ) -> Layout:
        """Return the layout of a table of configuration means; for the arguments see `Models`."""
        return cls(
            coded=Coded.of(means),
            utility_loss=means["utility_loss"].to_numpy(),
            score=means["score"].to_numpy(),
            models=Models(means=means, by_secret=by_secret, log_base=log_base, pool=pool),
            leaks=leaks,
            precision=precision,
        )

    def with_certainty(self, certainty: Array | None) -> Layout:
        """Return the layout with the probabilities that configurations keep to a threshold."""
        return replace(self, certainty=certainty)

    @property
    def expected_score(self) -> Array:
        """Return the expected true scores given the measured ones, in the shape of the scores."""
        return np.broadcast_to(self.models.scores.own_mean, self.score.shape)


@dataclass(frozen=True, kw_only=True)
class Models:
    """Models of a table's figures. Each is fitted on first use.

    Attributes:
        means: configuration means.
        by_secret: [m, k] means by secret, None if the choice of secrets is not counted.
        log_base: as of `Evidence`.
        pool: [m] the configurations that may be selected, None for all.
        no_leak: as for `select`.
    """

    means: pd.DataFrame
    by_secret: Array | None
    log_base: float | None
    pool: Pools | None
    no_leak: float | None = 0.0

    @cached_property
    def scores(self) -> Posterior:
        """Return the posterior of the scores."""
        scores = score_posterior(
            self.means, by_secret=self.by_secret, log_base=self.log_base, pool=self.pool
        )
        return replace(scores, no_leak=self.no_leak)

    @cached_property
    def losses(self) -> Posterior:
        """Return the posterior of the utility losses."""
        return loss_posterior(self.means)

    @cached_property
    def loss_error(self) -> Array:
        """Return the standard errors over seeds of the mean utility losses, [m]; 0 if unknown."""
        noise = SeedNoise.of(
            self.means["utility_loss_std"].to_numpy(), self.means["num_seeds"].to_numpy()
        )
        return np.zeros(len(self.means)) if noise is None else noise.std_error()

    @cached_property
    def compute(self) -> Array:
        """Return the training compute of one run of each configuration, b·T, [m]."""
        compute: Array = (
            self.means["batch_size"].to_numpy(dtype=np.float64) * self.means["num_steps"].to_numpy()
        )
        return compute


@dataclass(frozen=True, kw_only=True)
class RuleStep:
    """One step of a rule, which narrows the pools.

    Attributes:
        name: short name, for records.
        text: the step's rule in words.
        keep: (layout, pools [..., m]) -> pools [..., m]. It never empties a pool that has a member.
            `Unbeaten`, `Extreme` and the functions of this module implement it.

    Example:
        step = RuleStep(name="low", text="keep the lowest score", keep=Extreme("score", "lowest"))
        RULES["low"] = (step,)
    """

    name: str
    text: str
    keep: Callable[[Layout, Pools], Pools]


@dataclass(frozen=True)
class Unbeaten:
    """Drop a configuration that another one still in the pool beats under a heuristic."""

    heuristic: Literal["individual", "compute", "updates"]

    def __call__(self, layout: Layout, pools: Pools) -> Pools:
        """Drop the beaten members from each pool."""
        coded = layout.coded
        if self.heuristic == "updates":
            return _least_of_groups(coded.same_updates, coded.learning_rate, pools)
        if self.heuristic == "compute":
            return _least_of_groups(coded.same_compute, -coded.batch_size, pools)
        # The individual heuristic has no groups: compare all pairs, in blocks.
        flat = pools.reshape(-1, pools.shape[-1])
        members = np.flatnonzero(flat.any(axis=0))
        inside = flat[:, members].astype(np.float32)
        # Count the members that beat each one. The sums of 0s and 1s are exact in float32 below
        # 2^24, and unlike bool arrays, float32 arrays are multiplied by BLAS.
        beaten = np.zeros_like(inside)
        for rows, columns, holds in pair_blocks(coded.take(members), "individual"):
            beaten[:, columns] += inside[:, rows] @ holds.astype(np.float32)
        kept = flat.copy()
        kept[:, members] &= beaten == 0
        return kept.reshape(pools.shape)


@dataclass(frozen=True)
class Extreme:
    """Keep the configurations at one end of a figure."""

    column: Literal["utility_loss", "score", "expected_score"]
    end: Literal["lowest", "highest"]

    def figure(self, layout: Layout) -> Array:
        """Return the figure with its sign set so that lower is better, shape [..., m]."""
        values: Array = getattr(layout, self.column)
        return values if self.end == "lowest" else -values

    def __call__(self, layout: Layout, pools: Pools) -> Pools:
        """Keep the best members of each pool, ties included."""
        figure = self.figure(layout)
        # Configurations outside a pool are infinite, so that the minimum is over its members.
        at_end: Pools = figure == np.where(pools, figure, np.inf).min(axis=-1, keepdims=True)
        return pools & at_end


def lowest_loss_without_leakage(layout: Layout, pools: Pools) -> Pools:
    """Keep only the lowest loss, of equal ones the lower score, if no member leaks measurably."""
    if layout.leaks is None:
        return pools
    quiet = ~(pools & layout.leaks).any(axis=-1, keepdims=True)
    useful = _LOWEST_SCORE(layout, _LOWEST_LOSS(layout, pools))
    # Only pools without a leak are settled here.
    return np.where(quiet, _first(useful), pools)


def likely_useful(layout: Layout, pools: Pools) -> Pools:
    """Keep the members that keep to the utility threshold with the confidence, or the likeliest."""
    if layout.certainty is None:
        return pools
    certain = pools & (layout.certainty >= (layout.precision or Precision()).confidence)
    # Configurations outside a pool get -1, below every probability.
    inside = np.where(pools, layout.certainty, -1.0)
    most = pools & (inside == inside.max(axis=-1, keepdims=True))
    return np.where(certain.any(axis=-1, keepdims=True), certain, most)


def most_useful_equivalent(layout: Layout, pools: Pools) -> Pools:
    """Keep one of the members whose scores are equivalent, by utility and compute.

    Keep a pool that has none as it is.

    The members' scores and losses must be the measured ones.
    """
    if layout.precision is None:
        return pools
    models, flat = layout.models, pools.reshape(-1, pools.shape[-1])
    close = equivalents(
        models.means, models.scores, flat, layout.precision, log_base=models.log_base
    )
    kept = flat.copy()
    for at in np.flatnonzero(close.any(axis=1)):
        kept[at] = cheapest_of_the_most_useful(
            close[at], layout.utility_loss, models.loss_error, models.compute
        )
    return kept.reshape(pools.shape)


def _first(pools: Pools) -> Pools:
    """Keep only the first member of each pool."""
    alone: Pools = np.arange(pools.shape[-1]) == pools.argmax(axis=-1)[..., None]
    return alone


def dominates(layout: Layout, position: NDArray[np.intp]) -> Pools:
    """Return which configurations dominate a given one, shape [..., m].

    A configuration dominates if its loss and its score are no higher and at least one of them is
    lower.

    Args:
        layout: the configurations.
        position: [..., 1] position of the given configuration.
    """
    shape = np.broadcast_shapes(layout.score.shape, (*position.shape[:-1], layout.score.shape[-1]))
    loss, score = np.broadcast_to(layout.utility_loss, shape), np.broadcast_to(layout.score, shape)
    own_loss, own_score = (
        np.take_along_axis(values, position, axis=-1) for values in (loss, score)
    )
    dominating: Pools = (
        (loss <= own_loss) & (score <= own_score) & ((loss < own_loss) | (score < own_score))
    )
    return dominating


def _least_of_groups(groups: Codes, rank: Codes, pools: Pools) -> Pools:
    """Keep each pool's members of the least rank in their group."""
    # Sorted by group, every group is one segment of reduceat.
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    no_rank = np.iinfo(np.int32).max
    least = np.minimum.reduceat(np.where(pools, rank, no_rank)[..., order], starts, axis=-1)
    kept: Pools = pools & (rank <= least[..., groups])
    return kept


Rule = tuple[RuleStep, ...]


class OwnRule(str):
    """The name of a rule that is given as an object. Unlike other names, it has the steps itself."""

    steps: Rule


_LOWEST_LOSS, _LOWEST_SCORE = Extreme("utility_loss", "lowest"), Extreme("score", "lowest")
WORST_UTILITY: Rule = (
    RuleStep(
        name="worst utility",
        text="keep the highest utility loss",
        keep=Extreme("utility_loss", "highest"),
    ),
)
BEST_UTILITY: Rule = (
    RuleStep(name="best utility", text="keep the lowest utility loss", keep=_LOWEST_LOSS),
)
ORACLE: Rule = (
    RuleStep(name="lowest score", text="keep the lowest measured score", keep=_LOWEST_SCORE),
)
PROCEDURE: Rule = (
    RuleStep(
        name="updates",
        text="group by updates U = b·T·η and by the further fields, keep the smallest η of each group",
        keep=Unbeaten("updates"),
    ),
    RuleStep(
        name="compute",
        text="group by U, by compute C = b·T and by the further fields, keep the largest b of each group",
        keep=Unbeaten("compute"),
    ),
    RuleStep(
        name="individual",
        text="drop a configuration if another with the same further fields has b, T and η at most as large, and one "
        "smaller",
        keep=Unbeaten("individual"),
    ),
    *WORST_UTILITY,
)
"""Algorithm 1 of Hu et al. 2025, with further fields.

The paper varies b, T and η alone, so the first three steps compare configurations with the same
further fields. The last step compares what is left of all of them.
"""
LEAKAGE_CHECK, UTILITY_CHECK = "leakage check", "utility check"
INFORMED: Rule = (
    RuleStep(
        name=LEAKAGE_CHECK,
        text="if no configuration leaks measurably, keep the lowest utility loss",
        keep=lowest_loss_without_leakage,
    ),
    RuleStep(
        name=UTILITY_CHECK,
        text="keep the configurations whose true loss keeps to the utility threshold with the confidence of a "
        "decision; if there is none, the most probable one",
        keep=likely_useful,
    ),
    RuleStep(
        name="equivalent scores",
        text="if no score is known to be the lowest, but some are known to be within the tolerance of the lowest, keep "
        "of these the lowest utility loss, and of losses within one standard error of that loss "
        "the cheapest to train",
        keep=most_useful_equivalent,
    ),
    RuleStep(
        name="expected score",
        text="keep the lowest expected score, given all scores, their errors and a smooth surface through them",
        keep=Extreme("expected_score", "lowest"),
    ),
    RuleStep(
        name="best utility",
        text="of equal expected scores, keep the lowest utility loss",
        keep=_LOWEST_LOSS,
    ),
)
"""The most useful of the scores equivalent to the lowest; without such, the least expected regret.

A configuration's regret is its score minus the lowest of the pool. The lowest is the same for all
members, so the member with the lowest expected score has the least expected regret.
"""

RULES: dict[str, Rule] = {
    "informed": INFORMED,
    "procedure": PROCEDURE,
    "best-utility": BEST_UTILITY,
    "worst-utility": WORST_UTILITY,
    "oracle": ORACLE,
}
ENTRY_POINTS = "raydp.rules"
"""The group of entry points for rules of other packages. Each entry point is a tuple of steps."""
CONSTRAINED = "raydp.constrained_rules"
"""The group of entry points for rules with a constraint. Each is a `ConstrainedRule`."""


class ConstrainedRule(Protocol):
    """A rule of `select` with a constraint of its own, which may validly leave no configuration.

    Implemented by `ReferenceSetting` of the extension `reference_data`.

    Attributes:
        steps: the steps after the constraint.
        of_accuracies: whether the constraint bounds accuracies, so that no score may be an area.
    """

    steps: ClassVar[Rule]
    of_accuracies: ClassVar[bool]

    def narrowing(self, points: pd.DataFrame) -> tuple[str, str, Pools]:
        """Return (name, rule in words, whether each configuration keeps to the constraint).

        Raises:
            ValueError: the table lacks what the rule needs, or no configuration is left.
        """


def rule_names() -> list[str]:
    """Return the names of the known rules without a constraint, built in and installed."""
    return [*RULES, *sorted(set(entries(ENTRY_POINTS)) - set(RULES))]


def rule_steps(rule: str) -> Rule:
    """Return the steps of a rule without a constraint.

    Raises:
        ValueError: the rule is unknown. The message names the nearest rule.
    """
    if isinstance(rule, OwnRule):
        return rule.steps
    if rule not in rule_names():
        raise ValueError(unknown_name("rule", rule, [*rule_names(), *entries(CONSTRAINED)]))
    # Built-in names come first, so that no installed package can replace a built-in rule.
    steps: Rule = RULES[rule] if rule in RULES else entries(ENTRY_POINTS)[rule].load()
    return steps


def constrained_rule(rule: str) -> ConstrainedRule | None:
    """Return a rule with a constraint of its own; None if the rule has none, or is unknown."""
    if rule in rule_names() or rule not in entries(CONSTRAINED):
        return None
    constrained: ConstrainedRule = entries(CONSTRAINED)[rule].load()
    return constrained


def aims_at_scores(steps: Rule) -> bool:
    """Return whether a rule looks at more than the utility."""
    return not all(
        isinstance(step.keep, Extreme) and step.keep.column == "utility_loss" for step in steps
    )


def choose(rule: str, layout: Layout, pools: Pools) -> NDArray[np.intp]:
    """Return the position of the configuration that a rule selects from each pool.

    Args:
        rule: a name in `RULES`.
        layout: m configurations in the order (T, b, η).
        pools: [..., m], true for the members of a pool; none is empty.

    Returns:
        [...] positions. If a rule leaves several members, the first in the order (T, b, η) is
        selected.
    """
    for step in rule_steps(rule):
        pools = step.keep(layout, pools)
    # The first True: ties go to the first in the order (T, b, η).
    first: NDArray[np.intp] = pools.argmax(axis=-1)
    return first

"""Selection rules: each a list of steps that narrow a pool of configurations, and a registry of them.

A new rule is one step function and one line in `RULES`. Steps work on whole arrays of pools at once, so the rule that
selects from one table is the code that the risk figures evaluate on every threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.heuristics import predicted_more_private
from search_spaces.names import unknown_name

Pools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What a rule may look at, for m configurations in the order (T, b, η).

    Attributes:
        preferred: heuristic -> [m, m] float32, 1 at [i, j] where i is predicted to be more private than j.
        utility_loss: [..., m], lower is better.
        score: [..., m], higher is more leakage; only the oracle may look at it.
    """

    preferred: Mapping[str, NDArray[np.float32]]
    utility_loss: NDArray[np.float64]
    score: NDArray[np.float64]

    @classmethod
    def of(cls, means: pd.DataFrame) -> Layout:
        """The layout of a table of configuration means."""
        preferred = {name: pairs.astype(np.float32) for name, pairs in predicted_more_private(means).items()}
        return cls(preferred=preferred, utility_loss=means["utility_loss"].to_numpy(), score=means["score"].to_numpy())


@dataclass(frozen=True, kw_only=True)
class RuleStep:
    """One narrowing of the pools.

    Attributes:
        name: short, for records.
        text: the rule in words.
        keep: (layout, pools [..., m]) -> pools [..., m], never emptying a pool that has a member.
    """

    name: str
    text: str
    keep: Callable[[Layout, Pools], Pools]


def _unless_beaten(heuristic: str) -> Callable[[Layout, Pools], Pools]:
    """Drop a configuration that another one still in the pool beats under a heuristic."""

    def keep(layout: Layout, pools: Pools) -> Pools:
        # Counts of beating members: sums of 0s and 1s, exact in float32 below 2^24, and a BLAS product unlike bool's.
        beaten: Pools = pools.astype(np.float32) @ layout.preferred[heuristic] > 0
        return pools & ~beaten

    return keep


def _extreme(
    column: Literal["utility_loss", "score"], end: Literal["lowest", "highest"]
) -> Callable[[Layout, Pools], Pools]:
    """Keep the configurations at one end of a figure."""

    def keep(layout: Layout, pools: Pools) -> Pools:
        figure = getattr(layout, column) * (1.0 if end == "lowest" else -1.0)
        at_end: Pools = figure == np.where(pools, figure, np.inf).min(axis=-1, keepdims=True)
        return pools & at_end

    return keep


_WORST_UTILITY = RuleStep(
    name="worst utility", text="keep the highest utility loss", keep=_extreme("utility_loss", "highest")
)

RULES: dict[str, tuple[RuleStep, ...]] = {
    "procedure": (
        RuleStep(
            name="updates",
            text="group by updates U = b·T·η, keep the smallest η of each group",
            keep=_unless_beaten("updates"),
        ),
        RuleStep(
            name="compute",
            text="group by U and compute C = b·T, keep the largest b of each group",
            keep=_unless_beaten("compute"),
        ),
        RuleStep(
            name="individual",
            text="drop a configuration if another has b, T and η at most as large, one smaller",
            keep=_unless_beaten("individual"),
        ),
        _WORST_UTILITY,
    ),
    "best-utility": (
        RuleStep(name="best utility", text="keep the lowest utility loss", keep=_extreme("utility_loss", "lowest")),
    ),
    "worst-utility": (_WORST_UTILITY,),
    "oracle": (RuleStep(name="oracle", text="keep the lowest measured score", keep=_extreme("score", "lowest")),),
}


def rule_steps(rule: str) -> tuple[RuleStep, ...]:
    """The steps of a rule.

    Raises:
        ValueError: the rule is unknown; names the nearest.
    """
    if rule not in RULES:
        raise ValueError(unknown_name("rule", rule, RULES))
    return RULES[rule]


def choose(rule: str, layout: Layout, pools: Pools) -> NDArray[np.intp]:
    """What a rule selects from each pool.

    Args:
        rule: a name in `RULES`.
        layout: m configurations in the order (T, b, η).
        pools: [..., m], true for the members of a pool; none is empty.

    Returns:
        [...] positions; the first member in the order (T, b, η) where a rule leaves several.
    """
    for step in rule_steps(rule):
        pools = step.keep(layout, pools)
    first: NDArray[np.intp] = pools.argmax(axis=-1)
    return first

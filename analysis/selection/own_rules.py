"""Rules that users give as objects: a function, or a tuple of steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from raydp.analysis.entry_points import entries
from raydp.analysis.selection import rules
from raydp.analysis.selection.rules import Layout, OwnRule, Pools, Rule, RuleStep

Keep = Callable[[Layout, Pools], Pools]
GivenRule = str | Rule | Keep
"""A rule as users give it: a name, a tuple of steps, or a function."""


def own_rule(given: object, *, name: str = "", field: str = "rule") -> OwnRule:
    """Return a rule that is given as an object.

    Args:
        given: a tuple of steps, or a function (layout, pool) -> pool. The function gets one pool at
            a time: pool and the arrays of the layout have the shape [m].
        name: name of the rule; by default the function's, or the names of the steps.
        field: the option or the field that gives the rule, for messages.

    Raises:
        ValueError: the object is neither, or the function takes other arguments.

    Example:
        def safest(layout, pool):
            "Keep the lowest sum of loss and score."
            total = layout.utility_loss + layout.score
            return pool & (total == total[pool].min())

        select(points, rule=safest)
    """
    if isinstance(given, tuple) and given and all(isinstance(step, RuleStep) for step in given):
        name, steps = name or ", ".join(step.name for step in given), given
    elif callable(given) and _takes_layout_and_pool(given):
        name = name or getattr(given, "__name__", type(given).__name__)
        text = (inspect.getdoc(given) or f"keep what {name} keeps").partition("\n")[0].rstrip(".")
        steps = (RuleStep(name=name, text=text[:1].lower() + text[1:], keep=given),)
    else:
        raise ValueError(
            f"{field} must be a name, a function of (layout, pool) or a tuple of RuleStep, got "
            f"{name or getattr(given, '__name__', type(given).__name__)!r}, which is none of them. "
            "See docs/extending.md."
        )
    rule = OwnRule(name)
    rule.steps = tuple(
        step
        if isinstance(step.keep, rules.Extreme | rules.Unbeaten)
        else replace(step, keep=_PoolByPool(name, step.keep))
        for step in steps
    )
    return rule


def named_rule(given: object, *, name: str = "", field: str = "rule") -> str:
    """Return the name, which has the steps, of a rule given as an object; see `own_rule`."""
    # A built-in rule that is given as an object keeps its name.
    for known, steps in rules.RULES.items():
        if steps is given:
            return known
    rule = own_rule(given, name=name, field=field)
    if rule in (*rules.rule_names(), *entries(rules.CONSTRAINED)):
        raise ValueError(
            f"{field} must have a name that no registered rule has, got {str(rule)!r}. Rename it."
        )
    return rule


def _takes_layout_and_pool(given: Callable[..., object]) -> bool:
    """Return whether a function can be called with two arguments by position."""
    try:
        inspect.signature(given).bind(None, None)
    except (TypeError, ValueError):  # a ValueError: a function in C may have no signature
        return False
    return not inspect.isclass(given)


@dataclass(frozen=True)
class _PoolByPool:
    """A user's function as the `keep` of a step. It gets one pool at a time."""

    rule: str
    function: Keep

    def __call__(self, layout: Layout, pools: Pools) -> Pools:
        """Return the function's answer for each pool, [..., m]."""
        arrays = [pools, layout.utility_loss, layout.score]
        if layout.certainty is not None:
            arrays.append(layout.certainty)
        # The layout may have more axes than the pools, such as those of draws.
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
        rows = [np.broadcast_to(array, shape).reshape(-1, shape[-1]) for array in arrays]
        kept = np.zeros(rows[0].shape, dtype=np.bool_)
        for at, (pool, *figures) in enumerate(zip(*rows, strict=True)):
            if pool.any():
                given = dict(zip(("utility_loss", "score", "certainty"), figures, strict=False))
                kept[at] = self._of_one(replace(layout, **given), pool)
        return kept.reshape(shape)

    def _of_one(self, layout: Layout, pool: Pools) -> Pools:
        """Return the checked answer for a pool, [m].

        Raises:
            ValueError: the function fails, or does not return a part of the pool.
        """
        try:
            kept = np.asarray(self.function(layout, pool.copy()))
        except Exception as error:
            raise ValueError(
                f"rule {self.rule} must select from every pool, got {type(error).__name__}: "
                f"{error}. Correct the function."
            ) from error
        if kept.dtype != np.bool_ or kept.shape != pool.shape:
            got = f"{kept.dtype} of shape {kept.shape}"
        elif (kept & ~pool).any():
            got = "a configuration that is not in the pool"
        elif not kept.any():
            got = "none of them"
        else:
            return kept
        raise ValueError(
            f"rule {self.rule} must return which configurations of the pool stay, as booleans of "
            f"the shape {pool.shape}, got {got}. Correct the function, see docs/extending.md."
        )

"""The search over the orders of Rényi bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from raydp.privacy.accounting.rdp import ORDERS, bottom

Curve = Callable[[float], float]
"""Bound on the Rényi divergence of one run, as a function of the order λ > 1."""


def smallest(bound: Callable[[float], float]) -> float:
    """Return the smallest value of a bound over the orders.

    The bound holds at every order, so unvisited orders can only cost tightness. A coarse grid finds
    the valley, and a ternary search its bottom.
    """
    values = cache(lambda index: bound(ORDERS[index]))
    best = min(range(len(_COARSE)), key=lambda k: values(_COARSE[k]))
    low, high = _COARSE[max(best - 1, 0)], _COARSE[min(best + 1, len(_COARSE) - 1)]
    return min(values(_COARSE[best]), bottom(values, low, high))


def _coarse() -> tuple[int, ...]:
    """Return positions in ORDERS a factor of about 1.37 apart (in order - 1 below 12)."""
    fractional = sum(order < 12 for order in ORDERS)
    whole = {round(12 * 1.37**k) for k in range(15)}
    above = [
        i
        for i, order in enumerate(ORDERS)
        if order >= 12 and (order in whole or order == ORDERS[-1])
    ]
    return (*range(0, fractional, 16), *above)


_COARSE = _coarse()


def smallest_delta(curve: Curve, epsilon: float) -> float:
    """Return the smallest δ at ε over the orders: `tuned_epsilon`'s conversion, solved for δ."""
    # A δ above 1 says nothing, and exp of a large bound would overflow.
    log = smallest(lambda o: (o - 1) * (curve(o) - epsilon + math.log1p(-1 / o)) - math.log(o))
    return min(1.0, math.exp(min(0.0, log)))

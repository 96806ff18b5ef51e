"""Accountant `rdp`: Rényi differential privacy (Mironov et al. 2019)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from raydp.privacy.accounting.accountant import Accountant, AccountantError, describe
from raydp.privacy.accounting.events import PoissonGaussian

# Fractional orders end at 11. Above, opacus's series may stop at its first term: the term is below
# its threshold e^-30 while the sum is not, and the result is negative (order 63.5, q = 0.5, σ =
# 20). Integer orders are finite sums. At small q the divergence leaps from one integer to the next,
# so all of them are included. Above 1029 binomials overflow.
ORDERS: tuple[float, ...] = (
    *(1 + 0.05 * 1.02**k for k in range(268)),
    *(float(order) for order in range(12, 1025)),
)

# Allowance for the tail of the fractional series, whose terms below e^-30 opacus drops. The largest
# deficit against quadrature over q 1e-6..0.999, σ 0.2..200 was 2.5 e^-30.
_SERIES_TAIL = 8 * math.exp(-30)


class RDPAccountant(Accountant):
    """Rényi differential privacy with opacus's values on a fixed grid of orders 1.05 to 1024
    (`ORDERS`).

    ε is 3 to 84 % above 'pld'. The search for the best order visits only a part of the grid. Each
    order gives a valid bound, so unvisited orders can only cost tightness.

    Source: Mironov, Talwar and Zhang 2019 (Section 3.3); Balle et al. 2020 (Theorem 21) for the
    conversion.
    """

    name = "rdp"
    distribution = "opacus"

    def divergence(self, events: Sequence[PoissonGaussian]) -> Callable[[float], float]:
        """Return a function: order > 1 -> bound on the events' divergence; inf on overflow."""
        compute_rdp = _compute_rdp()

        @cache
        def composed(order: float) -> float:
            # Divergences of independent releases add up (Mironov 2017, Proposition 1).
            total = 0.0
            for event in events:
                step = float(
                    compute_rdp(
                        q=event.sample_rate,
                        noise_multiplier=event.noise_multiplier,
                        steps=1,
                        orders=order,
                    )
                )
                # Only the fractional orders are truncated series. Integer orders and full batches
                # are exact.
                if not order.is_integer() and event.sample_rate < 1:
                    step += _SERIES_TAIL / (order - 1)
                # A negative result is a failure of the series (see `ORDERS`). It is no bound.
                total += event.num_steps * (step if step >= 0 else math.inf)
            return total

        return composed

    def _bounds(self, events: Sequence[PoissonGaussian], deltas: Sequence[float]) -> list[float]:
        divergence = self.divergence(events)
        bounds = [self._bound(divergence, delta) for delta in deltas]
        if math.inf in bounds:
            raise AccountantError(
                f"accountant 'rdp' overflows at every order for {describe(events)}. Use a larger "
                "noise_multiplier."
            )
        return bounds

    def _bound(self, divergence: Callable[[float], float], delta: float) -> float:
        """Return the smallest ε over the orders. (K(α) + log 1/δ) / (α - 1) has one valley."""

        def epsilon(index: int) -> float:
            order = ORDERS[index]
            # The conversion of Balle et al. 2020, Theorem 21.
            return (
                divergence(order) - math.log(delta * order) / (order - 1) + math.log1p(-1 / order)
            )

        return max(0.0, bottom(epsilon, 0, len(ORDERS) - 1))


@cache
def _compute_rdp() -> Callable[..., Any]:
    """Load opacus's `compute_rdp` from its file alone: its package takes seconds to load torch."""
    # Find the file without importing the package.
    package = find_spec("opacus")
    assert package is not None, "opacus is a dependency"
    assert package.submodule_search_locations, "it is a package"
    file = Path(package.submodule_search_locations[0]) / "accountants" / "analysis" / "rdp.py"
    spec = spec_from_file_location("opacus_rdp", file)
    assert spec is not None, "it is a Python file"
    assert spec.loader is not None, "its loader reads a file"
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., Any] = module.compute_rdp
    return function


def bottom(value: Callable[[int], float], low: int, high: int) -> float:
    """Return the smallest value from low to high, by ternary search; the values have one valley."""
    while high - low > 4:
        third = (high - low) // 3
        if value(low + third) <= value(high - third):
            high -= third
        else:
            low += third
    return min(value(index) for index in range(low, high + 1))

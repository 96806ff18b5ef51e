"""The δ at which a run's ε is stated, and a number μ that bounds its whole privacy profile."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from raydp.privacy.accounting.accountant import AccountantError
from raydp.privacy.accounting.events import Event, NonPrivateEvent
from raydp.privacy.accounting.pld import PLDAccountant

DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
"""Further δ at which the guarantee of a run states its ε."""
GDP_SMALLEST_DELTA = 1e-10
_GRID_POINTS = 4000


def dominating_mu(event: Event) -> tuple[float | None, str | None]:
    """Return the smallest μ (to 1 %) whose Gaussian curve dominates the profile, or None and why.

    Guarantee:
        For every δ in [1e-10, 1) the event's ε is at most the ε of one Gaussian mechanism with
        sensitivity over noise std μ. The check is δ_event(ε_i) <= δ_μ(ε_(i+1)) on a grid ε_0 = 0 <
        ε_1 < ..., wherever δ_event(ε_i) >= 1e-10. Both curves fall, so the check covers the points
        between. δ_event is computed by Connect-the-Dots, with its rounding error added, and is an
        upper bound. The central limit's μ is not such a bound (Bu et al. 2020).

    Source: Dong, Roth and Su 2022 (Definition 4, Corollary 1); Doroshenko et al. 2022.
    """
    # Some events have no curve that a Gaussian could dominate. The reason is stated, not guessed
    # around.
    if isinstance(event, NonPrivateEvent):
        return None, "a run without noise has no privacy profile"
    accountant = PLDAccountant()
    try:
        last = accountant.epsilon(event, GDP_SMALLEST_DELTA)
    except AccountantError as error:
        return None, f"the profile is not known down to delta 1e-10: {error}"
    if not math.isfinite(last):
        return None, "epsilon is infinite at delta 1e-10"
    if last == 0:
        return None, "epsilon is 0 at delta 1e-10: there is no profile to bound"
    # The grid is finer towards 0, where it matters most, and ends beyond `last`, where δ_event is
    # below 1e-10.
    grid = 1.1 * last * np.linspace(0.0, 1.0, _GRID_POINTS) ** 2
    deltas = accountant.deltas(event, grid)
    # Below δ = 1e-10 rounding decides, so the claim ends there.
    relevant = deltas[:-1] >= GDP_SMALLEST_DELTA
    if relevant[-1] or deltas[0] >= 1:
        return None, "rounding hides the profile near delta 1e-10 or delta 1"
    # Shifted by one cell: δ at the left end is compared with the Gaussian at the right end, so that
    # the comparison covers all ε between.
    return _smallest_mu(deltas[:-1][relevant], grid[1:][relevant]), None


def _smallest_mu(deltas: NDArray[np.float64], epsilons: NDArray[np.float64]) -> float:
    """Return the smallest μ (to 1e-6, rounded up) with δ_μ(epsilons) >= deltas; [k] each."""
    from raydp.privacy.accounting.gdp import gaussian_deltas  # loads scipy

    # Double μ until the curve dominates, then bisect. `high` always dominates, so the result is
    # safe.
    low, high = 0.0, 1.0
    while (gaussian_deltas(high, epsilons) < deltas).any():
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        if (gaussian_deltas(middle, epsilons) < deltas).any():
            low = middle
        else:
            high = middle
    return high

"""The privacy profile of the best of a random number of runs, from the profile of one run.

Setting. On data sets D and D', one run has the distributions Q and Q'. A run is its configuration,
its model and a uniform number that decides between equals, which is as good as taking the first of
equals. Runs are ordered from worst to best, and the order does not depend on the data. For an
outcome y, let x = Q(outcomes up to y) and x' = Q'(outcomes up to y). Let f(x) = E[x^K]. The best of
K runs has the density Σ_k P[K = k] k x^(k-1) = f'(x) with respect to Q. With K = 0 nothing is
released, and this has the same probability on both data sets.

Theorem. Let δ(ε) = sup_S Q(S) - e^ε Q'(S) be the profile of one run, for ε of any sign. Let t(x) be
a lower bound on x' that holds for every order; `TwoWayProfile.largest` gives one. Take the least
concave curve from (0, 0) that lies above all points (b, a) = (f'(t(x)), f'(x)) with 0 <= x <= 1.
Let the pieces of the curve rise by r_1, r_2, ..., E[K] in sum, with falling slopes λ_1 > λ_2 > ...
Then the profile of the best of K runs is at most Σ_j r_j δ(ε - ln λ_j).

Proof. Let z = dQ'/dQ at y. The profile of the best of K runs is the integral of (f'(x) - e^ε z
f'(x'))+ over Q. Where Q' has mass and Q has none, nothing is added. As f' does not fall, f'(x') >=
f'(t(x)). So the integrand is at most φ(e^ε z), where φ(s) is the largest a - s b over the points
(b, a) and (0, 0). This maximum is attained at the corner of the concave curve where its slope falls
below s. The pieces up to this corner are those with λ_j > s, and each adds r_j - s r_j / λ_j. So
φ(s) = Σ_j r_j (1 - s / λ_j)+ for the curve. The integral of (1 - e^ε z / λ_j)+ over Q is δ(ε - ln
λ_j). ∎

Numerics. An upper bound in place of δ keeps the theorem valid. So does a grid of x if the point of
a cell from x_i to x_(i+1) is (f'(t(x_i)), f'(x_(i+1))), because f' and t do not fall.

With one piece, of slope λ_1 = max f'(x) / f'(t(x)) and rise E[K], the sum is E[K] δ(ε - ln λ_1).
This is the bound of Koskela, Redberg and Wang 2024 with the best ln λ_1 that the whole profile
gives. The theorem is never above this bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydp.extensions.private_selection.num_runs import NumRuns
from raydp.extensions.private_selection.two_way import (
    TwoWayProfile,
    smallest_known_delta,
    two_way_profile,
)
from raydp.privacy.accounting.accountant import AccountantError
from raydp.privacy.accounting.events import PoissonGaussian

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CELL, _MIN_CELLS, _MAX_CELLS = 1e-4, 1000, 100_000
"""Size of a cell of x in ln f'(x), and limits to the number of cells.

ln λ_1 can be too large by the size of a cell.
"""
_ROUNDING = 1 + 1e-9
"""Allowance for rounding in f', in the concave curve and in the sums, relative to δ.

Each of the three is below 1e-11.
"""


@dataclass(frozen=True, kw_only=True)
class SelectionProfile:
    """Upper bounds on the profile of the best of K runs, in one direction of adjacency.

    Args:
        run: the profile of one run.
        rises: [j] r of the theorem.
        log_slopes: [j] ln λ of the theorem, descending.
    """

    run: TwoWayProfile
    rises: NDArray[np.float64]
    log_slopes: NDArray[np.float64]

    @classmethod
    def of(cls, run: TwoWayProfile, num_runs: NumRuns) -> SelectionProfile:
        """Compute the concave curve for a run and a distribution of K."""
        import numpy as np

        # Cells of equal width in ln f'(x): the error of a cell is then the same everywhere.
        lowest, highest = num_runs.log_slope(np.array([1.0, 0.0])).tolist()
        cells = int(min(max((highest - lowest) / _CELL, _MIN_CELLS), _MAX_CELLS))
        edges = np.linspace(lowest, highest, cells + 1)
        # The left edge of each cell gives t(x_i) and the right edge f'(x_(i+1)), as the theorem's
        # numerics ask. x = 0 is set exactly, because the inverse function may round it away.
        above = np.clip(num_runs.above(edges[:-1]), 0.0, 1.0)
        above[0] = 1.0
        b = np.exp(num_runs.log_slope(run.largest(above)))
        a = np.exp(edges[1:])
        b, a = _concave(b, a)
        with np.errstate(divide="ignore"):  # f' may underflow to 0
            return cls(
                run=run, rises=np.diff(a), log_slopes=np.log(np.diff(a)) - np.log(np.diff(b))
            )

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on δ at ε."""
        return float(self.rises @ self.run.deltas(epsilon - self.log_slopes)) * _ROUNDING

    def epsilon(self, delta: float) -> float:
        """Return an upper bound on ε >= 0 at δ, to 1e-9 relative; inf if δ is below every bound.

        The bound on δ does not rise with ε, so bisection finds where it reaches δ.
        """
        shift = max(self.log_slopes[self.log_slopes < math.inf].max(initial=0.0), 0.0)
        low, high = 0.0, float(self.run.epsilons[-1] + shift)  # the bound is constant from here on
        if self.delta(low) <= delta:
            return 0.0
        if self.delta(high) > delta:
            return math.inf
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            if self.delta(middle) <= delta:
                high = middle
            else:
                low = middle
        return high


def _concave(
    b: NDArray[np.float64], a: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the corners of the least concave curve from (0, 0) above all points (b, a).

    The curve ends at the largest a.
    """
    import numpy as np

    # Sort by b, and drop points below an earlier one. What remains rises in both coordinates.
    order = np.lexsort((-a, b))
    b, a = b[order], a[order]
    higher = np.concatenate([[True], a[1:] > np.maximum.accumulate(a)[:-1]])
    # The upper convex hull by Andrew's monotone chain: a corner goes if the chain would bend
    # upwards.
    corners = [(0.0, 0.0)]
    for x, y in zip(b[higher].tolist(), a[higher].tolist(), strict=True):
        while len(corners) > 1:
            (x_1, y_1), (x_2, y_2) = corners[-2:]
            if (y_2 - y_1) * (x - x_2) > (y - y_2) * (x_2 - x_1):
                break
            corners.pop()
        corners.append((x, y))
    xs, ys = np.array(corners).T
    return xs, ys


def smallest_bounded_delta(events: Sequence[PoissonGaussian], num_runs: NumRuns) -> float:
    """Return the smallest δ with an ε by the theorem: E[K] times one run's, plus rounding."""
    return 1.01 * num_runs.mean * max(smallest_known_delta(event) for event in events)


def profile_epsilons(
    events: Sequence[PoissonGaussian], num_runs: NumRuns, deltas: Sequence[float]
) -> list[float]:
    """Return an upper bound on ε at each δ of the best of K runs, by the theorem and 'pld'.

    Both directions of adjacency are computed, and the larger ε is returned. It is inf where f'
    leaves double precision.

    Raises:
        AccountantError: a δ is too small for double precision, or 'pld' cannot handle an event.

    Source: the theorem of this module, which tightens Koskela, Redberg and Wang 2024.
    """
    smallest = smallest_bounded_delta(events, num_runs)
    if min(deltas, default=1.0) < smallest:
        raise AccountantError(
            f"delta must be >= {smallest:.1e} for a private selection by 'pld', got {min(deltas)}. "
            "Below it double precision decides; use a larger delta or accountant 'rdp'."
        )
    run = two_way_profile(events)
    both = [SelectionProfile.of(direction, num_runs) for direction in (run, run.reversed())]
    return [max(profile.epsilon(delta) for profile in both) for delta in deltas]

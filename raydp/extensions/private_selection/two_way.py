"""The privacy profile of a mechanism on two neighbouring data sets, as a table per direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydp.privacy.accounting.accountant import AccountantError
from raydp.privacy.accounting.events import PoissonGaussian
from raydp.privacy.accounting.pld import PLDAccountant, interval_for, step_deviation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_POINTS = 6000
_SMALLEST_DELTA = 1e-13
_MAX_EPSILON = 700.0
"""Where e^ε overflows."""


@dataclass(frozen=True, kw_only=True)
class TwoWayProfile:
    """Upper bounds on δ at several ε, for output distributions Q and Q' on neighbouring data sets.

    Between two tabulated ε, δ is interpolated linearly in e^ε. A profile is convex in e^ε, so the
    interpolation is an upper bound. Above the last ε, δ stays as it is there.

    Args:
        epsilons: [k] ε in ascending order; the first is 0.
        forward: [k] upper bounds on the largest Q(S) - e^ε Q'(S) over events S.
        backward: [k] upper bounds on the largest Q'(S) - e^ε Q(S) over events S.
    """

    epsilons: NDArray[np.float64]
    forward: NDArray[np.float64]
    backward: NDArray[np.float64]

    def reversed(self) -> TwoWayProfile:
        """Return the profile with Q and Q' exchanged."""
        return TwoWayProfile(epsilons=self.epsilons, forward=self.backward, backward=self.forward)

    def deltas(self, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return [m] upper bounds on the largest Q(S) - e^ε Q'(S), at [m] ε of any sign or inf.

        Source: the complement of S gives δ(-ε) = 1 - e^-ε + e^-ε δ'(ε), with δ' the profile of the
        other direction.
        """
        import numpy as np

        # δ falls, so the bound at the largest ε holds above it. At its negative, δ is 1 in double
        # precision.
        size = np.minimum(np.abs(epsilons), _MAX_EPSILON)
        grid, at, shrink = np.exp(self.epsilons), np.exp(size), np.exp(-size)
        ahead = np.interp(at, grid, self.forward)
        behind = 1 - shrink + shrink * np.interp(at, grid, self.backward)
        bounds: NDArray[np.float64] = np.minimum(np.where(epsilons >= 0, ahead, behind), 1.0)
        return bounds

    def largest(self, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return [m] upper bounds on Q'(S), for any events S with Q(S) = probabilities.

        Each ε, of any sign, gives the bound Q'(S) <= e^ε Q(S) + δ'(ε). The choice of ε below only
        decides how tight the bound is.
        """
        import numpy as np

        # One line for each tabulated ε, of either sign: slope e^ε and intercept δ'(ε).
        positive = self.epsilons[1:]
        negative = -positive[::-1]
        slopes = np.exp(np.concatenate([negative, self.epsilons]))
        backward = np.concatenate(
            [1 - np.exp(negative) + np.exp(negative) * self.forward[1:][::-1], self.backward]
        )
        # Neighbouring lines cross at smaller probabilities if they are steeper.
        crossings = (backward[:-1] - backward[1:]) / (slopes[1:] - slopes[:-1])
        crossings = np.maximum.accumulate(crossings[::-1])
        # The lower envelope of the lines: binary search finds the lowest one at each probability.
        best = len(slopes) - 1 - np.searchsorted(crossings, probabilities)
        bounds: NDArray[np.float64] = np.minimum(slopes[best] * probabilities + backward[best], 1.0)
        return bounds


def two_way_profile(events: Sequence[PoissonGaussian]) -> TwoWayProfile:
    """Return the profile of running one event, drawn uniformly and told, by accountant 'pld'.

    The draw does not depend on the data, so the profile is the mean of the events' profiles.
    Forward is the direction in which a record is removed, and backward is the direction in which it
    is added.

    Raises:
        AccountantError: 'pld' cannot handle an event, or an event has no finite ε.
    """
    import numpy as np

    # Equal events are composed once. The widest table becomes the common grid.
    profiles = {event: _of_event(event) for event in dict.fromkeys(events)}
    epsilons = max(
        (profile.epsilons for profile in profiles.values()), key=lambda grid: float(grid[-1])
    )
    # A sum of m profiles is rounded by less than m 2^-52.
    shares = {
        event: events.count(event) / len(events) * (1 + len(events) * 2.0**-52)
        for event in profiles
    }
    forward, backward = (
        np.sum([shares[event] * profile.deltas(epsilons) for event, profile in of.items()], axis=0)
        for of in (profiles, {event: profile.reversed() for event, profile in profiles.items()})
    )
    return TwoWayProfile(epsilons=epsilons, forward=forward, backward=backward)


def smallest_known_delta(event: PoissonGaussian) -> float:
    """Return the δ where the table of an event ends: hardly above the rounding error of 'pld'."""
    return max(_SMALLEST_DELTA, PLDAccountant().smallest_delta(event))


def _of_event(event: PoissonGaussian) -> TwoWayProfile:
    """Return the profile of one event, up to the ε of `smallest_known_delta`."""
    import numpy as np

    accountant = PLDAccountant(_interval(event))
    last = accountant.epsilon(event, smallest_known_delta(event))
    # The table is interpolated in e^ε, which would overflow.
    if not last < _MAX_EPSILON:
        raise AccountantError(
            "noise_multiplier must be larger for a private selection by 'pld', got "
            f"{event.noise_multiplier:.4g}: a single run has ε = {last:.3g} at the smallest δ."
        )
    # Denser near 0, where profiles bend.
    epsilons = max(last, 1e-6) * np.linspace(0.0, 1.0, _POINTS) ** 1.5
    removed, added = accountant.both_deltas(event, epsilons)
    return TwoWayProfile(epsilons=epsilons, forward=removed, backward=added)


def _interval(event: PoissonGaussian) -> float:
    """Return a spacing of the losses, 1 to 20 times the default, that costs less than 1e-4 of ε.

    The default is slow where a step has large losses. A grid h apart adds about h²/6 to the
    variance of a step's loss. The result is an upper bound on any grid.
    """
    return min(max(0.02 * step_deviation(event), interval_for([event])), 2e-3)

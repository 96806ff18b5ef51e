"""Accountant `pld`: privacy loss distributions (Doroshenko et al. 2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raydp.privacy.accounting.accountant import Accountant, AccountantError, describe, merged
from raydp.privacy.accounting.events import PoissonGaussian

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_LARGEST_INTERVAL = 1e-4
_RELATIVE_INTERVAL = 0.1
"""Default spacing of the grid, at most, in standard deviations of a step's loss."""
_REFINED_STEP_CELLS, _REFINED_TOTAL_CELLS = 1_000_000, 2_000_000
"""Cells of a grid that is finer than `_LARGEST_INTERVAL`, at most: of one step, and in all."""


class PLDAccountant(Accountant):
    """Privacy loss distributions, discretised pessimistically by Connect-the-Dots.

    This is the reference accountant.

    Both directions of adjacency are composed, and the larger ε is returned. dp_accounting composes
    by a double precision FFT, whose rounding makes the plain library optimistic at small δ (by
    1e-11 in δ at T = 100,000). So ε is taken at δ - error, with error = (128 groups + 4 T) 2^-53.
    This error is more than twice the largest deficit against an extended precision FFT over q
    1e-6..1, T 1..1e5.

    The grid adds up to interval²/6 to the variance s² of one step's loss, with s² = q² (e^(1/σ²) -
    1) (Bu et al. 2020, Corollary 5.4). The default interval is 1e-4, or 0.1 s where that is
    smaller, which costs below 0.1 % in σ. Grids of more than a million cells a step are not refined
    further: then the noise is larger than needed, never too small.

    Args:
        interval: spacing of the grid of privacy losses; by default chosen for the events.

    Source: Doroshenko et al. 2022 (Algorithm 1).
    """

    name = "pld"
    distribution = "dp-accounting"
    largest_excess = 1e-3
    max_step_cells = 4_000_000
    max_total_cells = 30_000_000

    def __init__(self, interval: float | None = None) -> None:
        self.interval = interval

    def deltas(self, event: PoissonGaussian, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return [k] upper bounds on δ at [k] ascending epsilons >= 0, rounding error included.

        Raises:
            AccountantError: as for epsilon.
        """
        bounds: NDArray[np.float64] = np.maximum(*self.both_deltas(event, epsilons))
        return bounds

    def both_deltas(
        self, event: PoissonGaussian, epsilons: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return `deltas` if an example is removed, and if one is added.

        Raises:
            AccountantError: as for epsilon.
        """
        events = merged([event])
        error = rounding_error(events)
        # Up to 10^7 terms are summed one by one, with a relative error of at most 1e-9.
        removed, added = (
            np.minimum(np.maximum(_deltas(pmf, epsilons), 0.0) * (1 + 1e-9) + error, 1.0)
            for pmf in _directions(self._composed(events))
        )
        return removed, added

    def smallest_delta(self, event: PoissonGaussian) -> float:
        """Return a δ far enough above the composition's rounding error for ε to be known."""
        return 4 * rounding_error([event])

    def check(self, events: Sequence[PoissonGaussian], deltas: Sequence[float]) -> None:
        """Raise AccountantError if rounding would decide ε, or a grid would not fit into memory."""
        error = rounding_error(events)
        if min(deltas, default=1.0) <= 2 * error:
            raise AccountantError(
                f"delta must be > {2 * error:.1e} for accountant 'pld' at "
                f"{sum(e.num_steps for e in events)} steps, got {min(deltas)}. Below it double "
                "precision decides; use a larger delta or accountant 'rdp'."
            )
        for event in events:
            self._check_size(event, self.interval or interval_for(events))

    def _bounds(self, events: Sequence[PoissonGaussian], deltas: Sequence[float]) -> list[float]:
        self.check(events, deltas)
        error = rounding_error(events)
        # The guarantee is for both directions of adjacency, so the larger ε counts. The rounding
        # error is paid for by a smaller δ.
        parts = _directions(self._composed(events))
        both = [_epsilons(pmf, [delta - error for delta in deltas]) for pmf in parts]
        return [max(epsilons) for epsilons in zip(*both, strict=True)]

    def _composed(self, events: Sequence[PoissonGaussian]) -> PrivacyLossDistribution:
        """Return the composed privacy loss distribution."""
        interval = self.interval or interval_for(events)
        for event in events:
            self._check_size(event, interval)
        return _composition(tuple(events), interval)

    def _check_size(self, event: PoissonGaussian, interval: float) -> None:
        """Raise AccountantError if the event's grids need more than a few gigabytes of memory."""
        if (
            _reach(event) / interval > self.max_step_cells
            or 16 * _spread(event) / interval > self.max_total_cells
        ):
            raise AccountantError(
                f"noise_multiplier must be larger for accountant 'pld', got {describe([event])}. "
                f"Its grid of losses, {interval:.2g} apart, is limited to {self.max_step_cells:,} "
                f"cells a step and {self.max_total_cells:,} in all. Use accountant 'rdp'."
            )


def interval_for(events: Sequence[PoissonGaussian]) -> float:
    """Return the default spacing of the losses for composed events (see PLDAccountant)."""
    # The spacing follows the mean variance of a step, as errors of rounding add up over the steps.
    steps = sum(event.num_steps for event in events)
    variance = sum(event.num_steps * step_deviation(event) ** 2 for event in events) / steps
    affordable = max(
        max(_reach(event) / _REFINED_STEP_CELLS, 16 * _spread(event) / _REFINED_TOTAL_CELLS)
        for event in events
    )
    return min(_LARGEST_INTERVAL, max(_RELATIVE_INTERVAL * math.sqrt(variance), affordable))


def step_deviation(event: PoissonGaussian) -> float:
    """Return the std q sqrt(e^(1/σ²) - 1) of one step's loss (Bu et al. 2020, Corollary 5.4)."""
    # The cap keeps exp from overflowing at a tiny σ.
    return event.sample_rate * math.sqrt(math.expm1(min(event.noise_multiplier**-2, 20.0)))


def _reach(event: PoissonGaussian) -> float:
    """Return the largest loss of a step that the library keeps: it cuts at e^-50, 10 std."""
    return 10 / event.noise_multiplier + 1 / (2 * event.noise_multiplier**2)


def _spread(event: PoissonGaussian) -> float:
    """Return a bound on the standard deviation of all steps' losses together."""
    precision = event.noise_multiplier**-2
    return math.sqrt(event.num_steps * event.sample_rate * (precision + precision**2 / 4))


def _directions(pld: PrivacyLossDistribution) -> tuple[PLDPmf, PLDPmf]:
    """Return the distributions of the loss if an example is removed, and if one is added."""
    return pld._pmf_remove, pld._pmf_remove if pld._symmetric else pld._pmf_add


@dataclass(frozen=True, kw_only=True)
class _Curve:
    """The losses of a distribution above a bound, descending, with the sums that its curve needs.

    Attributes:
        losses: [k] the losses.
        upper: [k + 1] probability of an infinite loss or one of the first i losses.
        lower: [k + 1] the sum of probability times exp(-loss) over the first i losses.
    """

    losses: NDArray[np.float64]
    upper: NDArray[np.float64]
    lower: NDArray[np.float64]

    @classmethod
    def of(cls, pmf: PLDPmf, above: float) -> _Curve:
        """Compute the sums in the library's order, but without its Python loop over all losses."""
        dense = pmf.to_dense_pmf()
        losses = (np.arange(dense.size) + dense._lower_loss) * dense._discretization
        # Losses at or below the bound add nothing to δ at any ε above it.
        first = int(np.searchsorted(losses, above, side="right"))
        # Descending losses: the sums up to i are then tail sums, which have the smallest rounding
        # error.
        losses, probabilities = losses[first:][::-1], np.asarray(dense._probs)[first:][::-1]
        return cls(
            losses=losses,
            upper=np.cumsum(np.concatenate([[dense._infinity_mass], probabilities])),
            lower=np.cumsum(np.concatenate([[0.0], probabilities * np.exp(-losses)])),
        )

    def deltas(
        self, epsilons: NDArray[np.float64], counts: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return [k] δ at [k] epsilons. `counts` is the number of losses above each epsilon."""
        with np.errstate(over="ignore", invalid="ignore"):
            subtracted = np.exp(epsilons) * self.lower[counts]
        # Above ε = 709 exp(ε) overflows. Without the subtracted term, δ is still an upper bound.
        deltas: NDArray[np.float64] = self.upper[counts] - np.where(
            np.isfinite(subtracted), subtracted, 0.0
        )
        return deltas


def _deltas(pmf: PLDPmf, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return [k] δ at [k] epsilons >= 0 in ascending order.

    Source: Doroshenko et al. 2022: δ(ε) is the probability of an infinite loss plus the sum of (1 -
    exp(ε - loss)) over the losses above ε.
    """
    # Only losses above the smallest ε can matter.
    curve = _Curve.of(pmf, float(epsilons[0]))
    counts = len(curve.losses) - np.searchsorted(curve.losses[::-1], epsilons, side="right")
    return curve.deltas(epsilons, counts)


def _epsilons(pmf: PLDPmf, deltas: Sequence[float]) -> list[float]:
    """Return the smallest ε >= 0 at each δ.

    Between neighbouring losses δ(ε) is linear in exp(ε), and is solved.
    """
    curve = _Curve.of(pmf, 0.0)
    at_losses = curve.deltas(curve.losses, np.arange(len(curve.losses)))
    epsilons = []
    for delta in deltas:
        # An infinite loss that is likelier than δ leaves no finite ε.
        if curve.upper[0] > delta:
            epsilons.append(math.inf)
            continue
        # Find the first loss at which the curve reaches δ. The solution lies in the piece that ends
        # there.
        reached = np.flatnonzero(at_losses >= delta)
        count = int(reached[0]) if len(reached) else len(curve.losses)
        # On this piece δ(ε) = upper - exp(ε) · lower, which is solved for ε.
        upper, lower = float(curve.upper[count]) - delta, float(curve.lower[count])
        if lower == 0.0 <= upper and count > 0:  # exp(-loss) is rounded to 0
            epsilons.append(float(curve.losses[count - 1]))
        elif upper == 0.0 and len(reached):  # δ is met exactly from this loss on
            epsilons.append(float(curve.losses[count]))
        else:
            epsilons.append(math.log(upper / lower) if upper > lower else 0.0)
    return epsilons


def rounding_error(events: Sequence[PoissonGaussian]) -> float:
    """Return the allowance, in δ, for rounding in the FFT composition (see PLDAccountant)."""
    return float((128 * len(events) + 4 * sum(event.num_steps for event in events)) * 2.0**-53)


@lru_cache(maxsize=1)
def _composition(events: tuple[PoissonGaussian, ...], interval: float) -> PrivacyLossDistribution:
    """Return the composed privacy loss distribution.

    The last result is kept, because a guarantee asks for ε, for μ and for an attacker's bounds of
    the same events.
    """
    # The library takes half a second to import, and an ε in the cache does without it.
    from raydp.privacy.accounting.pld_step import of_many_steps, one_step

    # Convolve one event's step with itself, then the events with each other.
    total: PrivacyLossDistribution | None = None
    for event in events:
        step = one_step(event, interval)
        run = of_many_steps(step, event.num_steps).self_compose(event.num_steps)
        total = run if total is None else total.compose(run)
    return total

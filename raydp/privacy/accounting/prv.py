"""Accountant `prv`: privacy random variables (Gopi et al. 2021)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from raydp.privacy.accounting.accountant import Accountant, AccountantError, describe
from raydp.privacy.accounting.events import PoissonGaussian, PrivacyTarget
from raydp.privacy.accounting.pld import PLDAccountant

if TYPE_CHECKING:
    from prv_accountant import PoissonSubsampledGaussianMechanism


class PRVAccountant(Accountant):
    """Privacy random variables: the library's upper estimate of ε.

    eps_error is 0.01; it is 1 % of ε if ε is below 1, and up to 0.05 if the library fails at 0.01.
    For different events together it is at least 0.1 % of the largest loss on the grid: a finer grid
    of a large joint ε takes minutes. delta_error is δ/1000, as in the library's own
    find_noise_multiplier. The upper estimate lies eps_error above the central one, so σ is larger
    than with 'pld': by 0.02 to 0.3 % at ε >= 1, by about 1 % below. The library bounds the
    direction in which a record is removed; 'pld' takes the worse direction.

    Source: Gopi, Lee and Wutschitz 2021 (Theorem 5.5, Remark 5.6).
    """

    name = "prv"
    distribution = "prv-accountant"
    largest_excess = 0.03
    eps_error = 0.01
    delta_error_ratio = 1e-3
    joint_error_ratio = 1e-3
    max_points = 12_000_000

    def tight_target(self, target: PrivacyTarget) -> PrivacyTarget:
        """Return ε less eps_error, and δ less delta_error."""
        if target.epsilon >= 1:
            epsilon = target.epsilon - self.eps_error
        else:
            epsilon = max(
                (target.epsilon - self.eps_error**2) / (1 + self.eps_error), target.epsilon / 2
            )
        return PrivacyTarget(epsilon=epsilon, delta=target.delta * (1 - self.delta_error_ratio))

    def _bounds(self, events: Sequence[PoissonGaussian], deltas: Sequence[float]) -> list[float]:
        """Return upper estimates at all δ; a small ε is estimated again, with a smaller error."""
        return [
            upper if upper >= 1 else self._uppers(events, [delta], self.eps_error * upper)[0]
            for delta, upper in zip(deltas, self._first_uppers(events, deltas), strict=True)
        ]

    def _first_uppers(
        self, events: Sequence[PoissonGaussian], deltas: Sequence[float]
    ) -> list[float]:
        """Return upper estimates with eps_error: from one composition, or else one for each δ."""
        # One composition serves all δ. If it fails for the smallest δ, the others still have an
        # answer.
        if len(deltas) > 1:
            with suppress(AccountantError):
                return self._uppers(events, deltas, self.eps_error)
        return [self._first_upper(events, delta) for delta in deltas]

    def _first_upper(self, events: Sequence[PoissonGaussian], delta: float) -> float:
        """Return the upper estimate with eps_error, or with the next coarser error if it fails.

        The library refuses some runs with few steps at small errors ("Discrete mean differs from
        continuous mean"). A coarser estimate is a larger ε, so it never promises more privacy.
        """
        for eps_error in (self.eps_error, 2 * self.eps_error):
            try:
                return self._uppers(events, [delta], eps_error)[0]
            except AccountantError:
                continue
        return self._uppers(events, [delta], 5 * self.eps_error)[0]

    def _uppers(
        self, events: Sequence[PoissonGaussian], deltas: Sequence[float], eps_error: float
    ) -> list[float]:
        """Return the library's upper estimates from one composition.

        The composition's δ error is a thousandth of the smallest δ; each δ allows for a thousandth
        of its own. Errors of the library become an AccountantError that says what was asked.
        """
        import prv_accountant.accountant

        prvs = [_mechanism(event.sample_rate, event.noise_multiplier) for event in events]
        steps = [event.num_steps for event in events]
        delta_error = min(deltas) * self.delta_error_ratio
        try:
            # Choose the grid, and refuse it if it is too large.
            half_width = prv_accountant.accountant.compute_safe_domain_size(
                prvs, steps, eps_error=eps_error, delta_error=delta_error
            )
            # Different events have a wide joint loss: an absolute error of 0.01 would need too fine
            # a grid.
            if len(events) > 1:
                eps_error = max(eps_error, self.joint_error_ratio * float(half_width))
            self._check_size(
                float(half_width), sum(steps), eps_error, delta_error, _instead(events, deltas)
            )
            with warnings.catch_warnings():
                # The library warns that eps_max is an assumption. Here it is the library's own
                # bound, computed once.
                warnings.simplefilter("ignore", UserWarning)
                accountant = prv_accountant.PRVAccountant(
                    prvs,
                    eps_error,
                    delta_error,
                    max_self_compositions=steps,
                    eps_max=float(half_width),
                )
            # Compose, and read ε at each δ.
            whole = accountant.compute_composition(steps)
            ratio = self.delta_error_ratio
            uppers = [
                float(whole.compute_epsilon(delta, delta * ratio, eps_error)[2]) for delta in deltas
            ]
        except AccountantError:
            raise
        except (RuntimeError, ArithmeticError, ValueError) as error:
            raise AccountantError(
                f"accountant 'prv' cannot bound {describe(events)} at delta {min(deltas):.3g}, "
                f"eps_error {eps_error:.2g}: prv_accountant says {str(error)!r}. "
                f"{_instead(events, deltas)}"
            ) from error
        # Comparisons with NaN are false, so NaN could pass for an ε below a target.
        for delta, upper in zip(deltas, uppers, strict=True):
            if math.isnan(upper):
                raise AccountantError(
                    f"accountant 'prv' returned NaN for {describe(events)} at delta {delta:.3g}. "
                    f"{_instead(events, deltas)}"
                )
        return [max(upper, 0.0) for upper in uppers]

    def _check_size(
        self, half_width: float, num_steps: int, eps_error: float, delta_error: float, remedy: str
    ) -> None:
        """Refuse a grid of more than a few gigabytes (mesh size: Gopi et al. 2021, Theorem 5.5)."""
        mesh = eps_error / math.sqrt(num_steps / 2 * math.log(12 / delta_error))
        if not 2 * half_width / mesh <= self.max_points:
            raise AccountantError(
                f"accountant 'prv' is limited to {self.max_points:,} grid points, got "
                f"{2 * half_width / mesh:.3g} ({num_steps} steps, eps_error {eps_error:.2g}, "
                f"losses up to {half_width:.3g}). {remedy}"
            )


def _instead(events: Sequence[PoissonGaussian], deltas: Sequence[float]) -> str:
    """Return the remedy: 'pld', or 'rdp' where 'pld' has no answer either."""
    try:
        PLDAccountant().check(events, deltas)
    except AccountantError:
        return "Use accountant 'rdp'."
    return "Use accountant 'pld'."


@lru_cache(maxsize=8)
def _mechanism(sample_rate: float, noise_multiplier: float) -> PoissonSubsampledGaussianMechanism:
    """Return the library's mechanism of one step, with its Rényi divergences cached."""
    from prv_accountant import PoissonSubsampledGaussianMechanism

    mechanism = PoissonSubsampledGaussianMechanism(
        sampling_probability=sample_rate, noise_multiplier=noise_multiplier
    )
    # The library asks for the same divergences at every δ and every error.
    mechanism.rdp = cache(mechanism.rdp)
    return mechanism

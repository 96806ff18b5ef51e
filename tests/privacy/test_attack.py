"""Bounds on membership inference, against the Gaussian's exact trade-off and against a simulated
attack."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from raydp.privacy import NonPrivateEvent, PoissonGaussian
from raydp.privacy.accounting.attack import attack_bounds

RATES = (1e-3, 1e-2, 1e-1, 0.5)


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_full_batch_gives_the_gaussian_trade_off(mu: float) -> None:
    bounds = attack_bounds(
        PoissonGaussian(sample_rate=1.0, noise_multiplier=1 / mu, num_steps=1), RATES
    )
    exact = norm.cdf(norm.ppf(RATES) + mu)  # Dong, Roth and Su 2022, equation 6
    powers = np.array(bounds.true_positive_rates)
    assert (powers >= exact - 1e-12).all()
    assert powers == pytest.approx(exact, rel=2e-3)  # grid of ε, discretised losses
    assert bounds.advantage == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-3)
    assert bounds.advantage >= 2 * norm.cdf(mu / 2) - 1


def test_the_best_attack_on_a_subsampled_gaussian_stays_below() -> None:
    """One step: the likelihood ratio test is known, its rates are computed by quadrature."""
    q, sigma = 0.3, 0.7
    event = PoissonGaussian(sample_rate=q, noise_multiplier=sigma, num_steps=1)
    thresholds = np.linspace(-6, 8, 200_001)
    without = norm.sf(thresholds / sigma)
    with_record = (1 - q) * without + q * norm.sf((thresholds - 1) / sigma)
    bounds = attack_bounds(event, RATES)
    for rate, bound in zip(RATES, bounds.true_positive_rates, strict=True):
        adding = np.interp(rate, without[::-1], with_record[::-1])
        removing = 1 - np.interp(
            1 - rate, with_record[::-1], without[::-1]
        )  # reject for small outputs
        assert max(adding, removing) <= bound + 1e-9
        assert bound == pytest.approx(max(adding, removing), rel=0.02), (
            "the bound is that of the best attack"
        )
    assert bounds.advantage == pytest.approx(np.max(with_record - without), rel=1e-3)


def test_no_guarantee_bounds_nothing() -> None:
    bounds = attack_bounds(NonPrivateEvent(), RATES)
    assert bounds.advantage == 1.0
    assert bounds.true_positive_rates == (1.0,) * len(RATES)


def test_a_long_run_at_epsilon_eight_is_bounded_below_certainty() -> None:
    bounds = attack_bounds(PoissonGaussian(sample_rate=0.1, noise_multiplier=1.0, num_steps=200))
    powers = bounds.true_positive_rates
    assert list(powers) == sorted(powers)
    assert all(
        rate < power <= 1 for rate, power in zip(bounds.false_positive_rates, powers, strict=True)
    )


@pytest.mark.parametrize("rates", [(0.0,), (1.0,), (-0.1, 0.5)])
def test_rates_are_checked(rates: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="false_positive_rates must be"):
        attack_bounds(NonPrivateEvent(), rates)

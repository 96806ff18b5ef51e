"""Privacy profiles and the Gaussian curve above them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from raydp.privacy import NonPrivateEvent, PLDAccountant, PoissonGaussian, PrivacyTarget
from raydp.privacy.accounting import gdp
from raydp.privacy.accounting.gdp import gaussian_deltas
from raydp.privacy.accounting.profile import dominating_mu
from raydp.testing.accountants import gaussian_epsilon

EVENT = PoissonGaussian(sample_rate=0.0228, noise_multiplier=1.43, num_steps=500)
DELTAS = [1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 0.1]


def test_mu_dominates_the_whole_profile_and_one_percent_less_does_not() -> None:
    mu, reason = dominating_mu(EVENT)
    assert mu is not None
    assert reason is None
    pld = PLDAccountant()
    fine = np.geomspace(1e-10, 0.3, 60).tolist()
    epsilons = pld.epsilons(EVENT, fine)
    assert all(e <= gaussian_epsilon(mu, d) for e, d in zip(epsilons, fine, strict=True) if e > 0)
    lower = [
        gaussian_epsilon(0.99 * mu, d) if d < math.erf(0.99 * mu / 8**0.5) else 0.0 for d in fine
    ]
    assert any(e > low for e, low in zip(epsilons, lower, strict=True)), "mu is not the smallest"


def test_the_central_limits_mu_is_not_a_bound() -> None:
    """Bu et al. 2020, Corollary 5.4: an approximation that lies below the profile at small δ."""
    mu = dominating_mu(EVENT)[0]
    clt = EVENT.sample_rate * math.sqrt(EVENT.num_steps * math.expm1(EVENT.noise_multiplier**-2))
    assert mu is not None
    assert clt < 0.9 * mu
    assert PLDAccountant().epsilon(EVENT, 1e-10) > gaussian_epsilon(clt, 1e-10)


@pytest.mark.parametrize(("sigma", "steps"), [(2.0, 1), (10.0, 100)])
def test_mu_of_a_gaussian_is_its_own(sigma: float, steps: int) -> None:
    """0.2 %: the grid of ε on which domination is checked."""
    mu, _ = dominating_mu(PoissonGaussian(sample_rate=1.0, noise_multiplier=sigma, num_steps=steps))
    assert mu is not None
    assert math.sqrt(steps) / sigma <= mu <= 1.002 * math.sqrt(steps) / sigma


def test_no_noise_has_no_mu() -> None:
    reason = "a run without noise has no privacy profile"
    assert dominating_mu(NonPrivateEvent()) == (None, reason)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (
            PoissonGaussian(sample_rate=0.01, noise_multiplier=2.0, num_steps=10**6),
            "not known down to delta 1e-10",
        ),
        (
            PoissonGaussian(sample_rate=0.5, noise_multiplier=0.01, num_steps=1),
            "limited to 4,000,000 cells",
        ),
        (
            PoissonGaussian(sample_rate=1e-11, noise_multiplier=1.0, num_steps=1),
            "epsilon is 0 at delta 1e-10",
        ),
        (
            PoissonGaussian(sample_rate=0.9, noise_multiplier=33.0, num_steps=100_000),
            "rounding hides",
        ),
    ],
)
def test_mu_is_refused_with_a_reason_where_domination_cannot_be_shown(
    event: PoissonGaussian, reason: str
) -> None:
    mu, why = dominating_mu(event)
    assert mu is None
    assert why is not None
    assert reason in why


@pytest.mark.parametrize("mu", [0.01, 1.0, 6.0])
def test_gaussian_curve_matches_its_inverse_computed_apart(mu: float) -> None:
    for delta in (1e-12, 1e-6, 1e-3):
        epsilon = np.array([gaussian_epsilon(mu, delta)])
        assert gaussian_deltas(mu, epsilon)[0] == pytest.approx(
            delta, rel=1e-3
        )  # brentq on a plain difference


@pytest.mark.parametrize("mu", [0.05, 1.0, 6.0])
def test_the_epsilon_of_a_gaussian_equals_one_computed_apart(mu: float) -> None:
    for delta in (1e-6, 1e-3):
        assert gdp.gaussian_epsilon(mu, delta) == pytest.approx(
            gaussian_epsilon(mu, delta), rel=1e-4
        )
    assert gdp.gaussian_epsilon(mu, 0.999) == 0
    assert gdp.gaussian_epsilon(0.0, 1e-6) == 0
    assert gdp.gaussian_epsilon(
        gdp.gaussian_mu(PrivacyTarget(epsilon=4, delta=1e-5)), 1e-5
    ) == pytest.approx(4)

"""The privacy profile of one run by the accountant that is asked for."""

from __future__ import annotations

import math

import pytest

from raydp.extensions.calculator.one_run import profile
from raydp.privacy import NonPrivateEvent, PoissonGaussian

EVENT = PoissonGaussian(sample_rate=0.0228, noise_multiplier=1.43, num_steps=500)


def test_profile_reports_the_accountants_own_values() -> None:
    result = profile(EVENT, [1e-3, 1e-6], "rdp")
    assert set(result) == {"deltas", "epsilons", "gdp_mu", "gdp_mu_reason", "accountant"}
    assert result["deltas"] == [1e-3, 1e-6]
    assert result["accountant"] == "rdp"
    assert result["epsilons"][1] > result["epsilons"][0] > 0
    assert result["gdp_mu_reason"] is None


def test_no_noise_has_no_mu_and_an_infinite_profile() -> None:
    result = profile(NonPrivateEvent(), [1e-3, 1e-6], "pld")
    assert result["epsilons"] == [math.inf, math.inf]
    assert result["gdp_mu"] is None
    assert result["gdp_mu_reason"] == "a run without noise has no privacy profile"


@pytest.mark.parametrize("deltas", [[], [0.0], [1e-5, 1.5]])
def test_deltas_are_validated(deltas: list[float]) -> None:
    with pytest.raises(ValueError, match=r"deltas must"):
        profile(EVENT, deltas, "pld")

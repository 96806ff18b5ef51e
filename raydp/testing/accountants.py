"""The suite of accountants."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from raydp.privacy import Accountant, NonPrivateEvent, PoissonGaussian

TYPICAL = PoissonGaussian(sample_rate=0.05, noise_multiplier=1.2, num_steps=60)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε of one Gaussian mechanism, from Balle and Wang 2018 (Theorem 8), written apart from the
    code under test."""

    def excess(epsilon: float) -> float:
        return float(
            norm.cdf(mu / 2 - epsilon / mu)
            - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
            - delta
        )

    return float(brentq(excess, 0.0, 200.0, xtol=1e-12))


class AccountantConformance:
    """Inherit and set `accountant` and `excess`, how far above the exact ε (relative) its method
    may be."""

    accountant: Accountant
    excess: float
    # relative; how far ε of one composition for several δ may be from that of one for each
    mesh_effect: float = 0.0

    @pytest.mark.parametrize(
        ("sigma", "delta"), [(0.5, 1e-5), (1.0, 1e-3), (3.0, 1e-6), (20.0, 1e-5)]
    )
    def test_bounds_one_gaussian_closely(self, sigma: float, delta: float) -> None:
        event = PoissonGaussian(sample_rate=1.0, noise_multiplier=sigma, num_steps=1)
        exact = gaussian_epsilon(1 / sigma, delta)
        assert exact <= self.accountant.epsilon(event, delta) <= exact * (1 + self.excess)

    def test_full_batches_compose_to_one_gaussian(self) -> None:
        event = PoissonGaussian(sample_rate=1.0, noise_multiplier=10.0, num_steps=100)
        exact = gaussian_epsilon(1.0, 1e-5)
        assert exact <= self.accountant.epsilon(event, 1e-5) <= exact * (1 + self.excess)

    def test_one_subsampled_step_is_above_its_closed_form(self) -> None:
        """δ(ε) of one Poisson step is q δ_Gauss(ln(1 + (e^ε - 1)/q)) (Balle, Barthe and Gaboardi
        2018, Theorem 8)."""
        q, sigma, delta = 0.1, 0.8, 1e-5
        exact = math.log1p(q * math.expm1(gaussian_epsilon(1 / sigma, delta / q)))
        event = PoissonGaussian(sample_rate=q, noise_multiplier=sigma, num_steps=1)
        assert exact <= self.accountant.epsilon(event, delta) <= exact * (1 + 4 * self.excess)

    @pytest.mark.parametrize(
        ("field", "values"),
        [
            ("noise_multiplier", (3.0, 1.5, 1.2, 0.9)),
            ("sample_rate", (0.01, 0.04, 0.05, 0.08)),
            ("num_steps", (20, 50, 60, 200)),
        ],
    )
    def test_epsilon_grows_as_noise_falls_and_as_sampling_and_steps_rise(
        self, field: str, values: tuple[Any, ...]
    ) -> None:
        epsilons = [
            self.accountant.epsilon(dataclasses.replace(TYPICAL, **{field: v}), 1e-5)
            for v in values
        ]
        assert (np.diff(epsilons) > 0).all()

    def test_epsilon_falls_with_delta_and_many_deltas_agree_with_one(self) -> None:
        deltas = [1e-7, 1e-5, 1e-3]
        epsilons = self.accountant.epsilons(TYPICAL, deltas)
        alone = [self.accountant.epsilon(TYPICAL, delta) for delta in deltas]
        assert epsilons == pytest.approx(alone, rel=self.mesh_effect, abs=0)
        assert (np.diff(epsilons) < 0).all()

    def test_composition_of_equal_runs_is_one_longer_run(self) -> None:
        longer = dataclasses.replace(TYPICAL, num_steps=3 * TYPICAL.num_steps)
        assert self.accountant.composed_epsilons([TYPICAL] * 3, [1e-5]) == [
            self.accountant.epsilon(longer, 1e-5)
        ]

    def test_composition_of_nearly_equal_runs_is_nearly_one_longer_run(self) -> None:
        """The path for different events; σ differs by 1e-9, so only the method's own numerics may
        show (1e-3)."""
        near = dataclasses.replace(TYPICAL, noise_multiplier=TYPICAL.noise_multiplier * (1 + 1e-9))
        longer = dataclasses.replace(TYPICAL, num_steps=2 * TYPICAL.num_steps)
        (composed,) = self.accountant.composed_epsilons([TYPICAL, near], [1e-5])
        assert composed == pytest.approx(self.accountant.epsilon(longer, 1e-5), rel=1e-3)

    def test_composition_of_different_runs_lies_between_the_largest_and_the_sum(self) -> None:
        other = PoissonGaussian(sample_rate=0.2, noise_multiplier=4.0, num_steps=30)
        alone = [self.accountant.epsilon(event, 0.5e-5) for event in (TYPICAL, other)]
        (composed,) = self.accountant.composed_epsilons([TYPICAL, other], [1e-5])
        assert (
            max(self.accountant.epsilon(e, 1e-5) for e in (TYPICAL, other)) < composed < sum(alone)
        )

    def test_no_noise_is_infinite_alone_and_among_others(self) -> None:
        assert self.accountant.epsilons(NonPrivateEvent(), [1e-5, 1e-3]) == [math.inf, math.inf]
        assert self.accountant.composed_epsilons([TYPICAL, NonPrivateEvent()], [1e-5]) == [math.inf]

    @pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, float("nan")])
    def test_refuses_a_delta_out_of_range(self, delta: float) -> None:
        with pytest.raises(ValueError, match=r"delta must be > 0 and < 1"):
            self.accountant.epsilon(TYPICAL, delta)

    def test_names_its_library_and_version(self) -> None:
        library, version = self.accountant.version.split(" ")
        assert library == self.accountant.distribution
        assert version[0].isdigit()

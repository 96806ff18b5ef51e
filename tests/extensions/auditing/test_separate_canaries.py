"""Bounds from canaries with independent outcomes: against closed forms and simulated mechanisms of
known ε."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from raydp.extensions.auditing.separate_canaries import (
    Outcomes,
    _power_fn,
    _refutes,
    separate_bound,
    separate_p_value,
)
from raydp.privacy import PLDAccountant, PoissonGaussian

DELTA = 1e-4
SEVERAL_STEPS = PoissonGaussian(sample_rate=0.1, noise_multiplier=1.0, num_steps=20)


def outcomes_of(
    event: PoissonGaussian, noise_multiplier: float, num_canaries: int, seed: int
) -> Outcomes:
    """Guesses on canaries of a mechanism with this noise, by likelihood ratios above the ratios of
    most controls."""
    rng = np.random.default_rng(seed)
    included = rng.random(num_canaries) < 0.5
    inside, q, size = (
        np.append(included, np.zeros(1000)),
        event.sample_rate,
        (event.num_steps, num_canaries + 1000),
    )
    seen = (rng.random(size) < q) * inside + noise_multiplier * rng.standard_normal(size)
    ratios = np.log1p(q * np.expm1((seen - 0.5) / noise_multiplier**2)).sum(axis=0)
    guessed = ratios[:num_canaries] > np.quantile(ratios[num_canaries:], 0.8)
    return Outcomes(
        num_in=int(included.sum()),
        num_out=int((~included).sum()),
        guessed_in=int((guessed & included).sum()),
        wrongly_in=int((guessed & ~included).sum()),
    )


@pytest.mark.parametrize("rate", [1e-3, 0.02, 0.3, 0.5, 0.9])
def test_the_power_of_one_gaussian_is_the_closed_form(rate: float) -> None:
    """Φ(Φ^-1(x) + 1/σ).

    The grid of ε may only raise it, by 1e-4 of it at most; the coarse losses by as much.
    """
    event = PoissonGaussian(sample_rate=1.0, noise_multiplier=1.3, num_steps=1)
    exact = stats.norm.cdf(stats.norm.ppf(rate) + 1 / 1.3)
    assert exact <= _power_fn(event)(rate) <= exact * (1 + 2e-4)


def test_no_simulated_test_has_more_power() -> None:
    """The likelihood ratio test of the simulated mechanism meets the power within 5 standard
    errors."""
    found = outcomes_of(SEVERAL_STEPS, 1.0, 40_000, seed=0)
    rate, power = found.wrongly_in / found.num_out, found.guessed_in / found.num_in
    error = math.sqrt(power * (1 - power) / found.num_in + rate * (1 - rate) / found.num_out)
    assert abs(_power_fn(SEVERAL_STEPS)(rate) - power) < 5 * error


def test_the_bound_is_at_most_epsilon_on_the_correct_mechanism() -> None:
    """40 runs, of which 5 % may be above ε at this confidence: 7 or more have a probability below
    0.004."""
    found = [outcomes_of(SEVERAL_STEPS, 1.0, 1000, seed) for seed in range(40)]
    refuted = [outcomes for outcomes in found if _refutes(outcomes, _power_fn(SEVERAL_STEPS), 0.05)]
    assert len(refuted) <= 6
    epsilon = PLDAccountant().epsilon(SEVERAL_STEPS, DELTA)
    sound = next(outcomes for outcomes in found if outcomes not in refuted)
    assert 0.3 * epsilon < separate_bound(sound, SEVERAL_STEPS, DELTA) < epsilon


@pytest.mark.slow
def test_more_canaries_come_closer() -> None:
    epsilon = PLDAccountant().epsilon(SEVERAL_STEPS, DELTA)
    many = separate_bound(outcomes_of(SEVERAL_STEPS, 1.0, 20_000, seed=1), SEVERAL_STEPS, DELTA)
    assert 0.8 * epsilon < many < epsilon


@pytest.mark.slow
def test_half_of_the_noise_is_found() -> None:
    stated = PLDAccountant().epsilon(SEVERAL_STEPS, DELTA)
    faulty = outcomes_of(SEVERAL_STEPS, 0.5, 1000, seed=1)
    assert separate_bound(faulty, SEVERAL_STEPS, DELTA) > stated
    assert separate_p_value(faulty, SEVERAL_STEPS) < 1e-3


@pytest.mark.slow
def test_the_p_value_is_the_level_at_which_the_bound_passes_epsilon() -> None:
    outcomes = outcomes_of(SEVERAL_STEPS, 0.75, 1000, seed=2)
    stated, p = (
        PLDAccountant().epsilon(SEVERAL_STEPS, DELTA),
        separate_p_value(outcomes, SEVERAL_STEPS),
    )
    assert 1e-12 < p < 0.5
    above, below = (
        separate_bound(outcomes, SEVERAL_STEPS, DELTA, 1 - level) for level in (p * 1.3, p / 1.3)
    )
    assert below < stated * 1.002
    assert above > below


def test_both_rates_pay_for_their_error() -> None:
    """At the p-value, the limits of both rates of an exact two-sided interval lie on the curve of
    the mechanism."""
    p_value = separate_p_value(
        Outcomes(num_in=100, num_out=90, guessed_in=70, wrongly_in=20), SEVERAL_STEPS
    )
    least = stats.binomtest(70, 100).proportion_ci(1 - p_value).low
    most = stats.binomtest(20, 90).proportion_ci(1 - p_value).high
    assert 1e-6 < p_value < 1
    assert least == pytest.approx(_power_fn(SEVERAL_STEPS)(most), rel=1e-3)


def test_guesses_without_knowledge_prove_nothing() -> None:
    coins = Outcomes(num_in=500, num_out=500, guessed_in=250, wrongly_in=250)
    assert separate_bound(coins, SEVERAL_STEPS, DELTA) == 0
    assert separate_p_value(coins, SEVERAL_STEPS) == 1
    wrong = Outcomes(num_in=500, num_out=500, guessed_in=0, wrongly_in=500)
    assert separate_bound(wrong, SEVERAL_STEPS, DELTA) == 0


@pytest.mark.parametrize("counts", [(10, 10, 11, 0), (10, 10, 0, 11), (10, 10, -1, 0)])
def test_impossible_counts_are_refused(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(
        ValueError, match=r"(guessed|wrongly)_in must be at least 0 and at most 10, got .*\. Count"
    ):
        Outcomes(num_in=counts[0], num_out=counts[1], guessed_in=counts[2], wrongly_in=counts[3])

"""Weighted training and reference data: the ε of each, the effective number of examples, the bounds
on the risk."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydp.extensions.reference_data.record import data_sets_record, epsilons_of_sets
from raydp.extensions.reference_data.sets import (
    DATA_SETS,
    ROUNDING,
    WeightedSets,
    excess_risk_bounds,
)
from raydp.privacy import NonPrivateEvent, PLDAccountant, PoissonGaussian
from raydp.privacy.accounting.gdp import gaussian_epsilon
from raydp.training.noise.lattice import LATTICE_SHARE, NOISE_WIDENING
from tests.marks import slow_after

DELTA = 1e-5
SETS = st.builds(
    WeightedSets,
    weight=st.floats(0, 1, width=32),
    num_training=st.integers(1, 10**6),
    num_reference=st.integers(1, 10**6),
)


def epsilons(sets: WeightedSets, event: PoissonGaussian) -> dict[str, float]:
    found = epsilons_of_sets(sets, event, PLDAccountant().epsilon(event, DELTA), DELTA, "pld")
    return {name: float(found[name].epsilon or 0.0) for name in DATA_SETS}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weight", "counts"), slow_after(1, [(0.2, (700, 700)), (0.9, (700, 700)), (0.3, (900, 100))])
)
def test_each_sets_epsilon_is_that_of_its_own_sensitivity(
    weight: float, counts: tuple[int, int]
) -> None:
    """The library is told the sensitivity of a sum in which an example of the set weighs (1-w)
    N/N_T or w N/N_R, and noise of the larger weight: not our noise multiplier. Our rounding
    allowance makes the smaller one larger, by 1 % at a share of 0.02."""
    from dp_accounting.pld import privacy_loss_distribution

    sets = WeightedSets(weight=weight, num_training=counts[0], num_reference=counts[1])
    event = PoissonGaussian(sample_rate=0.1, noise_multiplier=1.0, num_steps=50)
    total, found = sum(counts), epsilons(sets, event)
    own = {"training": (1 - weight) * total / counts[0], "reference": weight * total / counts[1]}
    for name, sensitivity in own.items():
        one = privacy_loss_distribution.from_gaussian_mechanism(
            event.noise_multiplier * max(own.values()), sensitivity=sensitivity, sampling_prob=0.1,
            value_discretization_interval=1e-4,
        )  # fmt: skip
        exact = one.self_compose(event.num_steps).get_epsilon_for_delta(DELTA)
        assert exact * (1 - 1e-3) <= found[name] <= exact * 1.02
    assert max(found.values()) == PLDAccountant().epsilon(event, DELTA)


def test_full_batches_have_the_closed_form_of_the_gaussian() -> None:
    """One Gaussian mechanism each, with μ = sqrt(T) times the share over σ (Dong, Roth and Su
    2022)."""
    sets = WeightedSets(weight=0.25, num_training=300, num_reference=300)
    event = PoissonGaussian(sample_rate=1.0, noise_multiplier=8.0, num_steps=64)
    found = epsilons(sets, event)
    assert found["training"] == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=2e-3)
    assert found["reference"] == pytest.approx(gaussian_epsilon(1 / 3, DELTA), rel=4e-3)
    assert found["training"] / found["reference"] != pytest.approx(sets.relative_privacy, rel=0.05)


def test_the_allowance_equals_the_widening_of_the_noise() -> None:
    assert 1 + ROUNDING == NOISE_WIDENING


@given(SETS)
def test_the_sets_weights_are_those_of_the_loss(sets: WeightedSets) -> None:
    total = sets.num_training + sets.num_reference
    of_examples, shares = sets.of_examples, sets.shares
    assert of_examples["training"] * sets.num_training + of_examples[
        "reference"
    ] * sets.num_reference == (pytest.approx(total))
    assert max(shares.values()) == 1
    for name, share in shares.items():
        assert share <= of_examples[name] / sets.scale, "never above what it should be"
        assert share == pytest.approx(of_examples[name] / sets.scale, rel=2e-7, abs=1e-44)
    if 1e-3 < sets.weight < 1:
        expected = (1 - sets.weight) / sets.weight * sets.num_reference / sets.num_training
        assert sets.relative_privacy == pytest.approx(expected)


@given(SETS)
def test_the_effective_number_of_examples_gives_the_variance_of_a_weighted_mean(
    sets: WeightedSets,
) -> None:
    """Variance of a weighted mean of independent variables of variance 1: the sum of the squared
    weights."""
    own = ((1 - sets.weight) / sets.num_training, sets.weight / sets.num_reference)
    variance = sets.num_training * own[0] ** 2 + sets.num_reference * own[1] ** 2
    assert 1 / sets.effective_examples == pytest.approx(variance)
    assert sets.effective_examples <= (sets.num_training + sets.num_reference) * (1 + 1e-9)


def test_where_every_example_weighs_alike_both_sets_have_the_plain_guarantee() -> None:
    sets = WeightedSets(weight=0.25, num_training=750, num_reference=250)
    assert sets.shares == {"training": 1.0, "reference": 1.0}
    assert (sets.scale, sets.relative_privacy, sets.effective_examples) == (
        1.0,
        1.0,
        pytest.approx(1000),
    )
    event = PoissonGaussian(sample_rate=0.1, noise_multiplier=1.0, num_steps=10)
    assert sets.event_of(event, "training") == sets.event_of(event, "reference") == event


@given(SETS, st.sampled_from(["training", "reference"]))
@settings(max_examples=50)
def test_no_set_is_accounted_less_noise_than_the_run(sets: WeightedSets, name: str) -> None:
    event = PoissonGaussian(sample_rate=0.1, noise_multiplier=1.0, num_steps=10)
    own = sets.event_of(event, name)
    assert (own is None) == (sets.shares[name] == 0)
    if own is not None:
        assert (
            event.noise_multiplier
            <= own.noise_multiplier
            <= event.noise_multiplier / sets.shares[name]
        )


@pytest.mark.parametrize("weight", [1e-9, 1e-6, 1e-4, 0.01, 0.3])
@pytest.mark.parametrize("sigma", [0.3, 2.0])
def test_the_lighter_set_pays_for_the_whole_rounding_of_the_lattice(
    weight: float, sigma: float
) -> None:
    """The noise is σ c NOISE_WIDENING.

    An example moves the rounded sum by its share of c and by the rounding, which is as large for an
    example of small weight as for one of full weight.
    """
    sets = WeightedSets(weight=weight, num_training=90, num_reference=90)
    event = PoissonGaussian(sample_rate=0.1, noise_multiplier=sigma, num_steps=10)
    own, rounding = sets.event_of(event, "reference"), NOISE_WIDENING - 1
    assert own is not None
    assert own.noise_multiplier <= sigma * NOISE_WIDENING / (
        sets.shares["reference"] + rounding
    ) * (1 + 1e-12)
    assert rounding >= LATTICE_SHARE, "what the lattice adds to the sensitivity is covered"


def test_a_set_without_weight_is_not_released() -> None:
    event = PoissonGaussian(sample_rate=0.1, noise_multiplier=1.0, num_steps=10)
    record = data_sets_record(
        WeightedSets(weight=0, num_training=9, num_reference=3), event, 2.0, DELTA, "pld"
    )
    assert record.to_json()["relative_privacy"] == "inf"
    assert record.to_json()["reference"] == {"epsilon": 0.0, "noise_multiplier": None}
    assert record.to_json()["training"] == {"epsilon": 2.0, "noise_multiplier": 1.0}
    without = data_sets_record(
        WeightedSets(weight=0.5, num_training=9, num_reference=3),
        NonPrivateEvent(),
        math.inf,
        DELTA,
        "pld",
    )
    assert "training" not in without.to_json()


@pytest.mark.parametrize("weight", [0.1, 0.5, 0.95])
def test_the_bounds_hold_for_thresholds_on_a_line(weight: float) -> None:
    """x uniform, y = [x > 1/2] turned over with probability 0.2, hypotheses [x > t]: the 0-1 losses
    have VC dimension 1 on each label's side, 2 at most. The empirical minimiser's excess risk is
    0.6 |t - 1/2|, exactly."""
    sets = WeightedSets(weight=weight, num_training=300, num_reference=100)
    bounds = excess_risk_bounds(sets, vc_dimension=2, delta=0.05)
    rng, own = np.random.default_rng(0), np.repeat([(1 - weight) / 300, weight / 100], [300, 100])
    excess = []
    for _ in range(300):
        x = rng.random(400)
        y = (x > 0.5) ^ (rng.random(400) < 0.2)
        order = np.argsort(x)
        signed = np.where(y, own, -own)[order]  # moving t past x_i: a 1 is lost, a 0 is won
        best = int(np.argmin(np.concatenate([[0], np.cumsum(signed)])))
        excess.append(0.6 * abs(np.concatenate([[0], x[order]])[best] - 0.5))
    assert np.mean(np.array(excess) <= min(bounds.values())) >= 0.95
    assert bounds["printed"] < bounds["proven"]


def test_the_printed_bound_by_hand() -> None:
    """d = 4 of N = 1000, w = N_R / N: N_eff = N, γ2 = 1, 2 sqrt(0.004) sqrt(1 + ln 250) +
    sqrt(0.002 ln 40)."""
    sets = WeightedSets(weight=0.4, num_training=600, num_reference=400)
    found = excess_risk_bounds(sets, vc_dimension=4, delta=0.05)
    assert found["printed"] == pytest.approx(
        2 * 0.0632456 * math.sqrt(6.5214609) + math.sqrt(0.002 * 3.6888795)
    )
    assert found["proven"] == pytest.approx(
        math.sqrt(0.008 * (0.6931472 + 4 * 6.5214609)) + 0.0858939, rel=1e-5
    )
    heavier = excess_risk_bounds(
        WeightedSets(weight=0.9, num_training=600, num_reference=400), vc_dimension=4, delta=0.05
    )
    assert all(heavier[name] > found[name] for name in found)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: WeightedSets(weight=1.5, num_training=1, num_reference=1),
            "reference_weight must be >= 0 and <= 1",
        ),
        (
            lambda: WeightedSets(weight=0.5, num_training=1, num_reference=0),
            "must be >= 1, got 1 and 0",
        ),
        (
            lambda: excess_risk_bounds(
                WeightedSets(weight=0.5, num_training=2, num_reference=2), vc_dimension=5, delta=0.1
            ),
            "vc_dimension must be >= 1 and <= N = 4, got 5",
        ),
        (
            lambda: excess_risk_bounds(
                WeightedSets(weight=0.5, num_training=2, num_reference=2), vc_dimension=1, delta=0
            ),
            "delta must be > 0 and < 1",
        ),
    ],
)
def test_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()

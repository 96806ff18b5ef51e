"""What releases cost together: by composition, and by a filter for sweeps that follow results."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.special import logsumexp
from scipy.stats import norm

from raydp.extensions.ledger.releases import Cost, Releases, RenyiBudget
from raydp.privacy import NonPrivateEvent, PoissonGaussian

DELTA = 1e-5
ONE = PoissonGaussian(sample_rate=0.02, noise_multiplier=0.9, num_steps=60)
TWO = PoissonGaussian(sample_rate=0.05, noise_multiplier=1.4, num_steps=100)


def of(*costs: Cost, start: int = 0) -> Releases:
    """Releases of models with these costs."""
    return Releases(models={str(start + place): cost for place, cost in enumerate(costs)})


MODELS = of(ONE, ONE, TWO)


def test_a_model_counts_once_whatever_the_order() -> None:
    assert of(ONE) | of(ONE, TWO, start=1) == MODELS
    assert MODELS | of(ONE) == MODELS
    assert MODELS.num_models == 3
    assert Releases.from_json(MODELS.to_json()) == MODELS
    mixed = of(ONE, NonPrivateEvent(), (2.0, 1e-6), (1.0, 1e-6))
    assert Releases.from_json(json.loads(json.dumps(mixed.to_json()))) == mixed
    assert (mixed.num_models, mixed.unbounded, len(mixed.pairs)) == (4, 1, 2)


def test_the_joint_epsilon_is_that_of_another_library() -> None:
    other = PLDAccountant()
    for event, times in ((ONE, 2), (TWO, 1)):
        step = PoissonSampledDpEvent(event.sample_rate, GaussianDpEvent(event.noise_multiplier))
        other.compose(SelfComposedDpEvent(step, event.num_steps * times))
    epsilon = MODELS.joint(DELTA, "pld")["epsilon"]
    assert epsilon == pytest.approx(other.get_epsilon(DELTA), rel=2e-3)


def test_a_pair_adds_its_epsilon_and_takes_its_delta() -> None:
    pair = of((2.0, 4e-6), start=9)
    alone = MODELS.joint(DELTA - 4e-6, "pld")["epsilon"]
    assert (MODELS | pair).joint(DELTA, "pld")["epsilon"] == pytest.approx(2.0 + alone)
    assert pair.joint(DELTA, "pld")["epsilon"] == 2.0
    assert (MODELS | pair).joint(4e-6, "pld")["epsilon"] == math.inf, "no δ is left"
    assert of(*3 * [(2.0, 4e-6)]).joint(DELTA, "pld")["epsilon"] == math.inf
    assert Releases().joint(DELTA, "pld")["epsilon"] == 0.0


def test_a_model_without_a_guarantee_makes_all_infinite() -> None:
    mixed = MODELS | of(NonPrivateEvent(), start=9)
    assert mixed.joint(DELTA, "pld")["epsilon"] == math.inf
    assert mixed.spent(RenyiBudget(epsilon=100, delta=DELTA)) == math.inf


def by_quadrature(event: PoissonGaussian, order: float) -> float:
    """The larger Rényi divergence of the event's two directions, by numerical integration."""
    q, sigma = event.sample_rate, event.noise_multiplier
    x, step = np.linspace(-25, 45 + order, 1_000_001, retstep=True)
    ratio = np.logaddexp(math.log(1 - q), math.log(q) + (2 * x - 1) / (2 * sigma**2))
    without = norm.logpdf(x, 0, sigma)
    moments = [logsumexp(without + p * ratio) + math.log(step) for p in (order, 1 - order)]
    return event.num_steps * float(max(moments)) / (order - 1)


@pytest.mark.parametrize("epsilon", [0.1, 1, 4, 8, 20, 60])
def test_what_is_spent_is_the_divergence_by_quadrature_converted(epsilon: float) -> None:
    budget = RenyiBudget(epsilon=epsilon, delta=DELTA)
    expected = 2 * by_quadrature(ONE, budget.order) + by_quadrature(TWO, budget.order)
    assert MODELS.spent(budget) - budget.conversion == pytest.approx(expected, rel=1e-6)
    # Balle et al. 2020, Theorem 21, at half of δ.
    order = budget.order
    expected = math.log((order - 1) / order) - (math.log(DELTA / 2) + math.log(order)) / (order - 1)
    assert budget.conversion == pytest.approx(expected)


def test_the_filter_never_allows_more_than_composition_would() -> None:
    """The filter holds for more ways to choose, so it must cost more; at most 30 % here."""
    for count in (1, 5, 20):
        models = of(*count * [ONE, TWO])
        joint = models.joint(DELTA, "pld")["epsilon"]
        assert joint is not None
        assert models.spent(RenyiBudget(epsilon=joint, delta=DELTA)) > joint
        larger = RenyiBudget(epsilon=1.3 * joint, delta=DELTA)
        assert models.spent(larger) <= larger.epsilon


def test_a_chosen_pair_costs_at_least_its_renyi_divergence() -> None:
    """Randomised response of (ε, 0) has the largest divergence of all such mechanisms."""
    for epsilon in (0.1, 1.0, 5.0):
        for total in (1.0, 8.0, 40.0):
            budget = RenyiBudget(epsilon=total, delta=DELTA)
            order, p = budget.order, 1 / (1 + math.exp(-epsilon))
            exact = math.log(
                p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)
            )
            own = of((epsilon, 1e-7)).spent(budget)
            assert own - budget.conversion >= exact / (order - 1) - 1e-12 or own == 0.0
    half = of((1.0, DELTA / 2), (1.0, 1e-12))
    assert half.spent(RenyiBudget(epsilon=50, delta=DELTA)) == math.inf, "half of δ is for pairs"


def test_an_adversary_who_follows_results_keeps_within_the_budget() -> None:
    """Gaussians whose noise follows the privacy loss so far, stopped by the filter.

    The exact δ at the budget's ε is estimated over many runs; 4e-4 is its standard error.
    """
    generator, budget, count = (
        np.random.default_rng(0),
        RenyiBudget(epsilon=3.0, delta=0.01),
        40_000,
    )
    losses, spent = np.zeros(count), np.zeros(count)
    left = np.ones(count, dtype=bool)
    limit = budget.epsilon - budget.conversion
    for _ in range(200):
        # Large steps while the loss is below the target, none above it.
        shift = np.where(losses > budget.epsilon, 0.0, np.where(losses > 0, 0.25, 0.15))
        cost = budget.order * shift**2 / 2
        left &= spent + cost <= limit
        spent += np.where(left, cost, 0.0)
        outcome = generator.normal(shift, 1.0)
        losses += np.where(left, shift * outcome - shift**2 / 2, 0.0)
    delta = float(np.maximum(0.0, 1 - np.exp(budget.epsilon - losses)).mean())
    assert delta <= budget.delta
    assert spent.max() > 0.8 * limit, "the adversary uses the budget"


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0, 1e-5), (1e30, 1e-5), (3, 0), (3, 1e-300), (3, 1)]
)
def test_a_budget_outside_of_its_range_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match=r"the budget's (epsilon|delta) must be"):
        RenyiBudget(epsilon=epsilon, delta=delta)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-3, 1000.0])
@pytest.mark.parametrize("delta", [1e-100, 1e-9, 0.5])
def test_the_order_of_an_extreme_budget_is_finite_and_above_one(
    epsilon: float, delta: float
) -> None:
    budget = RenyiBudget(epsilon=epsilon, delta=delta)
    assert 1 < budget.order <= 1024
    assert not math.isnan(MODELS.spent(budget))

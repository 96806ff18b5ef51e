"""The price of choosing, against distributions that can be computed exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from raydp.extensions.private_selection.num_runs import (
    NumRuns,
    PoissonRuns,
    TruncatedNegativeBinomial,
)
from raydp.extensions.private_selection.tuning import tuned_epsilon
from raydp.privacy import PoissonGaussian, RDPAccountant

ETAS = st.sampled_from([-0.5, 0.0, 0.5, 1.0, 3.0])
MEANS = st.floats(1.2, 30.0)


def pmf(num_runs: NumRuns, terms: int) -> np.ndarray:
    return np.array([num_runs.probability(k) for k in range(terms)])


@pytest.mark.slow
@given(eta=ETAS, mean=MEANS)
@settings(max_examples=25)
def test_the_truncated_negative_binomial_is_a_distribution_with_its_mean(
    eta: float, mean: float
) -> None:
    runs = TruncatedNegativeBinomial.with_mean(mean, eta=eta)
    probabilities = pmf(runs, 60_000)
    assert probabilities[0] == 0
    assert probabilities.sum() == pytest.approx(1, abs=1e-9)  # the tail beyond 60,000 and rounding
    assert probabilities @ np.arange(len(probabilities)) == pytest.approx(mean, rel=1e-6)


def test_eta_one_is_the_geometric_distribution() -> None:
    runs = TruncatedNegativeBinomial.with_mean(8.0, eta=1.0)
    assert runs.gamma == pytest.approx(1 / 8)
    assert [runs.probability(k) for k in (1, 2, 5)] == pytest.approx(
        [(1 / 8) * (7 / 8) ** (k - 1) for k in (1, 2, 5)]
    )


def renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    """Rényi divergence of two finite distributions, the larger direction."""
    log_p, log_q = np.log(p), np.log(q)
    both = [
        logsumexp(order * a + (1 - order) * b) / (order - 1)
        for a, b in ((log_p, log_q), (log_q, log_p))
    ]
    return float(max(both))


def best_of(p: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """The distribution of the largest of K outputs; K = 0 is an outcome of its own."""
    below = np.concatenate([[0.0], np.cumsum(p)])
    at_most = np.array(
        [probabilities @ x ** np.arange(len(probabilities)) for x in np.minimum(below, 1.0)]
    )
    return np.concatenate([[probabilities[0]], np.diff(at_most)])


@given(
    eta=ETAS,
    mean=st.floats(1.5, 12.0),
    poisson=st.booleans(),
    order=st.sampled_from([1.3, 2.0, 5.0, 20.0]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=60)
def test_the_best_of_k_diverges_by_no_more_than_the_theorems_say(
    eta: float, mean: float, poisson: bool, order: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    p = generator.dirichlet(np.ones(5)) * 0.9 + 0.02
    q = p * np.exp(generator.uniform(-0.5, 0.5, 5))
    p, q = p / p.sum(), q / q.sum()
    runs = PoissonRuns(mean=mean) if poisson else TruncatedNegativeBinomial.with_mean(mean, eta=eta)
    probabilities = pmf(runs, 2_000)
    best_p, best_q = best_of(p, probabilities), best_of(q, probabilities)
    if not poisson:
        best_p, best_q = best_p[1:], best_q[1:]

    def curve(at: float) -> float:
        return renyi(p, q, at)

    assert renyi(best_p, best_q, order) <= curve(order) + runs.cost(order, curve) + 1e-9


def test_choosing_costs_more_than_one_run_and_the_worst_configuration_decides() -> None:
    mild = PoissonGaussian(sample_rate=0.01, noise_multiplier=1.5, num_steps=500)
    strong = PoissonGaussian(sample_rate=0.02, noise_multiplier=1.2, num_steps=500)
    one = RDPAccountant().epsilon(strong, 1e-5)
    few, many = (
        tuned_epsilon([mild, strong], TruncatedNegativeBinomial.with_mean(m, eta=0.0), 1e-5)
        for m in (2, 100)
    )
    assert one < few < many < 4 * one
    alone = tuned_epsilon([strong], TruncatedNegativeBinomial.with_mean(2, eta=0.0), 1e-5)
    assert few == pytest.approx(alone, rel=1e-9), "the stronger one dominates at every order"


def test_a_draw_of_k_follows_its_distribution() -> None:
    runs = TruncatedNegativeBinomial.with_mean(5.0, eta=1.0)
    draws = np.array([runs.quantile(u) for u in np.random.default_rng(0).uniform(size=20_000)])
    assert draws.min() == 1
    # The standard error of the mean is sqrt(20/20000) = 0.032; five of them.
    assert draws.mean() == pytest.approx(5.0, abs=0.16)
    assert (draws == 1).mean() == pytest.approx(0.2, abs=0.015)
    assert PoissonRuns(mean=3.0).quantile(0.0) == 0
    assert runs.quantile(1 - 2**-53) < 500


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TruncatedNegativeBinomial(eta=-1.0, gamma=0.1), "eta must be > -1"),
        (lambda: TruncatedNegativeBinomial(eta=1.0, gamma=1.0), "gamma must be"),
        (lambda: TruncatedNegativeBinomial.with_mean(1.0, eta=0.0), "expected_runs must be > 1"),
        (lambda: PoissonRuns(mean=0.5), "expected_runs must be >= 1"),
    ],
)
def test_bad_parameters_are_refused_with_a_remedy(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("mean", [1 + 1e-10, 1e15])
def test_a_mean_that_no_gamma_gives_is_named(mean: float) -> None:
    with pytest.raises(ValueError, match="expected_runs must be a mean that a gamma"):
        TruncatedNegativeBinomial.with_mean(mean, eta=1.0)


def test_an_eta_beyond_double_precision_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"eta must be 0 or at least 1e-100 from it, got 1e-320. Use 0."
    ):
        TruncatedNegativeBinomial.with_mean(5.0, eta=1e-320)
    assert TruncatedNegativeBinomial.with_mean(5.0, eta=1e-100).mean == pytest.approx(5)

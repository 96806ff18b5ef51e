"""Lower bounds on ε from one run: against exact sums, public implementations and mechanisms whose ε
is known."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from raydp.extensions.auditing.one_run import (
    Guesses,
    OneRunBound,
    one_run_bound,
    one_run_p_value,
    twin_bound,
)
from raydp.privacy.accounting.gdp import gaussian_epsilon
from tests.marks import slow_after

PUBLIC = [
    ((1000, 100, 75, 1e-4, 0.95), 0.672984663, 0.672984730, 0.841723704),
    ((500, 100, 99, 1e-5, 0.95), 3.011111081, 3.011111020, 5.201397275),
    ((1000, 1000, 700, 1e-6, 0.99), 0.685733205, 0.685733198, 1.228999529),
    ((1000, 20, 20, 1e-5, 0.95), 1.791284153, 1.791284154, 2.363368462),
    ((5000, 2000, 1900, 1e-5, 0.95), 2.770764671, 2.770764532, 4.455158658),
    ((200, 50, 25, 1e-5, 0.95), 0.0, 0.0, 0.0),
    ((100, 100, 80, 0.0, 0.95), 0.958392045, 0.958392034, None),
    ((10, 10, 10, 0.0, 0.9), 1.351215243, 1.351215244, None),
]
"""(M, R, V, δ, confidence), then ε by the code printed in Steinke et al. 2023, appendix D (30
halvings: 1e-9), and by jax_privacy 2.0.0's `_epsilon_one_run` and `_epsilon_one_run_fdp` (xtol
1e-6), all run on 2026-11-20 with scipy 1.17. The first is the appendix's own example, printed there
as 0.673."""


def bound(m: int, r: int, v: int, delta: float = 0.0, confidence: float = 0.95) -> OneRunBound:
    return one_run_bound(Guesses(num_canaries=m, num_guesses=r, num_correct=v), delta, confidence)


@pytest.mark.parametrize(("given", "appendix", "jax", "jax_gdp"), PUBLIC)
def test_it_agrees_with_public_implementations(
    given: tuple[int, int, int, float, float], appendix: float, jax: float, jax_gdp: float | None
) -> None:
    found = bound(*given)
    assert found.epsilon == pytest.approx(appendix, abs=3e-9)  # two bisections to 1e-9 each
    assert found.epsilon == pytest.approx(jax, abs=1e-6)  # jax_privacy's xtol
    if jax_gdp is None:
        assert found.epsilon_gdp is None
    else:
        assert found.epsilon_gdp == pytest.approx(jax_gdp, abs=1e-6)


@given(st.integers(1, 14), st.data())
@settings(max_examples=80)
def test_the_p_value_is_the_exact_sum(odds: int, data: st.DataObject) -> None:
    """In fractions, with every i tried: e^ε is a whole number."""
    m = data.draw(st.integers(1, 40))
    r = data.draw(st.integers(1, m))
    v = data.draw(st.integers(1, r))
    delta = data.draw(st.sampled_from([Fraction(0), Fraction(1, 10**5), Fraction(1, 100)]))
    right = Fraction(odds, odds + 1)
    pmf = [math.comb(r, k) * right**k * (1 - right) ** (r - k) for k in range(r + 1)]
    windows = [sum(pmf[v - i : v], Fraction(0)) / i for i in range(1, v + 1)]
    exact = min(Fraction(1), sum(pmf[v:], Fraction(0)) + 2 * m * delta * max(windows))
    found = one_run_p_value(
        Guesses(num_canaries=m, num_guesses=r, num_correct=v), math.log(odds), float(delta)
    )
    assert found == pytest.approx(float(exact), rel=3e-9)  # rounded up by 1e-9
    assert found >= float(exact) * (1 - 1e-12)


@given(st.integers(2, 300), st.data())
@settings(max_examples=40)
def test_more_evidence_never_lowers_the_bound(m: int, data: st.DataObject) -> None:
    r = data.draw(st.integers(1, m))
    v = data.draw(st.integers(1, r))
    delta = data.draw(st.sampled_from([0.0, 1e-6, 1e-3]))
    confidence = data.draw(st.sampled_from([0.6, 0.95, 0.999]))
    here = bound(m, r, v, delta, confidence)
    weaker = [bound(m, r, v - 1, delta, confidence), bound(m, r, v, delta, (1 + confidence) / 2)]
    weaker += [bound(m, r, v, delta + 1e-4, confidence), bound(2 * m, r, v, delta, confidence)]
    for other in weaker:
        assert other.epsilon <= here.epsilon + 1e-9
    for other in weaker[:2]:
        assert other.gdp_mu <= here.gdp_mu + 1e-9


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_the_bound_is_refuted_and_a_little_more_is_not(delta: float) -> None:
    counts = Guesses(num_canaries=500, num_guesses=200, num_correct=180)
    epsilon = one_run_bound(counts, delta).epsilon
    assert (
        one_run_p_value(counts, epsilon, delta)
        < 0.05
        <= one_run_p_value(counts, epsilon + 1e-7, delta)
    )


@pytest.mark.parametrize("epsilon", slow_after(1, [0.5, 1.5, 3.0]))
@pytest.mark.parametrize("confidence", slow_after(1, [0.95, 0.8]))
def test_randomised_response_is_overrated_no_more_often_than_stated(
    epsilon: float, confidence: float
) -> None:
    """Exact: the number of right guesses is binomial. With probability δ the mechanism tells every
    coin besides."""
    r, delta = 150, 1e-3
    q = 1 / (1 + math.exp(-epsilon))
    pure = sum(
        stats.binom.pmf(v, r, q)
        for v in range(r + 1)
        if bound(r, r, v, 0.0, confidence).epsilon > epsilon
    )
    assert 0 < pure <= 1 - confidence
    approximate = sum(
        stats.binom.pmf(v, r, q)
        for v in range(r + 1)
        if bound(r, r, v, delta, confidence).epsilon > epsilon
    )
    assert delta + (1 - delta) * approximate <= 1 - confidence


def test_many_canaries_find_nearly_all_of_randomised_response() -> None:
    rng = np.random.default_rng(0)
    for epsilon in (0.5, 2.0):
        coins = rng.random(200_000) < 0.5
        told = coins ^ (rng.random(len(coins)) >= 1 / (1 + math.exp(-epsilon)))
        found = bound(len(coins), len(coins), int((coins == told).sum())).epsilon
        # The 5 % quantile of the estimate is 1.6 standard deviations of the share of right guesses
        # below it: 0.02 of ε.
        assert 0.95 * epsilon < found <= epsilon


@cache
def mu_bound(m: int, k: int, v: int) -> float:
    return bound(m, 2 * k, v).gdp_mu


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_a_gaussian_mechanism_is_overrated_no_more_often_than_stated(mu: float) -> None:
    """Every coin is told with normal noise; the auditor guesses the k highest as in, the k lowest
    as out."""
    rng, m, k, runs = np.random.default_rng(int(10 * mu)), 1000, 50, 2000
    found = []
    for _ in range(runs):
        coins = rng.random(m) < 0.5
        order = np.argsort(mu * coins + rng.standard_normal(m))
        found.append(mu_bound(m, k, int((~coins[order[:k]]).sum() + coins[order[-k:]].sum())))
    exceeded = sum(value > mu for value in found)
    assert exceeded <= stats.binom.isf(1e-6, runs, 0.05)  # one false alarm in a million
    assert np.mean(found) > 0.3 * mu  # it is a bound worth having


def test_a_million_canaries_are_no_problem() -> None:
    """All right: P[no error] = q^R, so ε = ln(1 / (1 - 0.05^(1/R)) - 1)."""
    m = 10**6
    error = -math.expm1(math.log(0.05) / m)
    assert bound(m, m, m).epsilon == pytest.approx(math.log(1 / error - 1), abs=3e-9)
    assert bound(m, 0, 0) == OneRunBound(epsilon=0.0, gdp_mu=0.0, epsilon_gdp=None)
    for v in (0, m // 2, 600_000, m - 1):
        assert 0 <= bound(m, m, v, 1e-8).epsilon < 12.7
    assert (
        one_run_p_value(Guesses(num_canaries=m, num_guesses=m, num_correct=m), math.inf, 1e-8)
        == 1.0
    )


def test_the_gaussian_bound_converts_to_its_delta() -> None:
    found = bound(1000, 100, 90, 1e-5)
    assert found.epsilon_gdp == pytest.approx(gaussian_epsilon(found.gdp_mu, 1e-5), abs=2e-9)


@pytest.mark.parametrize(
    ("counts", "named"),
    [
        ((10, 11, 5), "guesses"),
        ((10, 5, 6), "correct"),
        ((0, 0, 0), "canaries"),
        ((9, 9, -1), "corr"),
    ],
)
def test_counts_that_cannot_be_are_refused(counts: tuple[int, int, int], named: str) -> None:
    with pytest.raises(ValueError, match=rf"{named}.* must be .*, got .*\. .*\."):
        bound(*counts)


def test_probabilities_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="delta must"):
        bound(10, 5, 3, 1.0)
    with pytest.raises(ValueError, match="confidence must"):
        bound(10, 5, 3, 0.0, 1.0)


@pytest.mark.parametrize(("epsilon", "copies"), [(0.5, 1), (2.0, 1), (0.3, 2)])
def test_guesses_of_twins_bound_the_epsilon_of_adding_or_removing_a_unit(
    epsilon: float, copies: int
) -> None:
    """A mechanism that is ε-DP for a unit and tells each coin with the largest probability, e^(k ε)
    / (1 + e^(k ε))."""
    pairs, trials = 400, 300
    rate = 1 / (1 + math.exp(-2 * copies * epsilon))
    right = np.random.default_rng(1).binomial(pairs, rate, trials).tolist()
    bounds = [
        twin_bound(Guesses(num_canaries=pairs, num_guesses=pairs, num_correct=v), 0.0, copies)
        for v in right
    ]
    exceeded = sum(bound > epsilon for bound in bounds)
    assert exceeded <= stats.binom.ppf(0.999, trials, 0.05)
    assert np.mean(bounds) > 0.6 * epsilon, "the bound is not empty"


@given(st.integers(1, 60), st.integers(1, 4), st.sampled_from([0.0, 1e-6, 1e-3]), st.data())
@settings(max_examples=60)
def test_the_bound_of_twins_is_where_the_group_guarantee_is_refuted(
    pairs: int, copies: int, delta: float, data: st.DataObject
) -> None:
    guesses = Guesses(
        num_canaries=pairs, num_guesses=pairs, num_correct=data.draw(st.integers(0, pairs))
    )
    found = twin_bound(guesses, delta, copies)

    def p_value(epsilon: float) -> float:
        changes = 2 * copies
        of_all = delta * sum(math.exp(i * epsilon) for i in range(changes))
        return 1.0 if of_all >= 1 else one_run_p_value(guesses, changes * epsilon, of_all)

    assert p_value(found + 1e-6) >= 0.05 * (1 - 1e-4)
    assert found == 0 or p_value(found) <= 0.05 * (1 + 1e-6)


def test_a_bound_of_twins_needs_a_copy() -> None:
    with pytest.raises(ValueError, match="copies must be at least 1"):
        twin_bound(Guesses(num_canaries=2, num_guesses=2, num_correct=2), 0.0, 0)

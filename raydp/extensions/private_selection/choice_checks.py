"""Check that a private selection's price covers the choice, and that labels hide how many ran."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from raydp.extensions.private_selection.draws import draw
from raydp.extensions.private_selection.num_runs import (
    BinomialRuns,
    NumRuns,
    PoissonRuns,
    TruncatedNegativeBinomial,
)
from raydp.extensions.private_selection.tuning import tuned_epsilon
from raydp.privacy import PoissonGaussian
from raydp.selftest.check_result import Check, check

MEAN, MEAN_OF_POISSON, DELTA = 1000.0, 30.0, 1e-5
ORDERS = (1.25, 1.5, 2.0, 3.0, 8.0)
RARE = 1e-9
"""Probability of the best outcome with the record, far below 1 / MEAN.

The best of K runs then has this outcome MEAN times as often, with the record and without, which
costs log E[K].
"""
GAUSSIAN = 0.2
"""Ratio of sensitivity to noise std of one run."""
NUM_KEYS, LEVEL = 1500, 1e-4
"""Number of keys, and probability that labels which tell nothing fail a check."""
LABEL_BITS, REMAINDERS = 63, (2, 4, 8)
Masses = NDArray[np.float64]


def choice_checks() -> list[Check]:
    """Check the best of K runs, by the generating function of K, for each distribution of K.

    1. With a rare and a common outcome, the best of K runs diverges (Rényi, at low orders) by at
       most the price.
    2. The best of K runs diverges by at most the price at a high order, if the record makes the
       best outcome rarer.
    3. The best of K Gaussians needs no larger ε than is stated.
    4. The label of a released run tells neither its place in the order nor K.
    """
    kinds: dict[str, NumRuns] = {
        "Poisson": PoissonRuns(mean=MEAN_OF_POISSON),
        **{
            f"η = {eta:g}": TruncatedNegativeBinomial.with_mean(MEAN, eta=eta)
            for eta in (-0.5, 0.0, 1.0)
        },
    }
    return [
        *(result for name, num_runs in kinds.items() for result in _price(name, num_runs)),
        *_labels(),
    ]


def generating(num_runs: NumRuns) -> tuple[Callable[[Masses], Masses], Callable[[Masses], Masses]]:
    """Return x -> 1 - E[(1 - x)^K], and its derivative x -> E[K (1 - x)^(K - 1)], on [0, 1]."""
    # The probability generating function G of K in closed form: 1 - G(1 - x), and its derivative.
    if isinstance(num_runs, PoissonRuns):
        mean = num_runs.mean
        return lambda x: -np.expm1(-mean * x), lambda x: mean * np.exp(-mean * x)
    if isinstance(num_runs, BinomialRuns):
        trials, share = num_runs.trials, num_runs.mean / num_runs.trials
        return (
            lambda x: -np.expm1(trials * np.log1p(-share * x)),
            lambda x: trials * share * np.exp((trials - 1) * np.log1p(-share * x)),
        )
    assert isinstance(num_runs, TruncatedNegativeBinomial)
    eta, gamma = num_runs.eta, num_runs.gamma
    # Both formulas use 1 - (1 - γ)(1 - x) relative to its value γ at x = 0.
    if eta == 0:
        scale = -math.log(gamma)
        return (
            lambda x: np.log1p((1 - gamma) / gamma * x) / scale,
            lambda x: (1 - gamma) / ((gamma + (1 - gamma) * x) * scale),
        )
    scale = -math.expm1(eta * math.log(gamma))
    return (
        lambda x: -np.expm1(-eta * np.log1p((1 - gamma) / gamma * x)) / scale,
        lambda x: (
            eta
            * (1 - gamma)
            / gamma
            * np.exp(-(eta + 1) * np.log1p((1 - gamma) / gamma * x))
            / scale
        ),
    )


def _price(name: str, num_runs: NumRuns) -> list[Check]:
    # The share of the bound that is used up, at several orders: near 1 is tight, above 1 is a
    # fault.
    _, slope = generating(num_runs)
    shares = []
    for order in ORDERS:
        p, q = _gaussians() if isinstance(num_runs, PoissonRuns) else _rare_and_common(order)
        shares.append(_share(num_runs, p, q, order))
    # A record that makes the best outcome rarer: the case that a wrong bound forgets.
    p, q, order = _adversarial(num_runs)
    sharp = _share(num_runs, p, q, order)
    # The stated ε against the exact one, for Gaussian runs.
    event = PoissonGaussian(sample_rate=1.0, noise_multiplier=1 / GAUSSIAN, num_steps=1)
    exact = _best_gaussian(slope)
    return [
        check(
            f"price of a choice ({name})",
            max(shares),
            0.4,
            1,
            "divergence of the best of K runs over the bound, at the worst order; E[K] = "
            f"{num_runs.mean:g}",
        ),
        check(
            f"price of a better outcome that is rarer ({name})",
            sharp,
            0.4,
            1,
            f"divergence of the best of K runs over the bound, at order {order:g}",
        ),
        check(
            f"ε of a choice ({name})",
            tuned_epsilon([event], num_runs, DELTA) / exact,
            1,
            4,
            f"what is stated over the exact ε {exact:.4g} of the best of K Gaussians at δ = "
            f"{DELTA:g}",
        ),
    ]


def _share(num_runs: NumRuns, p: Masses, q: Masses, order: float) -> float:
    """Return the exact divergence of the best of K runs, the larger direction, over its bound.

    Best outcome first.
    """
    best, _ = generating(num_runs)
    # P[the best is among the first i outcomes] gives the masses of the best by differences.
    chosen_p, chosen_q = (np.diff(best(np.cumsum(masses)), prepend=0.0) for masses in (p, q))

    def curve(at: float) -> float:
        return max(_renyi(p, q, at), _renyi(q, p, at))

    divergence = max(_renyi(chosen_p, chosen_q, order), _renyi(chosen_q, chosen_p, order))
    return divergence / (curve(order) + num_runs.cost(order, curve))


def _adversarial(num_runs: NumRuns) -> tuple[Masses, Masses, float]:
    """Return outcomes with and without the record, the best first, and the order to test.

    The record makes the best outcome rarer. The best of many runs is then more often the next
    outcome: by the factor e^((1 + η) ε), beside the outcome's own e^ε. For a Poisson number of
    runs, the factor is e^(E[K] (q - p)).
    """
    if isinstance(num_runs, PoissonRuns):
        # A ratio of 1.63, above 4/3 and below 5/3.
        return (np.array([0.3, 0.7]), np.array([0.489, 0.511]), 4.0)
    p, q = np.array([0.05, 1e-4 * math.e]), np.array([0.05 * math.e, 1e-4])
    return np.append(p, 1 - p.sum()), np.append(q, 1 - q.sum()), 1000.0


def _rare_and_common(order: float) -> tuple[Masses, Masses]:
    """Return outcomes with and without the record, the best and rare one first.

    The rare outcome has p^λ q^(1-λ) = 1, so it contributes half of the divergence at order λ.
    """
    rare = RARE ** (order / (order - 1))
    return np.array([RARE, 1 - RARE]), np.array([rare, 1 - rare])


def _gaussians() -> tuple[Masses, Masses]:
    """Return N(GAUSSIAN, 1) and N(0, 1) in cells, the best first.

    The price of a Poisson number of runs has a part in proportion to E[K], which would hide the
    rest for rare outcomes.
    """
    # Cells from the best to the worst, with both tails.
    edges = np.linspace(-6, 6, 481)
    one, other = (
        np.diff(stats.norm.cdf(edges, -mean), prepend=0.0, append=1.0) for mean in (GAUSSIAN, 0.0)
    )
    return one, other


def _renyi(p: Masses, q: Masses, order: float) -> float:
    # The worst of many runs may underflow; leaving it out lowers the sum.
    positive = (p > 0) & (q > 0)
    logs = order * np.log(p[positive]) + (1 - order) * np.log(q[positive])
    return float(np.logaddexp.reduce(logs)) / (order - 1)


def _best_gaussian(slope: Callable[[Masses], Masses]) -> float:
    """Return the exact ε of the best of K outputs N(0, 1), or N(GAUSSIAN, 1), by quadrature.

    The second is with the record.
    """
    x = np.linspace(-10, 10, 40_001)
    # The density of the best of K is f(x) E[K F(x)^(K - 1)].
    one, other = (
        stats.norm.pdf(x, mean) * slope(stats.norm.sf(x, mean)) for mean in (GAUSSIAN, 0.0)
    )

    def excess(epsilon: float) -> float:
        ways = (
            np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((one, other), (other, one))
        )
        return float(max(ways) * (x[1] - x[0]) - DELTA)

    return float(optimize.brentq(excess, 0.0, 60.0, xtol=1e-10))


def _labels() -> list[Check]:
    """Check over many keys that labels reveal neither the order of runs nor K.

    Each of three labels is the largest equally often, and labels are unrelated to K.
    """
    num_runs = TruncatedNegativeBinomial.with_mean(6.0, eta=1.0)
    draws = [draw(num_runs, 3, k.to_bytes(32, "big")) for k in range(NUM_KEYS)]
    three = np.array([[label for _, label in runs[:3]] for runs in draws if len(runs) >= 3])
    # Labels must be exchangeable. Exact binomial limits at a small level.
    low, high = stats.binom.ppf([LEVEL / 2, 1 - LEVEL / 2], len(three), 1 / 3) / len(three)
    # Labels are split into parts of four bits, because a rank correlation only depends on the high
    # bits of a number.
    parts = [
        np.array([runs[at][1] >> shift & 0xF for runs in draws])
        for at in (0, -1)
        for shift in range(0, 64, 4)
    ]
    numbers = np.array([len(runs) for runs in draws])
    ranks = [
        abs(float(stats.spearmanr(part, numbers).statistic)) if np.ptp(part) else 1.0
        for part in parts
    ]
    # Spearman's correlation of independent values has standard deviation 1 / sqrt(n - 1).
    reach = stats.norm.isf(LEVEL / 2 / len(parts)) / math.sqrt(NUM_KEYS - 1)
    rarest, count = _rarest_bit(draws)
    return [
        check(
            "place of the largest label",
            (three.argmax(axis=1) == 2).mean(),
            low,
            high,
            "share of draws in which the third of three runs has it; a label that counts the runs "
            "has it always",
        ),
        check(
            "labels and the number of runs",
            max(ranks),
            0,
            reach,
            f"rank correlation of the first and the last label with K, the largest of {len(parts)} "
            "parts of 4 bits; 1 for a part that never changes",
        ),
        check(
            "bits of labels and the remainder of K",
            rarest * count,
            LEVEL,
            math.inf,
            f"smallest p-value of {count} exact binomial tests, times {count}: each bit of the "
            "first and the last label is set in half of the draws with each remainder of K by "
            f"{', '.join(map(str, REMAINDERS))}",
        ),
        check(
            "different labels",
            len({label for runs in draws for _, label in runs}) / numbers.sum(),
            1,
            1,
            f"share of those of {NUM_KEYS} draws",
        ),
    ]


def _rarest_bit(draws: list[list[tuple[int, int]]]) -> tuple[float, int]:
    """Return the smallest p-value of all tests of a bit, and the number of tests.

    A test is among the draws with one remainder of K.
    """
    numbers = np.array([len(runs) for runs in draws])
    labels = np.array([[runs[0][1], runs[-1][1]] for runs in draws], np.uint64)
    bits = (labels[..., None] >> np.arange(LABEL_BITS, dtype=np.uint64) & np.uint64(1)).reshape(
        len(draws), -1
    )
    p_values = []
    # A label made by counting would show in its low bits and the remainder of K.
    for divisor in REMAINDERS:
        for remainder in range(divisor):
            chosen = bits[numbers % divisor == remainder]
            fewer = np.minimum(chosen.sum(axis=0), (1 - chosen.astype(np.int64)).sum(axis=0))
            p_values.append(np.minimum(1, 2 * stats.binom.cdf(fewer, len(chosen), 0.5)))
    return float(np.min(p_values)), int(np.size(p_values))

"""The privacy cost of the teachers' noisy votes: PATE with GNMax and Confident-GNMax.

Source: Papernot et al. 2018.

Each teacher has learnt from its own shard. So one record changes one teacher, and one vote of each
query: two counts by
1. A cost that depends on the votes is as private as the votes. It may be used for decisions, but
   must not be published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp

from raydp.privacy.accounting.events import check_delta
from raydp.privacy.accounting.rdp import ORDERS

Array = NDArray[np.float64]

GRID: Array = np.array(ORDERS)
"""The Rényi orders to try; each gives a valid ε."""

QUERIES_AT_ONCE = 1000
MOST_TEACHERS = 1_000_000
LEAST_NOISE, MOST_NOISE = 1e-3, 1e9


@dataclass(frozen=True, kw_only=True)
class Epsilon:
    """An ε and the Rényi order that gives it."""

    epsilon: float
    order: float


@dataclass(frozen=True, kw_only=True)
class PateCost:
    """Cost of answering all queries, at one δ.

    Attributes:
        dependent: cost of the actual votes; it is private itself.
        independent: cost for any votes.
        reference: the figure of the paper's own analysis: the expected cost over which queries are
            answered, and the conversion ε + log(1/δ) / (α - 1) (Mironov 2017, Proposition 3).
            Without a threshold it is a bound too.
        expected_answers: expected number of answered queries; it depends on the votes.
    """

    dependent: Epsilon
    independent: Epsilon
    reference: Epsilon
    expected_answers: float


def pate_cost(
    votes: NDArray[np.int64],
    *,
    sigma: float,
    delta: float,
    threshold: float | None = None,
    sigma1: float | None = None,
) -> PateCost:
    """Return the ε of answering every query by the class with the most votes after noise.

    Args:
        votes: [queries, classes >= 2] counts.
        sigma: standard deviation of the noise on each count.
        delta: in (0, 1).
        threshold: Confident-GNMax: a query is answered only if its largest count, with separate
            noise, is at least the threshold. There is one noise on the maximum, not one per class
            as in Boenisch and Dziedzic 2024.
        sigma1: standard deviation of the noise on the largest count.

    Guarantee:
        `dependent` bounds a Rényi divergence at every order. It compares the answers (and which
        queries have one) on these votes with those on any votes that differ by one teacher. The
        conversion is that of accountant 'rdp' (Balle et al. 2020, Theorem 21). Teachers must not
        share records.

    Raises:
        ValueError: an argument is out of its range.

    Source: Papernot et al. 2018, Proposition 7 (q), Theorem 6 and Proposition 10 (GNMax). The
        threshold check is not bounded but computed: it is one Gaussian, and one teacher moves the
        largest count by at most 1.
    """
    check_delta(delta)
    check_votes(votes)
    check_noise(sigma, threshold, sigma1)
    dependent, expected = np.zeros_like(GRID), np.zeros_like(GRID)
    answers = 0.0
    # Sum the costs of the queries, a block at a time.
    for start in range(0, len(votes), QUERIES_AT_ONCE):
        some = votes[start : start + QUERIES_AT_ONCE]
        costs, of_answers, number = _costs(some, sigma, threshold, sigma1)
        dependent, expected, answers = dependent + costs, expected + of_answers, answers + number
    return PateCost(
        dependent=_tight(dependent, delta),
        independent=_tight(len(votes) * independent_rdp(sigma, sigma1), delta),
        reference=_classic(expected, delta),
        expected_answers=answers,
    )


def _costs(
    votes: NDArray[np.int64], sigma: float, threshold: float | None, sigma1: float | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return a bound on the cost of some queries, the paper's figure, and the expected answers."""
    cost = gnmax_rdp(log_q(votes, sigma), sigma)
    if threshold is None or sigma1 is None:
        return cost.sum(0), cost.sum(0), len(votes)
    # Confident-GNMax: the cost of the check, and of the answer if the check passes.
    largest = votes.max(axis=1)
    passed = log_ndtr((largest - threshold) / sigma1)
    exact = confident_rdp(largest, cost, threshold, sigma1)
    # The paper's own figure: the expected cost over which queries are answered.
    less_likely = np.minimum(passed, log_ndtr((threshold - largest) / sigma1))
    expected = gnmax_rdp(less_likely, math.sqrt(2) * sigma1) + np.exp(passed)[:, None] * cost
    # Never more than the bound for any votes.
    bounded = np.minimum(exact, independent_rdp(sigma, sigma1))
    return bounded.sum(0), expected.sum(0), float(np.exp(passed).sum())


def check_votes(votes: NDArray[np.int64]) -> None:
    """Raise ValueError unless the votes are counts that double precision can handle."""
    if votes.ndim != 2 or votes.shape[0] < 1 or votes.shape[1] < 2 or (votes < 0).any():
        raise ValueError(
            f"votes must be [queries, classes >= 2] counts >= 0, got shape {votes.shape}. Correct "
            "them."
        )
    if votes.max() > MOST_TEACHERS or votes.sum(axis=1, dtype=np.float64).max() > MOST_TEACHERS:
        raise ValueError(
            f"votes must be of at most {MOST_TEACHERS} teachers, got more in a row. Correct them."
        )


def check_noise(sigma: float, threshold: float | None, sigma1: float | None) -> None:
    """Raise ValueError unless noise and threshold are values that double precision can handle."""
    for name, value in (("sigma", sigma), ("sigma1", sigma1)):
        if value is not None and not LEAST_NOISE <= value <= MOST_NOISE:
            raise ValueError(
                f"{name} must be {LEAST_NOISE:g} to {MOST_NOISE:g}, got {value}. It is the noise's "
                "standard deviation."
            )
    # The check of the threshold is a release of its own, so its noise is part of the cost.
    if (threshold is None) != (sigma1 is None):
        raise ValueError(
            "threshold and sigma1 must be given together, got one of them. Give both, or neither."
        )
    if threshold is not None and not abs(threshold) <= MOST_NOISE:
        raise ValueError(
            f"threshold must be at most {MOST_NOISE:g} in size, got {threshold}. It is a number of "
            "votes."
        )


def log_q(votes: NDArray[np.int64], sigma: float) -> Array:
    """Return [queries] the log of a bound q on the probability that noise changes the winner.

    q is Σ ½ erfc(gap / 2σ) over the other classes, at most 1 - 1/m (Papernot et al. 2018,
    Proposition 7).
    """
    rows = np.arange(len(votes))
    first = votes.argmax(axis=1)
    gaps = (votes[rows, first][:, None] - votes) / (math.sqrt(2) * sigma)
    log_tails = log_ndtr(-gaps)
    # The winner itself takes no part in the sum.
    log_tails[rows, first] = -np.inf
    bound: Array = np.minimum(logsumexp(log_tails, axis=1), math.log1p(-1 / votes.shape[1]))
    return bound


def independent_rdp(sigma: float, sigma1: float | None = None) -> Array:
    """Return [orders] the Rényi divergence of one query, the bound for any votes.

    One teacher changes two counts by 1, and the largest count by 1.
    """
    check = 0.0 if sigma1 is None else GRID / (2 * sigma1**2)
    return GRID / sigma**2 + check


def gnmax_rdp(logq: Array, sigma: float, orders: Array = GRID) -> Array:
    """Return [queries, orders] the Rényi divergence of GNMax.

    An outcome other than the likely one has probability <= q.

    The bound is Theorem 6 of Papernot et al. 2018 with the orders of Proposition 10. If its
    conditions fail or it is larger, the result is the divergence for any votes.
    """
    independent = np.broadcast_to(orders / sigma**2, (len(logq), len(orders)))
    dependent, holds = by_agreement(logq[:, None], sigma, orders)
    cost: Array = np.where(holds, np.minimum(dependent, independent), independent)
    return cost


def by_agreement(logq: Array, sigma: float, orders: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Return the divergence of Papernot et al. 2018, Theorem 6, and if it holds, broadcast."""
    with np.errstate(all="ignore"):  # values for which the conditions fail are not used
        mu2 = sigma * np.sqrt(-logq)
        # The optimal orders of Proposition 10.
        mu1 = mu2 + 1
        epsilon1, epsilon2 = mu1 / sigma**2, mu2 / sigma**2
        # The conditions of Theorem 6.
        holds = (orders <= mu1) & (mu2 > 1) & (-logq > epsilon2)
        holds &= logq <= (mu2 - 1) * epsilon2 - mu2 * (
            np.log(mu1 / (mu1 - 1)) + np.log(mu2 / (mu2 - 1))
        )
        # A and B of Theorem 6, in logarithms: q may be far below the range of double precision.
        log_rest = _log1mexp(logq)
        log_a = (orders - 1) * (log_rest - _log1mexp((logq + epsilon2) * (1 - 1 / mu2)))
        log_b = (orders - 1) * (epsilon1 - logq / (mu1 - 1))
        divergence = np.logaddexp(log_rest + log_a, logq + log_b) / (orders - 1)
    return divergence, holds


def confident_rdp(
    largest: NDArray[np.int64], gnmax: Array, threshold: float, sigma1: float, orders: Array = GRID
) -> Array:
    """Return [queries, orders] the Rényi divergence of the check and, if it passes, of GNMax.

    Let p be the probability of passing on these votes, and p' on the other votes, whose largest
    count differs by at most 1. Then exp((α - 1) D) = p^α p'^(1-α) exp((α - 1) D_GNMax) + (1-p)^α
    (1-p')^(1-α).

    Args:
        largest: [queries] largest counts.
        gnmax: [queries, orders] divergence of GNMax.
    """

    def log_passes(counts: NDArray[np.int64]) -> tuple[Array, Array]:
        z = ((counts - threshold) / sigma1)[:, None]
        return log_ndtr(z), log_ndtr(-z)

    passes, stops = log_passes(largest)
    worst = np.zeros_like(gnmax)
    # The other votes' largest count may be one less, equal, or one more; the worst counts.
    for change in (-1, 0, 1):
        other_passes, other_stops = log_passes(largest + change)
        answered = orders * passes + (1 - orders) * other_passes + (orders - 1) * gnmax
        unanswered = orders * stops + (1 - orders) * other_stops
        worst = np.maximum(worst, np.logaddexp(answered, unanswered) / (orders - 1))
    return worst


def _log1mexp(x: Array) -> Array:
    """Return log(1 - e^x) for x <= 0."""
    # The exact form on either side of e^x = 1/2.
    return np.where(x < -math.log(2), np.log1p(-np.exp(x)), np.log(-np.expm1(x)))


def epsilon_at(rdp: float, order: float, delta: float) -> float:
    """Return ε from a Rényi divergence at one order (Balle et al. 2020, Theorem 21)."""
    return max(0.0, rdp - math.log(delta * order) / (order - 1) + math.log1p(-1 / order))


def _tight(rdp: Array, delta: float) -> Epsilon:
    """Return the smallest ε over the orders (Balle et al. 2020, Theorem 21, as for 'rdp')."""
    return _smallest(rdp - (math.log(delta) + np.log(GRID)) / (GRID - 1) + np.log1p(-1 / GRID))


def _classic(rdp: Array, delta: float) -> Epsilon:
    """Return the smallest ε over the orders by the conversion ε + log(1/δ) / (α - 1)."""
    return _smallest(rdp - math.log(delta) / (GRID - 1))


def _smallest(epsilons: Array) -> Epsilon:
    assert np.isfinite(epsilons).all(), "an undefined epsilon must not pass for 0"
    best = int(np.argmin(epsilons))
    return Epsilon(epsilon=max(0.0, float(epsilons[best])), order=float(GRID[best]))

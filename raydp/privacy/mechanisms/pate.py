"""What the noisy votes of teachers cost: PATE with GNMax and Confident-GNMax (Papernot et al. 2018).

Each teacher has learnt from a shard of its own, so one record changes one teacher, and with it one vote of each query:
two counts by 1. A cost that looks at the votes is as private as they are: it may decide, but must not be published.
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
"""Rényi orders that are tried; each gives a valid ε."""

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
    """What answering all queries costs, at one δ.

    Attributes:
        dependent: by the votes; private itself.
        independent: whatever the votes.
        reference: what the paper's own analysis prints: the expected cost over which queries are answered, and the
            conversion ε + log(1/δ) / (α - 1) (Mironov 2017, Proposition 3). Without a threshold it is a bound too.
        expected_answers: how many queries are expected to be answered; by the votes.
    """

    dependent: Epsilon
    independent: Epsilon
    reference: Epsilon
    expected_answers: float


def pate_cost(
    votes: NDArray[np.int64], *, sigma: float, delta: float, threshold: float | None = None, sigma1: float | None = None
) -> PateCost:
    """ε of answering every query by the class with the most votes after noise.

    Args:
        votes: [queries, classes >= 2] counts.
        sigma: standard deviation of the noise on each count.
        delta: in (0, 1).
        threshold: Confident-GNMax: a query is answered only where the largest count, with noise of its own, is at least
            this. One noise on the maximum, not one per class as in Boenisch and Dziedzic 2024.
        sigma1: standard deviation of that noise.

    Guarantee:
        `dependent` bounds the Rényi divergence of the answers (and of which queries have one) on these votes from those
        on any votes that differ by one teacher, at every order; the conversion is that of accountant 'rdp' (Balle et
        al. 2020, Theorem 21). Teachers must not share records.

    Raises:
        ValueError: an argument is out of its range.

    Source: Papernot et al. 2018, Proposition 7 (q), Theorem 6 and Proposition 10 (GNMax). The check against the
        threshold is not bounded but computed: it is one Gaussian, and one teacher moves the largest count by at most 1.
    """
    check_delta(delta)
    check_votes(votes)
    check_noise(sigma, threshold, sigma1)
    dependent, expected = np.zeros_like(GRID), np.zeros_like(GRID)
    answers = 0.0
    for start in range(0, len(votes), QUERIES_AT_ONCE):
        some = votes[start : start + QUERIES_AT_ONCE]
        cost = gnmax_rdp(log_q(some, sigma), sigma)
        if threshold is None or sigma1 is None:
            dependent, expected, answers = dependent + cost.sum(0), expected + cost.sum(0), answers + len(some)
            continue
        largest = some.max(axis=1)
        passed = log_ndtr((largest - threshold) / sigma1)
        exact = confident_rdp(largest, cost, threshold, sigma1)
        dependent += np.minimum(exact, independent_rdp(sigma, sigma1)).sum(0)
        less_likely = np.minimum(passed, log_ndtr((threshold - largest) / sigma1))
        expected += (gnmax_rdp(less_likely, math.sqrt(2) * sigma1) + np.exp(passed)[:, None] * cost).sum(0)
        answers += float(np.exp(passed).sum())
    return PateCost(
        dependent=_tight(dependent, delta),
        independent=_tight(len(votes) * independent_rdp(sigma, sigma1), delta),
        reference=_classic(expected, delta),
        expected_answers=answers,
    )


def check_votes(votes: NDArray[np.int64]) -> None:
    """Raise ValueError unless they are counts of a size that the formulas hold for in double precision."""
    if votes.ndim != 2 or votes.shape[0] < 1 or votes.shape[1] < 2 or (votes < 0).any():
        raise ValueError(f"votes must be [queries, classes >= 2] counts >= 0, got shape {votes.shape}. Correct them.")
    if votes.max() > MOST_TEACHERS or votes.sum(axis=1, dtype=np.float64).max() > MOST_TEACHERS:
        raise ValueError(f"votes must be of at most {MOST_TEACHERS} teachers, got more in a row. Correct them.")


def check_noise(sigma: float, threshold: float | None, sigma1: float | None) -> None:
    """Raise ValueError unless they are noise and a threshold that the formulas hold for in double precision."""
    for name, value in (("sigma", sigma), ("sigma1", sigma1)):
        if value is not None and not LEAST_NOISE <= value <= MOST_NOISE:
            raise ValueError(
                f"{name} must be {LEAST_NOISE:g} to {MOST_NOISE:g}, got {value}. It is the noise's standard deviation."
            )
    if (threshold is None) != (sigma1 is None):
        raise ValueError("threshold and sigma1 must be given together, got one of them. Give both, or neither.")
    if threshold is not None and not abs(threshold) <= MOST_NOISE:
        raise ValueError(f"threshold must be at most {MOST_NOISE:g} in size, got {threshold}. It is a number of votes.")


def log_q(votes: NDArray[np.int64], sigma: float) -> Array:
    """[queries] log of an upper bound on the probability that noise picks another class than the one with most votes:
    Σ ½ erfc(gap / 2σ) over the others, at most 1 - 1/m (Papernot et al. 2018, Proposition 7)."""
    rows = np.arange(len(votes))
    first = votes.argmax(axis=1)
    gaps = (votes[rows, first][:, None] - votes) / (math.sqrt(2) * sigma)
    log_tails = log_ndtr(-gaps)
    log_tails[rows, first] = -np.inf
    bound: Array = np.minimum(logsumexp(log_tails, axis=1), math.log1p(-1 / votes.shape[1]))
    return bound


def independent_rdp(sigma: float, sigma1: float | None = None) -> Array:
    """[orders] Rényi divergence of one query whatever the votes: two counts that move by 1, and a maximum by 1."""
    check = 0.0 if sigma1 is None else GRID / (2 * sigma1**2)
    return GRID / sigma**2 + check


def gnmax_rdp(logq: Array, sigma: float, orders: Array = GRID) -> Array:
    """[queries, orders] Rényi divergence of GNMax where another outcome than the likely one has at most probability q
    (Papernot et al. 2018, Theorem 6 with the orders of Proposition 10); where that does not hold or is larger, the one
    whatever the votes."""
    independent = np.broadcast_to(orders / sigma**2, (len(logq), len(orders)))
    found, holds = by_agreement(logq[:, None], sigma, orders)
    cost: Array = np.where(holds, np.minimum(found, independent), independent)
    return cost


def by_agreement(logq: Array, sigma: float, orders: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Theorem 6's divergence, and where its conditions hold; arguments are broadcast."""
    with np.errstate(all="ignore"):  # what does not hold is not used
        mu2 = sigma * np.sqrt(-logq)
        mu1 = mu2 + 1
        epsilon1, epsilon2 = mu1 / sigma**2, mu2 / sigma**2
        holds = (orders <= mu1) & (mu2 > 1) & (-logq > epsilon2)
        holds &= logq <= (mu2 - 1) * epsilon2 - mu2 * (np.log(mu1 / (mu1 - 1)) + np.log(mu2 / (mu2 - 1)))
        log_rest = _log1mexp(logq)
        log_a = (orders - 1) * (log_rest - _log1mexp((logq + epsilon2) * (1 - 1 / mu2)))
        log_b = (orders - 1) * (epsilon1 - logq / (mu1 - 1))
        found = np.logaddexp(log_rest + log_a, logq + log_b) / (orders - 1)
    return found, holds


def confident_rdp(
    largest: NDArray[np.int64], gnmax: Array, threshold: float, sigma1: float, orders: Array = GRID
) -> Array:
    """[queries, orders] Rényi divergence of the check and, where it passes, of GNMax: with p the probability to pass on
    these votes and p' on the others, whose largest count differs by at most 1,
    exp((α - 1) D) = p^α p'^(1-α) exp((α - 1) D_GNMax) + (1-p)^α (1-p')^(1-α).

    Args:
        largest: [queries] largest counts.
        gnmax: [queries, orders] divergence of GNMax.
    """

    def log_passes(counts: NDArray[np.int64]) -> tuple[Array, Array]:
        z = ((counts - threshold) / sigma1)[:, None]
        return log_ndtr(z), log_ndtr(-z)

    passes, stops = log_passes(largest)
    worst = np.zeros_like(gnmax)
    for change in (-1, 0, 1):
        other_passes, other_stops = log_passes(largest + change)
        answered = orders * passes + (1 - orders) * other_passes + (orders - 1) * gnmax
        unanswered = orders * stops + (1 - orders) * other_stops
        worst = np.maximum(worst, np.logaddexp(answered, unanswered) / (orders - 1))
    return worst


def _log1mexp(x: Array) -> Array:
    """log(1 - e^x) for x <= 0."""
    return np.where(x < -math.log(2), np.log1p(-np.exp(x)), np.log(-np.expm1(x)))


def epsilon_at(rdp: float, order: float, delta: float) -> float:
    """ε of a Rényi divergence at one order (Balle et al. 2020, Theorem 21)."""
    return max(0.0, rdp - math.log(delta * order) / (order - 1) + math.log1p(-1 / order))


def _tight(rdp: Array, delta: float) -> Epsilon:
    """The smallest ε over the orders (Balle et al. 2020, Theorem 21; as accountant 'rdp')."""
    return _smallest(rdp - (math.log(delta) + np.log(GRID)) / (GRID - 1) + np.log1p(-1 / GRID))


def _classic(rdp: Array, delta: float) -> Epsilon:
    """The same by ε + log(1/δ) / (α - 1)."""
    return _smallest(rdp - math.log(delta) / (GRID - 1))


def _smallest(epsilons: Array) -> Epsilon:
    assert np.isfinite(epsilons).all(), "an epsilon that is none must not pass for 0"
    best = int(np.argmin(epsilons))
    return Epsilon(epsilon=max(0.0, float(epsilons[best])), order=float(GRID[best]))

"""A publishable figure of PATE's cost, by smooth sensitivity.

Source: Papernot et al. 2018, appendix B; Nissim et al. 2007.

The cost of the actual votes is private. Noise makes it publishable, if it is scaled by how far the
cost can move near these votes. Publishing costs a little itself. All figures here are at one Rényi
order α.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri_exp

from raydp.extensions.pate.votes_cost import (
    by_agreement,
    check_noise,
    check_votes,
    confident_rdp,
    log_q,
)

Array = NDArray[np.float64]

BETAS, NOISES = np.arange(0.02, 0.46, 0.02), np.geomspace(0.5, 1e4, 200)
"""Values that `suggestion` tries: smoothness β in units of 1/α, and noise.

Below β = 1/2 the release has a finite cost.
"""
MOST_ORDER, LEAST_NOISE, MOST_NOISE = 1e4, 1e-3, 1e6

ROUNDING = 1e-9
"""Allowance for the rounding of log q.

The cost may leap at q0, and a q that is rounded to just below would hide it.
"""
STEP = 1e-3
"""Multiple to which a published cost is rounded up."""

TRIED_Q = 2_000
"""Number of points at which the two conditions of smoothness are tested."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """Parameters for publishing a cost. They must not depend on the votes.

    Attributes:
        order: α > 1 of the Rényi divergence.
        beta: smoothness, in (0, 1 / (2 α)).
        noise_multiplier: noise std over the smooth sensitivity.

    Raises:
        ValueError: a parameter is out of its range.
    """

    order: float
    beta: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        smooth = 1 < self.order <= MOST_ORDER and 1e-9 <= self.beta < 1 / (2 * self.order)
        if not (smooth and LEAST_NOISE <= self.noise_multiplier <= MOST_NOISE):
            raise ValueError(
                f"publish must be an order above 1 and at most {MOST_ORDER:g}, a smoothness in (0, "
                f"1 / (2 order)) and a noise multiplier from {LEAST_NOISE:g} to {MOST_NOISE:g}, "
                f"got {self.order:g}, {self.beta:g} and {self.noise_multiplier:g}. Take `suggest` "
                "for some."
            )


@dataclass(frozen=True, kw_only=True)
class SmoothCost:
    """The Rényi divergence of all answers at α, for the actual votes, and how far it can move.

    Attributes:
        order: α.
        cost: the divergence; private.
        by_distance: [teachers + 1] Σ over queries of the largest local sensitivity within d votes;
            private.
    """

    order: float
    cost: float
    by_distance: Array

    def sensitivity(self, beta: float) -> float:
        """Return the β-smooth sensitivity on these votes."""
        return float((self.by_distance * np.exp(-beta * np.arange(len(self.by_distance)))).max())

    def suggestion(self) -> Release:
        """Return the release with the least cost plus two standard deviations of noise.

        The choice depends on the votes. Call it on votes on public data, or round the result to
        values that would have been taken anyway.
        """

        tried = [
            Release(order=self.order, beta=float(beta), noise_multiplier=float(noise))
            for beta in BETAS / self.order
            for noise in NOISES
        ]
        return min(
            tried, key=lambda r: release_rdp(r) + 2 * self.sensitivity(r.beta) * r.noise_multiplier
        )

    def published(self, release: Release, normal: float) -> float:
        """Return a publishable Rényi divergence at α.

        It covers all answers and the publication itself.

        The cost is rounded up to a multiple of `STEP`, so that its last bits reveal nothing. The
        noise is centred: the published figure may be above or below the true cost. Its standard
        deviation, which is private itself, is noise_multiplier times the smooth sensitivity. A cost
        below 0 is published as 0.

        Args:
            normal: a draw from N(0, 1), from entropy that nobody knows.
        """
        noise = self.sensitivity(release.beta) * release.noise_multiplier * normal
        return math.ceil(max(0.0, self.cost + noise) / STEP) * STEP + release_rdp(release)


def smooth_cost(
    votes: NDArray[np.int64],
    *,
    sigma: float,
    order: float,
    threshold: float | None = None,
    sigma1: float | None = None,
) -> SmoothCost:
    """Return the cost at one order with its sensitivity.

    Args:
        votes, sigma, threshold, sigma1: as in `pate_cost`. With a threshold each query counts as if
            it were certainly answered. This gives an upper bound, and the sensitivity of its parts
            is known.

    Raises:
        ValueError: the cost is not known to be smooth for these parameters, so its sensitivity is
            unknown. (Conditions C5 and C6 of B.4.2 are tested numerically, as in the public
            analysis.)
    """
    check_votes(votes)
    check_noise(sigma, threshold, sigma1)
    # One vote of every teacher: one teacher then moves the counts as the formulas assume.
    num_teachers, num_classes = int(votes[0].sum()), votes.shape[1]
    if num_teachers < 1 or (votes.sum(axis=1) != num_teachers).any():
        raise ValueError(
            "votes must have one vote of every teacher in each row to publish by, got "
            f"{num_teachers} in the first row and others elsewhere. Publish "
            "epsilon_data_independent."
        )
    shape = _Shape.of(sigma, num_classes, order)
    shape.require_smooth()
    cost = float(shape.cost(log_q(votes, sigma)).sum())
    by_distance = _gnmax_sensitivities(votes, num_teachers, shape)
    # The threshold's check adds its own cost and its own sensitivity.
    if threshold is not None and sigma1 is not None:
        by_count = _check_costs(num_teachers, threshold, sigma1, order)
        cost += float(by_count[votes.max(axis=1)].sum())
        by_distance = by_distance + _check_sensitivities(votes.max(axis=1), by_count)
    return SmoothCost(order=order, cost=cost, by_distance=by_distance)


def release_rdp(release: Release) -> float:
    """Return the largest Rényi divergence at α of f + N(0, (n S)²) from f' + N(0, (n S')²).

    The smooth sensitivities S and S' differ by a factor of at most e^β, and |f - f'| is at most
    either of them. The result is the divergence of two Gaussians, maximised over all such factors.

    For the part of the means, Papernot et al. 2018, Theorem 23, gives α e^(2β) / n². At the far end
    this part is α / (2 n² (1 - α + α e^(-2β))). It is larger by 1 / (1 - 2αβ), and by more if β is
    near 1 / (2α): up to 16 times on votes.
    """
    order, beta = release.order, release.beta
    ratio = np.linspace(-beta, beta, 401)  # log S'/S; its ends and 0 among them
    variance = 1 - order + order * np.exp(2 * ratio)
    means = (
        order * np.minimum(1.0, np.exp(2 * ratio)) / (2 * release.noise_multiplier**2 * variance)
    )
    scales = (order * ratio - 0.5 * np.log(variance)) / (order - 1)
    return float((means + scales).max())


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """The cost of one query as a function of q: by Theorem 6 up to q0, then for any votes."""

    sigma: float
    num_classes: int
    order: float
    logq0: float
    logq1: float

    @classmethod
    def of(cls, sigma: float, num_classes: int, order: float) -> _Shape:
        logq0 = _crossing(sigma, order)
        logq1 = float(_moved(logq0, sigma, num_classes, 1))
        assert np.isfinite([logq0, logq1]).all(), "everything is computed in logarithms"
        return cls(sigma=sigma, num_classes=num_classes, order=order, logq0=logq0, logq1=logq1)

    def cost(self, logq: Array) -> Array:
        """Return [...] the divergence at α."""
        dependent = by_agreement(logq, self.sigma, np.array(self.order))[0]
        return np.where(logq >= self.logq0, self.order / self.sigma**2, dependent)

    def sensitivity(self, logq: Array) -> Array:
        """Return [...] how far one teacher moves the cost at q.

        The new q is in [B_L(q), B_U(q)] (Algorithm 3).
        """
        logq = np.where((self.logq1 <= logq) & (logq <= self.logq0), self.logq1, logq)
        here = self.cost(logq)
        # From q1, the next q up is at least q0.
        up = np.minimum(0.0, _moved(logq, self.sigma, self.num_classes, -1) + ROUNDING)
        down = _moved(logq, self.sigma, self.num_classes, 1)
        return np.maximum(self.cost(up) - here, here - self.cost(down))

    def require_smooth(self) -> None:
        """Raise ValueError unless the cost is smooth (C5 and C6).

        Up to q0 the cost must rise with q, and up to q1 so must its step up.
        """
        logq = np.linspace(self.logq0 - 700, self.logq0, TRIED_Q)
        below = np.linspace(self.logq1 - 700, self.logq1, TRIED_Q)
        # C5 and C6 of Papernot et al. 2018, B.4.2, on a grid of log q.
        step = self.cost(_moved(below, self.sigma, self.num_classes, -1)) - self.cost(below)
        for name, values in (("C5", self.cost(logq)), ("C6", step)):
            if not (np.diff(values) >= -1e-12 * np.abs(values[1:])).all():
                raise ValueError(
                    f"sigma must be such that the cost is smooth, got {self.sigma:g} at order "
                    f"{self.order:g} with {self.num_classes} classes, where condition {name} of "
                    "Papernot et al. 2018 fails. Use a larger sigma, or publish "
                    "epsilon_data_independent."
                )


def _crossing(sigma: float, order: float) -> float:
    """Return log q0. From q0 on, the cost is the cost for any votes."""
    highest = min(-((1 + 1 / sigma) ** 2), -(((order - 0.99) / sigma) ** 2), -1 / sigma**2)

    def excess(logq: float) -> float:
        return float(by_agreement(np.array(logq), sigma, np.array(order))[0]) - order / sigma**2

    # Beyond the end of Theorem 6's range there is nothing to cross.
    if excess(highest) < 0:
        return highest
    lowest = 2 * highest
    while excess(lowest) > 0:
        lowest *= 1.5
    return float(brentq(excess, lowest, highest, xtol=1e-14))


def _moved(logq: Array | float, sigma: float, num_classes: int, votes: int) -> Array:
    """Return log q after a change of one teacher: B_L for votes = 1, B_U for -1.

    Source: Papernot et al. 2018, Proposition 12.
    """
    # Proposition 12 in logarithms: q is the tail of num_classes - 1 equal gaps.
    others = math.log(num_classes - 1)
    z = ndtri_exp(np.minimum(logq - others, -1e-300))
    moved: Array = others + log_ndtr(z - math.sqrt(2) * votes / sigma)
    return moved


def _gnmax_sensitivities(votes: NDArray[np.int64], num_teachers: int, shape: _Shape) -> Array:
    """Return [num_teachers + 1] Σ over queries of the largest sensitivity within d votes.

    Source: Papernot et al. 2018, Algorithms 4 and 5.
    """
    plateau = float(shape.sensitivity(np.array(shape.logq1)))
    total, running = np.zeros(num_teachers + 1), np.zeros(len(votes))
    # Only the sorted counts matter, because every class is treated alike.
    ordered = -np.sort(-votes, axis=1)
    logq = log_q(ordered, shape.sigma)
    # Queries with q in [q1, q0] have the largest sensitivity. The others move towards this
    # interval, vote by vote.
    moving = ~((shape.logq1 <= logq) & (logq <= shape.logq0))
    left = logq > shape.logq0
    for distance in range(num_teachers + 1):
        if distance:
            # q above q0: move a vote from the second class to the first.
            change = moving & left
            ordered[change, 0] += 1
            ordered[change, 1] -= 1
            ordered[change] = -np.sort(-ordered[change], axis=1)
            # q below q1: move a vote from the first class to the second.
            change = moving & ~left
            ordered[change, 0] -= 1
            ordered[change, 1] += 1
            logq = np.where(moving, log_q(ordered, shape.sigma), logq)
        # Take the largest sensitivity so far; a query that has reached the interval stays at its
        # plateau.
        running = np.maximum(running, np.where(moving, shape.sensitivity(logq), plateau))
        total[distance] = running.sum()
        moving &= np.where(left, (logq > shape.logq0) & (ordered[:, 1] > 0), logq < shape.logq1)
    return total


def _check_costs(num_teachers: int, threshold: float, sigma1: float, order: float) -> Array:
    """Return [num_teachers + 1] the divergence of the check alone, by the largest count."""
    counts = np.arange(num_teachers + 1)
    return confident_rdp(counts, np.zeros((len(counts), 1)), threshold, sigma1, np.array([order]))[
        :, 0
    ]


def _check_sensitivities(largest: NDArray[np.int64], by_count: Array) -> Array:
    """Return [num_teachers + 1] Σ over queries of the check's sensitivity within d votes."""
    num_teachers = len(by_count) - 1
    steps = np.abs(np.diff(by_count))
    # [count] the larger step to either side.
    local = np.maximum(np.append(steps, 0), np.insert(steps, 0, 0))
    total = np.zeros(num_teachers + 1)
    running = np.zeros(len(largest))
    for distance in range(num_teachers + 1):
        # Within d votes the largest count moves by at most d to either side.
        low, high = np.maximum(largest - distance, 0), np.minimum(largest + distance, num_teachers)
        running = np.maximum(running, np.maximum(local[low], local[high]))
        total[distance] = running.sum()
    return total

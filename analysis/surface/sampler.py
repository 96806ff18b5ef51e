"""Weighted draws from the posterior of a few hyperparameters, by adaptive importance sampling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_ROUNDS = 4
_CLIPPED = 24  # so many of the largest weights count alike where the proposal is adapted
_WIDER = 1.2  # of the standard deviations of a proposal
_FLOOR = 0.02  # of the variances of a proposal, in those of the prior


def posterior_draws(
    log_likelihoods: Callable[[Array], Array],
    rng: np.random.Generator,
    mean: Array,
    std: Array,
    *,
    num_draws: int,
    per_round: int,
) -> Array:
    """Draw hyperparameters from their posterior, shape [num_draws, len(mean)], in random order.

    Args:
        log_likelihoods: log-likelihoods [k] of hyperparameters [k, len(mean)].
        rng: generator of the draws.
        mean, std: of the hyperparameters' independent Gaussian priors.
        num_draws: number of draws, all of equal weight.
        per_round: number of likelihoods of each round.

    The first round proposes from the prior, and each further one from a Gaussian with the mean and
    the covariance that the earlier rounds found. Points are quasi-random. All rounds are weighted
    by the mixture of their proposals, and resampled systematically. The prior's part bounds the
    weights.

    Source: Cornuet, Marin, Mira and Robert 2012, "Adaptive multiple importance sampling"; Koblents
    and Míguez 2015 for the clipped weights; Richtmyer 1951 for the points: multiples of square
    roots of primes, shifted, modulo 1.
    """
    from scipy.special import logsumexp, ndtri

    size = len(mean)
    centre, root, steps = np.zeros(size), np.eye(size), np.sqrt(_primes(size))
    proposals, points, likelihoods = [], np.empty((0, size)), np.empty(0)
    for _ in range(_ROUNDS):
        # Quasi-random points of the present proposal (Richtmyer 1951), with a random shift.
        uniform = (np.arange(per_round)[:, None] * steps + rng.uniform(size=size)) % 1
        proposed = centre + ndtri(uniform.clip(1e-10, 1 - 1e-10)) @ root.T
        proposals.append((centre, root))
        points = np.concatenate([points, proposed])
        likelihoods = np.concatenate([likelihoods, log_likelihoods(mean + std * proposed)])
        # Weigh all points so far by the mixture of all proposals (Cornuet et al. 2012).
        mixture = logsumexp([_log_density(points, *each) for each in proposals], axis=0)
        logs = likelihoods - 0.5 * (points**2).sum(axis=1) - mixture
        if not np.isfinite(logs).any():  # figures too far apart for any model
            return np.tile(mean, (num_draws, 1))
        # Adapt to clipped weights: a few huge ones would collapse the proposal (Koblents, Míguez).
        largest = np.sort(logs[np.isfinite(logs)])[-_CLIPPED:][0]
        clipped = np.exp(np.minimum(logs, largest) - largest)
        clipped /= clipped.sum()
        centre = clipped @ points
        apart = points - centre
        # Wider than the estimate and never flat, so that later rounds lose no region.
        root = _WIDER * np.linalg.cholesky(
            (apart * clipped[:, None]).T @ apart + _FLOOR * np.eye(size)
        )
    # Systematic resampling to draws of equal weight.
    weights = np.exp(logs - logs.max()).cumsum()
    places = np.searchsorted(
        weights, (np.arange(num_draws) + rng.uniform()) / num_draws * weights[-1]
    )
    return mean + std * points[rng.permutation(np.minimum(places, len(points) - 1))]


def _primes(count: int) -> list[int]:
    """Return the first primes."""
    found = [2]
    while len(found) < count:
        found.append(
            next(
                n for n in range(found[-1] + 1, 2 * found[-1]) if all(n % prime for prime in found)
            )
        )
    return found


def _log_density(points: Array, centre: Array, root: Array) -> Array:
    """Return the log density of a Gaussian at some points, but for a constant."""
    standard = np.linalg.solve(root, (points - centre).T)
    density: Array = -0.5 * (standard**2).sum(axis=0) - np.log(np.diag(root)).sum()
    return density

"""Check that a private selection's bound by profiles covers the order of models that tells most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from raydp.extensions.private_selection.choice_checks import DELTA, generating
from raydp.extensions.private_selection.num_runs import (
    BinomialRuns,
    NumRuns,
    PoissonRuns,
    TruncatedNegativeBinomial,
)
from raydp.extensions.private_selection.tuning import tuned_epsilon
from raydp.privacy import PoissonGaussian
from raydp.selftest.check_result import Check, check

RATE, SIGMA = 0.3, 2.0
"""One step with a Poisson sample of this rate. Its two directions of adjacency differ."""
MEAN, TRIALS = 10.0, 20
LARGEST = 1.1
"""Largest factor between the bound and the exact ε of the orders below; 1.02 to 1.05 is usual."""
TOPS = (0.003, 0.01, 0.03, 0.1, 0.2, 0.4, 0.6)
LOSSES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
"""The orders differ in these shares at the top, and in the least losses that come next.

Shares are of outcomes without the record.
"""
Masses = NDArray[np.float64]


def choice_profile_checks() -> list[Check]:
    """Check, for each distribution of K, the ε of a choice that `pld` states.

    The exact ε is the ε of the best of K outcomes of one step, in the direction and under the order
    that reveal most. It puts outcomes first that are much rarer with the record, and next the
    outcomes that are much more frequent with it.
    """
    kinds: dict[str, NumRuns] = {
        "Poisson": PoissonRuns(mean=MEAN),
        "binomial": BinomialRuns(mean=MEAN, trials=TRIALS),
        **{
            f"η = {eta:g}": TruncatedNegativeBinomial.with_mean(MEAN, eta=eta)
            for eta in (-0.5, 0.0, 1.0)
        },
    }
    event = PoissonGaussian(sample_rate=RATE, noise_multiplier=SIGMA, num_steps=1)
    checks = []
    for name, num_runs in kinds.items():
        stated = tuned_epsilon([event], num_runs, DELTA, "pld")
        exact = _exact(num_runs)
        text = f"what is stated over the exact ε {exact:.4g} of the order that tells most, at δ = {DELTA:g}"
        checks.append(
            check(f"ε of a choice by profiles ({name})", stated / exact, 1, LARGEST, text)
        )
    return checks


@cache
def _exact(num_runs: NumRuns) -> float:
    """Return the largest exact ε of the best of K outcomes.

    It is over both directions and several orders.
    """
    # A fine grid of outcomes of one step, with infinite ends so that no mass is lost.
    edges = np.concatenate([[-np.inf], np.linspace(-12, 14, 2601), [np.inf]])
    absent, sampled = (_masses(edges, mean) for mean in (0.0, 1 / SIGMA))
    present = (1 - RATE) * absent + RATE * sampled
    best, _ = generating(num_runs)
    largest = 0.0
    # In each direction, by rising likelihood ratio: the orders below move blocks of this list.
    for one, other in ((present, absent), (absent, present)):
        rising = np.argsort(one / other, kind="stable")
        for p, q in best_in_orders(best, one[rising], other[rising], TOPS, LOSSES):
            largest = max(largest, _epsilon(p, q))
    return largest


def best_in_orders(
    best: Callable[[Masses], Masses],
    one: Masses,
    other: Masses,
    tops: Sequence[float],
    losses: Sequence[float],
) -> Iterator[tuple[Masses, Masses]]:
    """Yield the probabilities of the best of K outcomes on two data sets, for several orders.

    Args:
        best: P[the best of K is among the worst outcomes], from the probability of these outcomes
            in one run.
        one, other: [m] probabilities of the outcomes in one run, by rising one / other.
        tops: shares of the outcomes on the other data set that come first. They have the smallest
            one / other.
        losses: least ln(one / other) of the outcomes that come next. The rest follows.
    """
    known, below = np.log(one) - np.log(other), np.cumsum(other)
    for top in tops:
        first = int(np.searchsorted(below, top))
        for loss in losses:
            second = max(first, int(np.searchsorted(known, loss)))
            # First the outcomes with the smallest one / other, then those with the largest, then
            # the rest.
            order = np.concatenate(
                [np.arange(first), np.arange(second, len(one)), np.arange(first, second)]
            )
            p, q = (
                np.diff(best(np.minimum(np.cumsum(m[order]), 1.0)), prepend=0.0)
                for m in (one, other)
            )
            yield p, q


def _masses(edges: Masses, mean: float) -> Masses:
    """Return the probabilities of cells under N(mean, 1), each half of the line by its own tail."""
    lower, upper = np.diff(stats.norm.cdf(edges, mean)), -np.diff(stats.norm.sf(edges, mean))
    # The smaller tail keeps its relative precision; the difference of two numbers near 1 would not.
    masses: Masses = np.where(edges[1:] <= mean, lower, upper)
    return masses


def _epsilon(p: Masses, q: Masses) -> float:
    """Return the exact ε of two finite distributions at DELTA, in one direction."""

    def excess(epsilon: float) -> float:
        return float(np.maximum(p - np.exp(epsilon) * q, 0).sum()) - DELTA

    return float(optimize.brentq(excess, 0.0, 60.0, xtol=1e-10)) if excess(0.0) > 0 else 0.0

"""Check the batches against what is accounted: each example alone, at the accounted rate."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from raydp.selftest.check_result import Check, check
from raydp.selftest.observe import OTHER_KEY, NoisyMethod, noise_strategy
from raydp.training.noise.stream import TEST_KEY
from raydp.training.trial_plan import TrialPlan

LEVEL = 1e-4
"""Probability that correct sampling fails. With the test key, a check passes always or never."""
NUM_EXAMPLES, BATCH_SIZE, NUM_STEPS = 100, 13, 10_000


def sampling_checks(method: NoisyMethod) -> list[Check]:
    """Check a method's batches against Poisson sampling at the rate q of the method's event.

    Batches of two runs, and batches under two keys, must be independent.

    A method whose noise spans several bands makes that number of updates per step of its event.
    Each example is drawn in at most one of them, and two draws of it are at least that many updates
    apart (Choquette-Choo et al. 2023, Algorithm 2).
    """
    # The draws of two runs and of two keys.
    bands = len(noise_strategy(method, _plan("selftest/sampling", 1)))
    plans = [_plan(f"selftest/sampling/{k}", bands) for k in range(2)]
    updates, other_run = (_masks(method, plan, TEST_KEY) for plan in plans)
    other_key = _masks(method, plans[0], OTHER_KEY)
    event = method.event(plans[0], 1.0)
    q, n, steps = event.sample_rate, plans[0].num_examples, event.num_steps
    # A step of the event is a block of updates; an example counts as drawn if any of them draws it.
    masks, *others = (
        cast("NDArray[np.bool_]", drawn.reshape(steps, bands, n).any(axis=1))
        for drawn in (updates, other_run, other_key)
    )
    # Shuffled batches have a fixed size, and hardly overlap from step to step.
    sizes = masks.sum(axis=1)
    overlaps = (masks[:-1] & masks[1:]).sum(axis=1)
    # Neighbouring overlaps share a batch, so their covariance counts twice (q³ - q⁴ for each
    # example).
    overlap_std = np.sqrt(n * (q**2 * (1 - q**2) + 2 * (q**3 - q**4)) / (steps - 1))
    return [
        _within(
            "sampling rate",
            masks.mean(),
            q,
            np.sqrt(q * (1 - q) / (n * steps)),
            f"q is {q:g}, {steps} steps",
        ),
        _rates(masks.mean(axis=0), q, steps),
        _dispersion(sizes, n, q),
        _within(
            "overlap of two steps in a row",
            overlaps.mean(),
            n * q**2,
            overlap_std,
            "mean number of examples in both",
        ),
        *(
            _within(
                f"overlap of two {what}",
                (masks & other).sum(axis=1).mean(),
                n * q**2,
                np.sqrt(n * q**2 * (1 - q**2) / steps),
                "mean number of examples in the same step of both",
            )
            for what, other in zip(("runs", "keys"), others, strict=True)
        ),
        *([_separation(updates, bands)] if bands > 1 else []),
    ]


def _plan(run_id: str, bands: int) -> TrialPlan:
    """Return a plan with about the same rate for any number of bands, in whole rounds."""
    return TrialPlan(
        run_id=run_id,
        batch_size=max(1, BATCH_SIZE // bands),
        num_steps=NUM_STEPS // bands * bands,
        learning_rate=1.0,
        seed=0,
        num_examples=max(NUM_EXAMPLES, 7 * bands),
        noise_multiplier=1.0,
    )


def _masks(method: NoisyMethod, plan: TrialPlan, key: bytes) -> NDArray[np.bool_]:
    """Return which examples are in each batch, shape [step, example]."""
    masks = np.zeros((plan.num_steps, plan.num_examples), np.bool_)
    for step in range(plan.num_steps):
        masks[step, method.batch_indices(plan, key, step)] = True
    return masks


def _within(name: str, figure: float, expected: float, std: float, detail: str) -> Check:
    """Check that a figure lies as near to its expectation as its standard deviation allows."""
    reach = stats.norm.isf(LEVEL / 2) * std
    return check(name, figure, expected - reach, expected + reach, detail)


def _separation(updates: NDArray[np.bool_], bands: int) -> Check:
    """Check the smallest number of updates between two draws of an example."""
    rows = [np.diff(np.flatnonzero(drawn)) for drawn in updates.T]
    fewest = min((int(gaps.min()) for gaps in rows if len(gaps)), default=len(updates))
    return check(
        "updates between two draws of an example",
        fewest,
        bands,
        len(updates),
        f"the noise of so many is correlated: {bands}",
    )


def _rates(rates: NDArray[np.float64], q: float, steps: int) -> Check:
    """Check the rate of the example furthest from q, each tested at its share of the level."""
    furthest = rates[np.abs(rates - q).argmax()]
    share = LEVEL / len(rates)
    low, high = (stats.binom.ppf([share / 2, 1 - share / 2], steps, q)) / steps
    return check(
        "sampling rate of each example",
        furthest,
        low,
        high,
        f"the furthest from q of {len(rates)} examples",
    )


def _dispersion(sizes: NDArray[np.int64], n: int, q: float) -> Check:
    """Check the variance of the batch sizes; its spread is by the binomial's fourth moment."""
    # Central moments of the binomial distribution.
    variance = n * q * (1 - q)
    fourth = 3 * variance**2 + variance * (1 - 6 * q * (1 - q))
    std = np.sqrt((fourth - variance**2) / len(sizes)) / variance
    ratio = np.square(sizes - n * q).mean() / variance
    return _within(
        "variance of the batch size",
        ratio,
        1.0,
        std,
        "over n q (1 - q); 0 for batches of fixed size",
    )

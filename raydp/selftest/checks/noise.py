"""Check that the noise is as accounted: N(0, (σc)²) on every coordinate, added once, never reused.

σ is what the method's own event claims, so an event that claims more noise than is drawn is
detected. If it claims 5 % more, each of the 49,152 draws of a self-test has 9 % less variance, and
the test allows only 2.5 %.

If the noise of a step is correlated with the noise of earlier steps, C times the noise is checked
instead. C is also checked not to amplify a record's gradient: no column of C may be longer than 1.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.linalg import toeplitz

from raydp.selftest.check_result import Check, check
from raydp.selftest.linear import LinearTask, linear_training_context
from raydp.selftest.observe import (
    NO_NOISE,
    OTHER_KEY,
    NoisyMethod,
    accounted_event,
    accounted_noise,
    noise_strategy,
    observed_plan,
    summed_updates,
    with_sgd,
)
from raydp.selftest.ranks import on_ranks
from raydp.training.comm import Comm, LocalComm
from raydp.training.noise.lattice import LATTICE_SHARE, NOISE_WIDENING
from raydp.training.noise.stream import TEST_KEY
from raydp.training.trial_plan import TrialPlan

LEVEL = 1e-4
"""Probability that correct noise fails. With the test key, a check passes always or never."""
NUM_EXAMPLES, BATCH_SIZE, SIGMA = 24, 1, 2.0
NUM_STEPS, MOST_STEPS, NUM_LAYERS, WIDTH = 6, 32, 2, 32
"""Correlated noise gets more steps, up to a limit. Longer lags are not checked."""
RUN_IDS = tuple(f"selftest/noise/{k}" for k in range(4))
RANKS = 2
SAME = 0.01
"""Largest difference between noises that are equal but for rounding. Missing noise gives 1."""
WIDENED = 1 + 2.0**-13 + 1e-5
"""Least std of the noise over σ c: the sensitivity of the rounded sum over c (docs/privacy.md).

It is a number of its own, so that the code's constants are compared with something.
"""


def noise_checks(method: NoisyMethod) -> list[Check]:
    """Check C times the noise of a method's updates, in units of its std, with 1 and 2 workers.

    The noise is (update with noise - update without) · b. C is the identity for independent noise.
    """
    # Noise of several runs, of another key, and of several workers.
    other = _noise(method, RUN_IDS[0], LocalComm(), OTHER_KEY)
    # [run, step, layer, coordinate].
    alone = np.stack([_noise(method, run_id, LocalComm()) for run_id in RUN_IDS])
    shared = on_ranks(RANKS, lambda comm: _noise(method, RUN_IDS[0], comm))
    runs = np.concatenate(alone, axis=1)  # [step, run · layer, coordinate]
    return [
        variance("noise variance", alone.ravel()),
        _cells("noise variance in each step and parameter", alone.reshape(-1, alone.shape[-1])),
        mean("noise mean", alone.ravel()),
        correlation("noise of two steps", list(runs.reshape(len(runs), -1))),
        correlation(
            "noise of two parameters", list(np.moveaxis(alone, 2, 0).reshape(NUM_LAYERS, -1))
        ),
        correlation("noise of two runs", list(alone.reshape(len(RUN_IDS), -1))),
        correlation("noise of two keys", [alone[0].ravel(), other.ravel()]),
        variance(f"noise variance, {RANKS} workers", shared[0].ravel()),
        check(
            f"noise of {RANKS} workers is the same",
            np.abs(shared[0] - shared[1]).max(),
            0,
            0,
            "largest difference between the workers' noise, in units of its std",
        ),
        check(
            f"noise of {RANKS} workers is that of one",
            np.abs(shared[0] - alone[0]).max(),
            0,
            SAME,
            "largest difference on a coordinate, in units of its std; the sums are added in "
            "another order",
        ),
        check(
            "updates that are not accounted",
            _not_accounted(method),
            0,
            0,
            "those beyond the steps of the event",
        ),
        check(
            "longest column of the noise's strategy",
            float(np.linalg.norm(_strategy(method))),
            0,
            1 + LATTICE_SHARE,
            "what the noise takes a record's clipped gradient for; allows for rounding",
        ),
        check(
            "widening of the noise",
            NOISE_WIDENING,
            WIDENED,
            1.001,
            "std of the noise over σ c; pays for the lattice, 2^-13 c, and for rounded gradients, "
            "1e-5 c",
        ),
    ]


def _strategy(method: NoisyMethod) -> NDArray[np.float64]:
    """Return [b̂] the longest column of C, the first; the others are moved down and cut off."""
    return noise_strategy(method, _plan(RUN_IDS[0], SIGMA, 1))


def _not_accounted(method: NoisyMethod) -> int:
    """Return how many noisy updates the method's event does not account for.

    For correlated noise, a step of the event is a block of updates.
    """
    bands = len(_strategy(method))
    event, num_updates = accounted_event(method, _plan(RUN_IDS[0], SIGMA, bands))
    return max(0, num_updates - event.num_steps * bands)


def _plan(run_id: str, noise_multiplier: float, bands: int) -> TrialPlan:
    """Return a plan with enough steps to see every band, and an example for each."""
    return observed_plan(
        run_id,
        batch_size=BATCH_SIZE,
        num_steps=max(NUM_STEPS, min(bands + 2, MOST_STEPS)),
        num_examples=max(NUM_EXAMPLES, bands),
        noise_multiplier=noise_multiplier,
    )


def _noise(
    method: NoisyMethod, run_id: str, comm: Comm, key: bytes = TEST_KEY
) -> NDArray[np.float64]:
    """Return C times the noise over its std, [step, layer, coordinate].

    With independent noise, a third of the steps draws no example.
    """
    # The same batches with and without noise, so that their difference is the noise alone.
    column = _strategy(method)
    plan = _plan(run_id, SIGMA, len(column))
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (torch.randn(plan.num_examples, WIDTH, generator=generator) for _ in range(2))
    task = LinearTask(inputs, targets, num_reference=plan.num_examples // 3)

    def updates(noise_multiplier: float) -> torch.Tensor:
        context = linear_training_context(WIDTH, WIDTH, NUM_LAYERS)
        observed = replace(plan, noise_multiplier=noise_multiplier)
        return torch.stack(
            summed_updates(with_sgd(method), observed, context, task, comm, key=key)
        ).double()

    # The widening of 2^-12 is below what is measured.
    std = accounted_noise(method, plan) * method.max_grad_norm
    noise = (updates(SIGMA) - updates(NO_NOISE)) / std
    # C as a matrix decorrelates the steps; what is left must be independent.
    below = column[: plan.num_steps]
    c = toeplitz(np.pad(below, (0, plan.num_steps - len(below))), np.zeros(plan.num_steps))
    return np.tensordot(c, noise.view(plan.num_steps, NUM_LAYERS, -1).numpy(), axes=1)


def variance(name: str, samples: NDArray[np.float64]) -> Check:
    """Check the mean square of samples that should be standard normal."""
    low, high = stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], len(samples)) / len(samples)
    return check(
        name,
        np.square(samples).mean(),
        low,
        high,
        f"over its plan, {len(samples)} draws, chi-square test",
    )


def _cells(name: str, cells: NDArray[np.float64]) -> Check:
    """Check the variance furthest from 1 among many, each tested at its share of the level."""
    # A Bonferroni correction: each cell gets its share of the level.
    variances = np.square(cells).mean(axis=1)
    share, count = LEVEL / len(cells), cells.shape[1]
    low, high = stats.chi2.ppf([share / 2, 1 - share / 2], count) / count
    furthest = variances[np.abs(np.log(np.maximum(variances, 1e-300))).argmax()]
    return check(
        name, furthest, low, high, f"the furthest from 1 of {len(cells)}, each of {count} draws"
    )


def mean(name: str, samples: NDArray[np.float64]) -> Check:
    """Check the mean of samples that should be standard normal."""
    bound = stats.norm.isf(LEVEL / 2) / np.sqrt(len(samples))
    return check(name, samples.mean(), -bound, bound, f"over the planned std, {len(samples)} draws")


def correlation(name: str, samples: list[NDArray[np.float64]]) -> Check:
    """Check the largest correlation of two samples, each pair tested at its share of the level."""
    # The mean of n products of independent normals has standard deviation 1 / sqrt(n).
    pairs = list(combinations(range(len(samples)), 2))
    bound = stats.norm.isf(LEVEL / 2 / len(pairs)) / np.sqrt(len(samples[0]))
    products = [float(np.mean(samples[i] * samples[j])) for i, j in pairs]
    largest = max(products, key=abs)
    return check(
        name,
        largest,
        -bound,
        bound,
        f"largest of {len(pairs)} mean products of {len(samples[0])} draws",
    )

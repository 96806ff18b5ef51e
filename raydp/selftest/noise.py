"""Whether the noise is what the accountant was told: N(0, (σc)²) on every coordinate of the sum, once, never reused."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from raydp.selftest.base import Check, check
from raydp.selftest.linear import LinearTask, linear_trainee
from raydp.selftest.observe import NO_NOISE, observed_plan, summed_updates, with_sgd
from raydp.selftest.ranks import on_ranks
from raydp.training.comm import Comm, LocalComm
from raydp.training.lattice import NOISE_WIDENING

LEVEL = 1e-4
"""Chance that right noise fails a check; with the fixed test key it passes always or never."""
NUM_EXAMPLES, BATCH_SIZE, SIGMA = 24, 1, 2.0
NUM_STEPS, NUM_LAYERS, WIDTH = 6, 2, 32
RUN_IDS = tuple(f"selftest/noise/{k}" for k in range(4))
RANKS = 2


def noise_checks(method: Any) -> list[Check]:
    """The noise of a method's updates, (update with noise - update without) · b, over its std, in 1 and 2 workers."""
    alone = np.stack([_noise(method, run_id, LocalComm()) for run_id in RUN_IDS])  # [run, step, layer, coordinate]
    shared = on_ranks(RANKS, lambda comm: _noise(method, RUN_IDS[0], comm))
    runs = np.concatenate(alone, axis=1)  # [step, run · layer, coordinate]
    return [
        _variance("noise variance", alone.ravel()),
        _cells("noise variance in each step and parameter", alone.reshape(-1, alone.shape[-1])),
        _mean("noise mean", alone.ravel()),
        _correlation("noise of two steps", list(runs.reshape(NUM_STEPS, -1))),
        _correlation("noise of two parameters", list(np.moveaxis(alone, 2, 0).reshape(NUM_LAYERS, -1))),
        _correlation("noise of two runs", list(alone.reshape(len(RUN_IDS), -1))),
        _variance(f"noise variance, {RANKS} workers", shared[0].ravel()),
        check(
            f"noise of {RANKS} workers is the same", np.abs(shared[0] - shared[1]).max(), 0, 0,
            "largest difference between the workers' noise, in units of its std",
        ),
    ]  # fmt: skip


def _noise(method: Any, run_id: str, comm: Comm) -> NDArray[np.float64]:
    """[step, layer, coordinate] the noise over its std; a third of the steps draws no example."""
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (torch.randn(NUM_EXAMPLES, WIDTH, generator=generator) for _ in range(2))
    task = LinearTask(inputs, targets)

    def updates(noise_multiplier: float) -> torch.Tensor:
        plan = observed_plan(
            run_id,
            batch_size=BATCH_SIZE,
            num_steps=NUM_STEPS,
            num_examples=NUM_EXAMPLES,
            noise_multiplier=noise_multiplier,
        )
        trainee = linear_trainee(WIDTH, WIDTH, NUM_LAYERS)
        return torch.stack(summed_updates(with_sgd(method), plan, trainee, task, comm)).double()

    noise = (updates(SIGMA) - updates(NO_NOISE)) / (SIGMA * method.max_grad_norm * NOISE_WIDENING)
    return noise.view(NUM_STEPS, NUM_LAYERS, -1).numpy()


def _variance(name: str, samples: NDArray[np.float64]) -> Check:
    low, high = stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], len(samples)) / len(samples)
    return check(name, np.square(samples).mean(), low, high, f"over its plan, {len(samples)} draws, chi-square test")


def _cells(name: str, cells: NDArray[np.float64]) -> Check:
    """The variance that is furthest from 1 among many, each tested at its share of the level."""
    variances = np.square(cells).mean(axis=1)
    share, count = LEVEL / len(cells), cells.shape[1]
    low, high = stats.chi2.ppf([share / 2, 1 - share / 2], count) / count
    furthest = variances[np.abs(np.log(np.maximum(variances, 1e-300))).argmax()]
    return check(name, furthest, low, high, f"the furthest from 1 of {len(cells)}, each of {count} draws")


def _mean(name: str, samples: NDArray[np.float64]) -> Check:
    bound = stats.norm.isf(LEVEL / 2) / np.sqrt(len(samples))
    return check(name, samples.mean(), -bound, bound, f"over the planned std, {len(samples)} draws")


def _correlation(name: str, samples: list[NDArray[np.float64]]) -> Check:
    """The largest correlation of two, each pair tested at its share of the level."""
    pairs = list(combinations(range(len(samples)), 2))
    bound = stats.norm.isf(LEVEL / 2 / len(pairs)) / np.sqrt(len(samples[0]))
    products = [float(np.mean(samples[i] * samples[j])) for i, j in pairs]
    largest = max(products, key=abs)
    return check(name, largest, -bound, bound, f"largest of {len(pairs)} mean products of {len(samples[0])} draws")

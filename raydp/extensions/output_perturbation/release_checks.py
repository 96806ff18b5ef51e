"""Check the noise that is added once, to trained weights, against what is accounted."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from raydp.extensions.classification.labelled import (
    ClassificationTask,
    LabelledExamples,
    classification_task,
)
from raydp.extensions.output_perturbation.method import ROUNDING, OutputPerturbation
from raydp.selftest.check_result import Check, check
from raydp.selftest.checks.noise import RANKS, correlation, mean, variance
from raydp.selftest.observe import NO_NOISE, OTHER_KEY, accounted_noise, flat
from raydp.selftest.ranks import on_ranks
from raydp.training.comm import Comm, LocalComm
from raydp.training.noise.lattice import LATTICE_SHARE
from raydp.training.noise.stream import TEST_KEY
from raydp.training.trial import TrainingContext
from raydp.training.trial_plan import TrialPlan

NUM_EXAMPLES, BATCH_SIZE, NUM_STEPS, SIGMA = 8, 3, 11, 2.0
WIDTH = 1500
"""Width of the inputs. There are enough weights to detect noise that is 5 % too small."""
SURE = 20.0
"""Bias of one class at the start: an example of another label moves the weights the most."""
FOUND = 0.97
"""Share of the sensitivity that a record must reach, to detect a wrong sensitivity."""


def release_checks(method: OutputPerturbation) -> list[Check]:
    """Check output perturbation on examples that its start is wrong about.

    One of the examples is not finite.

    1. Leaving out any one example moves the trained weights by at most their sensitivity, and one
       nearly reaches it.
    2. Every pass uses each place once.
    3. The noise is N(0, (σΔ)²) on every weight, drawn once, and different in another run and under
       another key.
    """
    task = _task()
    apart = [_moved(method, task, last) for last in range(NUM_EXAMPLES)]
    runs = [_noise(method, task, f"selftest/release/{k}", LocalComm()) for k in range(2)]
    # The key must decide the noise, not the run alone; and workers must not draw noise of their
    # own.
    other = _noise(method, task, "selftest/release/0", LocalComm(), OTHER_KEY)
    shared = on_ranks(RANKS, lambda comm: _noise(method, task, "selftest/release/0", comm))
    passes = _passes(method)
    # Rounding to the lattice may add to the distance; the noise pays for it.
    allowed = 1 + LATTICE_SHARE + ROUNDING
    return [
        check(
            "one record (trained weights)",
            max(apart),
            FOUND,
            allowed,
            f"largest distance of the weights when one of {NUM_EXAMPLES} examples is left out, "
            "over the sensitivity",
        ),
        check(
            "uses of a place in a pass",
            max(passes, key=lambda count: abs(count - 1)),
            1,
            1,
            "the furthest from 1",
        ),
        variance("noise variance (trained weights)", np.concatenate(runs)),
        mean("noise mean (trained weights)", np.concatenate(runs)),
        correlation("noise of two runs (trained weights)", runs),
        correlation("noise of two keys (trained weights)", [runs[0], other]),
        variance(f"noise variance, {RANKS} workers (trained weights)", shared[0]),
        check(
            f"noise of {RANKS} workers is the same (trained weights)",
            np.abs(shared[0] - shared[1]).max(),
            0,
            0,
            "largest difference between the workers' noise, in units of its std",
        ),
    ]


def _task() -> ClassificationTask:
    rng = np.random.default_rng(0)
    # All inputs are beyond the input norm.
    inputs = rng.normal(size=(NUM_EXAMPLES, WIDTH)).astype(np.float32) * np.float32(1e20)
    inputs[1, 3] = np.nan
    return _as_task(LabelledExamples(inputs=inputs, labels=np.ones(NUM_EXAMPLES, np.int64)))


def _as_task(examples: LabelledExamples) -> ClassificationTask:
    return classification_task(
        examples,
        examples,
        num_classes=5,
        unit="example",
        measured_by="error_rate",
        notes={},
        utility_is_public=False,
    )


def _plan(method: OutputPerturbation, run_id: str, noise_multiplier: float) -> TrialPlan:
    """Return a plan that is so slow that the start's error stays."""
    plan = TrialPlan(
        run_id=run_id,
        batch_size=BATCH_SIZE,
        num_steps=NUM_STEPS,
        learning_rate=1e-9,
        seed=0,
        num_examples=NUM_EXAMPLES,
        noise_multiplier=noise_multiplier,
    )
    return dataclasses.replace(plan, learning_rate=method.descent(plan).largest_learning_rate / 200)


def _weights(
    method: OutputPerturbation,
    task: ClassificationTask,
    plan: TrialPlan,
    comm: Comm,
    key: bytes = TEST_KEY,
) -> torch.Tensor:
    layer = nn.Linear(task.train.inputs.shape[1], task.num_classes).double()
    # Two workers in one process share a generator, so layers would start differently.
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    layer.bias.data[0] = SURE
    context = TrainingContext(model=layer.eval(), parameters=dict(sorted(layer.named_parameters())))
    method.train(plan, context, task, comm, key, None)
    return flat(context)


def _moved(method: OutputPerturbation, task: ClassificationTask, last: int) -> float:
    """Return how far the weights move, over the sensitivity, if one place stays empty."""
    # The example goes to the last place, so that no other example moves.
    order = np.append(np.delete(np.arange(NUM_EXAMPLES), last), last)
    plan = _plan(method, f"selftest/release/without/{last}", NO_NOISE)
    whole, less = (_as_task(task.train.select(indices)) for indices in (order, order[:-1]))
    apart = _weights(method, whole, plan, LocalComm()) - _weights(method, less, plan, LocalComm())
    return float(torch.linalg.vector_norm(apart)) / method.descent(plan).sensitivity(plan.num_steps)


def _noise(
    method: OutputPerturbation,
    task: ClassificationTask,
    run_id: str,
    comm: Comm,
    key: bytes = TEST_KEY,
) -> NDArray[np.float64]:
    """Return the noise over its std, shape [d]."""
    # Noise is the difference of two equal trainings.
    noisy, quiet = (
        _weights(method, task, _plan(method, run_id, sigma), comm, key)
        for sigma in (SIGMA, NO_NOISE)
    )
    sensitivity = method.descent(_plan(method, run_id, SIGMA)).sensitivity(NUM_STEPS)
    claimed = accounted_noise(method, _plan(method, run_id, SIGMA))
    return ((noisy - quiet) / (claimed * sensitivity)).numpy()


def _passes(method: OutputPerturbation) -> list[int]:
    """Return how often each place is used in each pass."""
    plan = _plan(method, "selftest/release/0", SIGMA)
    each = method.descent(plan).num_batches
    passes = [range(first, first + each) for first in range(0, 3 * each, each)]
    return [
        int(
            (
                np.concatenate([method.batch_indices(plan, TEST_KEY, step) for step in steps])
                == place
            ).sum()
        )
        for steps in passes
        for place in range(NUM_EXAMPLES)
    ]

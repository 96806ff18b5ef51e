"""Check that dividing the work changes no result: workers, a kill and resume."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from raydp.selftest.check_result import Check, check
from raydp.selftest.linear import LinearTask, linear_training_context
from raydp.selftest.observe import (
    NO_NOISE,
    NoisyMethod,
    flat,
    noise_strategy,
    observed_plan,
    summed_updates,
    with_sgd,
)
from raydp.selftest.ranks import on_ranks
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm, LocalComm
from raydp.training.noise.lattice import LATTICE_SHARE
from raydp.training.noise.stream import TEST_KEY
from raydp.training.observers import AfterStep, StepReport
from raydp.training.trial_plan import TrialPlan

NUM_EXAMPLES, BATCH_SIZE, NUM_STEPS, WIDTH, NUM_LAYERS = 40, 8, 8, 8, 2
KILLED_IN = 5
"""The step that is killed after its update and before its checkpoint, so that it is repeated."""
LITTLE_NOISE = 0.01
"""Noise for adaptive clipping's count to be accepted: a thousand times what rounding could hide."""
RANKS = (2, 3)
ROUNDING = 1e-5
"""Relative error of a sum that another order of addition explains."""


class _Killed(Exception):  # noqa: N818 - a simulated kill, not an error
    """Raised to simulate a kill of the run."""


def cut_checks(method: NoisyMethod) -> list[Check]:
    """Compare the work of one worker without interruption with the same work divided differently.

    1. The sums of several workers equal the sums of one worker, so every drawn example counts once.
    2. A run that is killed between an update and its checkpoint, and then resumed, has the weights
       of an undisturbed run after every step. So the repeated step has the same batch and the same
       noise, and no later step reuses the batch or the noise of an earlier step.
    """
    # One worker without interruption is the reference.
    whole = _sums(method, LocalComm())
    size = float(whole.norm())
    # Sums that differ by rounding may go to neighbouring points of the lattice, in every step.
    bound = ROUNDING + LATTICE_SHARE * method.max_grad_norm * NUM_STEPS**0.5 / size
    apart = {
        ranks: max(float((sums - whole).norm()) for sums in _on(method, ranks)) / size
        for ranks in RANKS
    }
    again, further = _resumed(method)
    return [
        *(
            check(
                f"sum of {ranks} workers",
                error,
                0,
                bound,
                "relative difference from one worker's, over all steps",
            )
            for ranks, error in apart.items()
        ),
        check(
            "a step that is done again",
            again,
            0,
            ROUNDING,
            "relative difference of the weights after it",
        ),
        check(
            "steps after a resume",
            further,
            0,
            ROUNDING,
            "largest relative difference of the weights after them",
        ),
    ]


def _on(method: NoisyMethod, ranks: int) -> list[torch.Tensor]:
    """Return each worker's sums, with the work divided among some workers."""
    return on_ranks(ranks, lambda comm: _sums(method, comm))


def _task() -> LinearTask:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (torch.randn(NUM_EXAMPLES, WIDTH, generator=generator) for _ in range(2))
    return LinearTask(inputs, targets, num_reference=NUM_EXAMPLES // 3)


def _plan(method: NoisyMethod, noise_multiplier: float) -> TrialPlan:
    """Return the plan. If noise is correlated, the batch size leaves room for the bands."""
    plan = observed_plan(
        "selftest/cuts",
        batch_size=BATCH_SIZE,
        num_steps=NUM_STEPS,
        num_examples=NUM_EXAMPLES,
        noise_multiplier=noise_multiplier,
    )
    bands = len(noise_strategy(method, plan))
    if bands == 1:
        return plan
    return replace(plan, batch_size=1, num_examples=max(NUM_EXAMPLES, bands))


def _sums(method: NoisyMethod, comm: Comm) -> torch.Tensor:
    """Return [step, coordinate] the clipped sums on the method's batches, without noise."""
    context = linear_training_context(WIDTH, WIDTH, NUM_LAYERS)
    return torch.stack(
        summed_updates(with_sgd(method), _plan(method, NO_NOISE), context, _task(), comm)
    )


def _resumed(method: NoisyMethod) -> tuple[float, float]:
    """Return relative differences of weights between a killed and resumed run and another one.

    The other run is not disturbed.

    The first is after the repeated step, the second is the largest after the following steps.
    """

    def train(kill: bool, store: CheckpointStore | None) -> dict[int, torch.Tensor]:
        context, after = (
            linear_training_context(WIDTH, WIDTH, NUM_LAYERS),
            dict[int, torch.Tensor](),
        )

        def watch(report: StepReport) -> None:
            # Weights after each step, before the checkpoint of the step.
            after[report.done - 1] = flat(context)
            if kill and report.done - 1 == KILLED_IN:
                raise _Killed

        observed = replace(context, checkpoint_seconds=0.0, observers=(AfterStep(watch),))
        with suppress(_Killed):
            with_sgd(method).train(plan, observed, task, LocalComm(), TEST_KEY, store)
        return after

    plan, task = _plan(method, LITTLE_NOISE), _task()
    expected = train(kill=False, store=None)
    # Kill one run, and resume it from its own checkpoint.
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(folder=Path(folder), run_id=plan.run_id)
        train(kill=True, store=store)
        resumed = train(kill=False, store=store)
    assert min(resumed) == KILLED_IN, "the checkpoint is of the step before"
    apart = {
        step: float((weights - expected[step]).norm() / expected[step].norm())
        for step, weights in resumed.items()
    }
    return apart.pop(KILLED_IN), max(apart.values())

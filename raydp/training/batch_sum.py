"""The sum of the clipped gradients of a step's units, in micro-batches that fit into memory."""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.models.vector_layers import ExampleDropout, dropouts_of, dropping
from raydp.tasks.task import Examples, Task
from raydp.training import sharding
from raydp.training.comm import Comm
from raydp.training.gradients.memory import is_out_of_memory
from raydp.training.gradients.microbatches import Units
from raydp.training.gradients.thresholds import Clipping
from raydp.training.gradients.vjp import unsupported
from raydp.training.gradients.weights import UnitWeights
from raydp.training.noise.correlated import CorrelatedNoise
from raydp.training.noise.stream import KeyedStream
from raydp.training.observers import Step
from raydp.training.schedule import LearningRateSchedule
from raydp.training.trial import Pause, TrainingContext
from raydp.training.trial_plan import TrialPlan
from raydp.training.vector import GradientVector

PAUSE = 4
"""Position in a step's sums at which rank 0 says that it pauses.

The step then does not count.
"""
START_AGAIN = (
    "a micro-batch of a sharded model did not fit into memory, and the other workers wait in the "
    "middle of a pass. The next attempt takes half as many tokens; or set cluster.microbatch_size."
)


class GradientSum(Protocol):
    """Adds a micro-batch's gradients to a running sum.

    Implementers: `ClippedGradients`, and the plain sum of methods/nonprivate.py.
    """

    def accumulate(
        self,
        loss_fn: Callable[[], torch.Tensor],
        total: MutableMapping[str, torch.Tensor],
        examples_per_unit: int = 1,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return [2, U] the losses and gradient norms of the units."""


@dataclass(frozen=True, kw_only=True)
class StepRule:
    """The parts of the training loop that differ between methods.

    Attributes:
        indices_fn: step -> the units of the global batch, identical on every rank.
        gradients: sums the per-example gradients.
        clipping: owns the threshold c, which may change from step to step; inf if nothing is
            clipped.
        noise_multiplier: standard deviation of the noise on the sum, per coordinate, over its
            sensitivity; 0 for none.
        optimizer: holds the trained parameters in the order of their sorted names.
        noise: correlation of the noise of a step with the noise of earlier steps; independent by
            default.
        weights: weights of the units, each of one example; None for equal weights.
        schedule: factors of the learning rate by step; None for the same rate in all steps.
    """

    indices_fn: Callable[[int], NDArray[np.int64]]
    gradients: GradientSum
    clipping: Clipping
    noise_multiplier: float
    optimizer: torch.optim.Optimizer
    noise: CorrelatedNoise = field(default_factory=CorrelatedNoise)
    weights: UnitWeights | None = None
    schedule: LearningRateSchedule | None = None

    def update(self, plan: TrialPlan, step: int) -> None:
        """Update the weights by the gradient in them, at the step's learning rate."""
        if self.schedule is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = plan.learning_rate * self.schedule.factor(step)
        self.optimizer.step()


class BatchSum:
    """Adds up the clipped gradients of this rank's share of each step's units."""

    def __init__(
        self,
        rule: StepRule,
        context: TrainingContext,
        task: Task,
        comm: Comm,
        stream: KeyedStream,
        vector: GradientVector,
    ) -> None:
        self._rule, self._context, self._task, self._comm = rule, context, task, comm
        self._stream, self._total = stream, vector.views
        self._units, self._dropouts = Units.of(task), dropouts_of(context.model)
        self._pause = Pause(context, comm)

    def accumulate(self, step: Step) -> torch.Tensor:
        """Set the vector to the sum over this rank's units.

        If the parameters are sharded, it is set to this rank's part of the sum over all units.

        Returns:
            [5] float64 sums of loss, norm, unclipped units and drawn units, and at `PAUSE` whether
            this rank was asked to pause: then the vector is not complete.

        Raises:
            RuntimeError: the micro-batches do not fit into memory, and cannot be smaller.
        """
        share = self._share_of(step.units)
        # Asked once before the first micro-batch, then between micro-batches.
        self._pause.ask()
        # Start again from zero with smaller micro-batches. A partial sum must not enter the step.
        while (sums := self._tried(share, step)) is None:
            self._context.budget.halve()
        sums[PAUSE] += self._pause.heard
        return sums

    def _share_of(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return this rank's part of the drawn units, without those that are not run."""
        # Virtual units are drawn like other units, but have no example that a model could run.
        virtual = self._context.virtual_units
        if virtual:
            units = units[(units < virtual.start) | (units >= virtual.stop)]
        # A unit of weight 0 adds nothing; its gradient would be wasted work.
        if self._rule.weights is not None:
            units = self._rule.weights.counting(units)
        return self._units.share(units, self._comm)

    def _tried(self, share: NDArray[np.int64], step: Step) -> torch.Tensor | None:
        """Return the sums, as `accumulate`; None if smaller micro-batches may fit into memory."""
        context, rule, task = self._context, self._rule, self._task
        # Start from zero sums.
        for gradient in self._total.values():
            gradient.zero_()
        device = next(iter(self._total.values())).device
        sums = torch.zeros(PAUSE + 1, dtype=torch.float64, device=device)
        sharded = sharding.is_sharded(context.model)
        running, idle = sharding.running_sums(context.model, context.parameters, self._total)
        batches = self._units.microbatches(share, context.microbatch_size, context.budget.tokens)
        in_lockstep, pause = sharding.in_lockstep, self._pause
        for microbatch in in_lockstep(batches, self._comm) if sharded else pause.between(batches):
            # A rank without a micro-batch runs any example, because the other ranks need its
            # weights. The example is not counted.
            indices, per_unit = microbatch or (np.array([np.argmin(self._units.lengths)]), 1)
            batch: Examples = task.batch(indices).to(device)
            into = idle if microbatch is None else running
            weights = None
            if rule.weights is not None and microbatch is not None:
                weights = rule.weights.of(indices, device)
            assert weights is None or per_unit == 1, "weights are of units of one example"
            # Add the micro-batch's gradients; without memory, take smaller ones or give up.
            try:
                with example_masks(self._dropouts, self._stream, step.number, indices):
                    losses, norms = rule.gradients.accumulate(
                        partial(losses_of, context, task, batch), into, per_unit, weights
                    )
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if context.microbatch_size is None and len(indices) > per_unit:
                    # The other ranks wait in the middle of a collective pass, so this rank cannot
                    # start again alone.
                    if not sharded:
                        return None
                    context.budget.halve()
                    raise RuntimeError(START_AGAIN) from error
                raise RuntimeError(_too_large(context, batch, per_unit)) from error
            # Count losses, norms and units.
            if microbatch is None:
                continue
            unclipped = (norms <= step.threshold).sum()
            drawn = torch.full_like(norms[0], len(norms))
            sums[:PAUSE] += torch.stack([losses.sum(), norms.sum(), unclipped.to(norms), drawn])
        return sums


def example_masks(
    dropouts: Sequence[ExampleDropout], stream: KeyedStream, step: int, examples: NDArray[np.int64]
) -> AbstractContextManager[None]:
    """Let a model drop inputs of a micro-batch for a block, by masks from the run's keyed stream.

    A mask depends on the step, the layer and the example alone, so the clipped gradient of an
    example does too: the guarantee is that of the same training without dropout. A share is
    rounded to a multiple of 2^-16.
    """

    def keep(layer: str, shape: torch.Size, share: float) -> torch.Tensor:
        # A mask for each example needs one row for each example.
        if shape[0] != len(examples):
            what = f"its input {tuple(shape)} has no row for each example"
            raise ValueError(unsupported(layer, what))
        count = math.prod(shape[1:])
        names = (f"{layer}:{example}" for example in examples)
        # 16 bits a value: a word of the stream has four.
        drawn = [
            stream.bits(-(-count // 4), step=step, purpose="dropout", name=name) for name in names
        ]
        kept = np.stack([bits.view("<u2")[:count] for bits in drawn]) >= round(share * 2**16)
        return torch.from_numpy(kept).view(shape)

    return dropping(dropouts, keep) if dropouts else nullcontext()


def losses_of(context: TrainingContext, task: Task, batch: Examples) -> torch.Tensor:
    """Return [B] per-example losses, with matrix products in the context's precision."""
    kind, dtype = batch.device.type, context.autocast
    with torch.autocast(kind, dtype=dtype, enabled=dtype is not None):
        return task.per_example_loss(context.model, batch)


def _too_large(context: TrainingContext, batch: Examples, per_unit: int) -> str:
    """Return why a micro-batch that cannot be smaller does not fit."""
    if context.microbatch_size is not None:
        return (
            "cluster.microbatch_size must fit into memory, got "
            f"{context.microbatch_size}, and {batch.size} do not. Lower it, or leave it out."
        )
    return (
        f"one unit of {batch.size} does not fit into memory. Set cluster.gradient_checkpointing, "
        "shorten the examples or let a user give fewer of them."
    )

"""Training without a guarantee, to compare with: no clipping and no noise.

Batches are Poisson samples, as in the private methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.methods.method import ScheduledSection, StepTraits, poisson_batch
from raydp.tasks.task import Task
from raydp.training import loop
from raydp.training.batch_sum import GradientSum, StepRule
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.thresholds import Clipping
from raydp.training.gradients.weights import UnitWeights
from raydp.training.schedule import LearningRateSchedule
from raydp.training.sharding import is_sharded
from raydp.training.trial import Trained, TrainingContext
from raydp.training.trial_plan import TrialPlan


class NonPrivate(ScheduledSection):
    """Adam or SGD on Poisson-sampled batches, as in the private methods. ε is infinite."""

    private: ClassVar[bool] = False

    optimizer_name: Literal["adam", "sgd"] = "adam"
    """The optimizer, `adam` or `sgd`."""
    max_grad_norm: None = None
    """Must stay null: gradients are not clipped."""

    @property
    def traits(self) -> StepTraits:
        """Return the traits of the optimizer's steps, which do not clip."""
        return replace(super().traits, optimizer=self.optimizer_name)

    def batch_indices(self, plan: TrialPlan, key: bytes, step: int) -> NDArray[np.int64]:
        return poisson_batch(plan, key, step)

    def optimizer(self, plan: TrialPlan, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        # The sampler and everything else are those of the private methods, so that only clipping
        # and noise differ.
        kind = torch.optim.Adam if self.optimizer_name == "adam" else torch.optim.SGD
        return kind(parameters, lr=plan.learning_rate)

    def train(
        self,
        plan: TrialPlan,
        context: TrainingContext,
        task: Task,
        comm: Comm,
        key: bytes,
        store: CheckpointStore | None,
    ) -> Trained:
        optimizer = self.optimizer(plan, list(context.parameters.values()))
        rule = plain_rule(
            context,
            lambda step: self.batch_indices(plan, key, step),
            optimizer,
            weights=self.unit_weights(task.facts()),
            schedule=self.schedule(plan),
        )
        return loop.run(plan, rule, context, task, comm, key, store)


def plain_rule(
    context: TrainingContext,
    indices_fn: Callable[[int], NDArray[np.int64]],
    optimizer: torch.optim.Optimizer,
    *,
    weights: UnitWeights | None = None,
    schedule: LearningRateSchedule | None = None,
) -> StepRule:
    """Return the step rule of training without clipping and noise."""
    clipping = _NoClipping(math.inf)
    gradients: GradientSum = _PlainSum(context.parameters)
    # Autograd would sum into weights that are gathered only for a moment.
    if is_sharded(context.model):
        gradients = ClippedGradients(context.model, context.parameters, clipping)
    return StepRule(
        indices_fn=indices_fn,
        gradients=gradients,
        clipping=clipping,
        noise_multiplier=0.0,
        optimizer=optimizer,
        weights=weights,
        schedule=schedule,
    )


class _NoClipping(Clipping):
    """Leaves every gradient unchanged."""

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        # A bound of infinity scales nothing.
        return torch.ones_like(norms)


class _PlainSum:
    """Sum of gradients by autograd. Per-example norms are not computed (reported as 0)."""

    def __init__(self, parameters: dict[str, torch.nn.Parameter]) -> None:
        self._parameters = parameters

    def accumulate(
        self,
        loss_fn: Callable[[], torch.Tensor],
        total: MutableMapping[str, torch.Tensor],
        examples_per_unit: int = 1,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Add the gradients of a micro-batch to `total`; see `GradientSum`."""
        # One backward pass gives the sum: per-example gradients are not needed.
        losses = loss_fn()
        weighted = losses.sum() if weights is None else losses @ weights.to(losses)
        names = list(self._parameters)
        for name, g in zip(
            names, torch.autograd.grad(weighted, [self._parameters[n] for n in names]), strict=True
        ):
            total[name] += g
        # Norms are reported as 0: they were not computed.
        mean = losses.detach().float().view(-1, examples_per_unit).mean(dim=1)
        return torch.stack([mean, torch.zeros_like(mean)])

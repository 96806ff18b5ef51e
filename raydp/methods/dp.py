"""DP-SGD and DP-Adam: per-example clipping, Gaussian noise, Poisson sampling (Abadi et al. 2016; Li et al. 2022)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from raydp.methods.base import poisson_batch
from raydp.privacy import PoissonGaussian
from raydp.sections import Section
from raydp.tasks.base import Task
from raydp.training import loop
from raydp.training.checkpoint import CheckpointStore
from raydp.training.clipping import ClippedGradients
from raydp.training.comm import Comm
from raydp.training.trial import Trained, Trainee, TrialPlan


class DPSGD(Section):
    """DP-SGD.

    Args:
        max_grad_norm: clipping norm c > 0 of an example's gradient over all trained parameters (flat clipping).
        momentum: of torch.optim.SGD.

    Guarantee:
        The sequence of all updates is the Poisson-subsampled Gaussian mechanism with sample rate b/n and noise
        multiplier σ, composed T times, for one example added or removed; see raydp.privacy for its (ε, δ). Assumes that
        the loss of an example depends on that example alone and that the sweep's key stays secret.
    """

    max_grad_norm: Annotated[float, Field(gt=0, le=1e6)] = 0.5
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0

    def event(self, plan: TrialPlan, noise_multiplier: float) -> PoissonGaussian:
        return PoissonGaussian(
            sample_rate=plan.batch_size / plan.num_examples,
            noise_multiplier=noise_multiplier,
            num_steps=plan.num_steps,
        )

    def batch_indices(self, plan: TrialPlan, key: bytes, step: int) -> NDArray[np.int64]:
        return poisson_batch(plan, key, step)

    def optimizer(self, plan: TrialPlan, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=plan.learning_rate, momentum=self.momentum)

    def train(
        self, plan: TrialPlan, trainee: Trainee, task: Task, comm: Comm, key: bytes, store: CheckpointStore | None
    ) -> Trained:
        assert plan.noise_multiplier > 0, "a private run has noise"
        rule = loop.StepRule(
            indices_fn=lambda step: self.batch_indices(plan, key, step),
            gradients=ClippedGradients(trainee.model, trainee.parameters, self.max_grad_norm),
            max_grad_norm=self.max_grad_norm,
            noise_std=plan.noise_multiplier * self.max_grad_norm,
            optimizer=self.optimizer(plan, list(trainee.parameters.values())),
        )
        return loop.run(plan, rule, trainee, task, comm, key, store)


class DPAdam(DPSGD):
    """DP-Adam: the privatised gradient of DP-SGD in torch's Adam (Li et al. 2022; Hu et al. 2025, Algorithm 3, prints
    Adam's γ inside the root, torch adds eps outside).

    Args:
        betas: decay rates of the two moments.
        eps: added to the root of the second moment.
    """

    momentum: Annotated[float, Field(ge=0, le=0)] = 0.0
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    eps: Annotated[float, Field(gt=0)] = 1e-8

    def optimizer(self, plan: TrialPlan, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=plan.learning_rate, betas=self.betas, eps=self.eps)

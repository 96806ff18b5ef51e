"""DP-SGD and DP-Adam: per-example clipping, Gaussian noise and Poisson sampling.

Source: Abadi et al. 2016; Li et al. 2022.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator

from raydp.methods.method import ScheduledSection, StepTraits, poisson_batch
from raydp.privacy.accounting.events import PoissonGaussian
from raydp.search_spaces import Configuration
from raydp.spec.sections import LATER, Of
from raydp.tasks.task import Task
from raydp.training import loop
from raydp.training.batch_sum import StepRule
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm
from raydp.training.corrected_adam import NoiseCorrectedAdam
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.thresholds import (
    AdaptiveClipping,
    AutomaticClipping,
    Clipping,
    gradient_noise_multiplier,
)
from raydp.training.noise.correlated import CorrelatedNoise
from raydp.training.trial import Trained, TrainingContext
from raydp.training.trial_plan import TrialPlan

ADAPTIVE = Of("clipping", ("adaptive",))


class DPSGD(ScheduledSection):
    """SGD on the clipped gradients of Poisson-sampled batches, with Gaussian noise on their sum
    (Abadi et al. 2016).

    Guarantee:
        The sequence of all updates is the Poisson-subsampled Gaussian mechanism with sample rate
        b/n and noise multiplier σ, composed T times; see raydp.privacy for its (ε, δ). It protects
        one unit added or removed: an example, or a user with all its examples. For a user, the sum
        of the gradients of its examples is clipped. The guarantee assumes that the loss of an
        example depends on that example alone and that the sweep's key stays secret. It holds for
        every kind of clipping. Automatic scaling leaves no gradient above c. The noisy count of
        adaptive clipping is part of the Gaussian mechanism, because the gradient's noise multiplier
        is raised to (σ^-2 - (2 σ_b)^-2)^(-1/2) (Andrew et al. 2021, Theorem 1). Weight decay costs
        no privacy: decoupled it is post-processing, and in the loss it is clipped.
    """

    max_grad_norm: Annotated[float, Field(ge=1e-12, le=1e6)] = 0.5
    """Clipping norm c >= 1e-12 of a unit's gradient over all trained parameters; with clipping
    `adaptive` the norm of the first step. (Gradients whose squares round to 0 in single precision
    are far below 1e-12.)"""
    clipping: Annotated[Literal["flat", "automatic", "adaptive"], LATER] = "flat"
    """`flat`: gradients above c are scaled down to c.

    `automatic`: every gradient is scaled by c / (norm + 0.01) (Bu et al. 2023, AUTO-S); c then only
    scales the update. `adaptive`: flat, and c follows a quantile of the norms (Andrew et al. 2021,
    Algorithm 1).
    """
    clip_quantile: Annotated[float, Field(gt=0, lt=1), ADAPTIVE] = 0.5
    """Adaptive clipping: the share of examples that stays unclipped."""
    clip_learning_rate: Annotated[float, Field(gt=0, le=10), ADAPTIVE] = 0.2
    """Adaptive clipping: rate of the geometric update of c."""
    count_noise_multiplier: Annotated[Annotated[float, Field(gt=0, le=1e9)] | None, ADAPTIVE] = None
    """Adaptive clipping: σ_b, the standard deviation of the noise on the count of unclipped
    examples, in examples. It must be above σ / 2 and is batch_size / 20 by default, as in the
    paper."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of torch.optim.SGD; 0 for none."""
    weight_decay: Annotated[float, Field(ge=0, le=1e6), LATER] = 0.0
    """λ, the strength of weight decay; 0 for none."""
    decay: Annotated[Literal["decoupled", "in_loss"], Of("weight_decay")] = "decoupled"
    """`decoupled`: every update first shrinks the weights by the factor 1 - ηλ, as AdamW does
    (Loshchilov and Hutter 2019). `in_loss`: λθ, for a user with m examples m λθ, is added to every
    unit's gradient before clipping (Guo 2024, section 4.1)."""

    def event_fn(self, configuration: Configuration, num_examples: int) -> PoissonGaussian:
        """Return the event at σ = 1: the sums and, with adaptive clipping, the counts."""
        self._check_decay(configuration)
        # q = b / n with the expected batch size b; the same numbers drive the sampler.
        return PoissonGaussian(
            sample_rate=configuration.batch_size / num_examples,
            noise_multiplier=1.0,
            num_steps=configuration.num_steps,
        )

    def event(self, plan: TrialPlan, noise_multiplier: float) -> PoissonGaussian:
        """Return the event of a run.

        Raises:
            ValueError: the count of adaptive clipping has so little noise that it alone exceeds the
                event, or a step decays weights through zero.
        """
        self._gradient_noise_multiplier(plan, noise_multiplier)
        return self.event_fn(plan.configuration, plan.num_examples).with_noise(noise_multiplier)

    def batch_indices(self, plan: TrialPlan, key: bytes, step: int) -> NDArray[np.int64]:
        return poisson_batch(plan, key, step)

    def optimizer(self, plan: TrialPlan, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        return DecayingSGD(
            parameters, lr=plan.learning_rate, momentum=self.momentum, decay=self._decoupled_decay
        )

    @property
    def traits(self) -> StepTraits:
        """How gradients are clipped and decayed."""
        return StepTraits(
            clipping=self.clipping,
            loss_decay=self._loss_decay,
            drops_inputs=True,
            # A subclass with another optimizer says itself what η means there.
            optimizer="sgd" if type(self).optimizer is DPSGD.optimizer else None,
        )

    @property
    def _loss_decay(self) -> float:
        """λ of the term that is clipped with every example's gradient."""
        return self.weight_decay if self.decay == "in_loss" else 0.0

    @property
    def _decoupled_decay(self) -> float:
        """Return λ of the decoupled weight decay, which the optimizer applies."""
        return self.weight_decay - self._loss_decay

    def _check_decay(self, configuration: Configuration) -> None:
        """Raise ValueError if the factor 1 - ηλ of a step is not positive."""
        rate = configuration.learning_rate
        if rate * self._decoupled_decay >= 1:
            raise ValueError(
                f"method.weight_decay must be < 1 / learning_rate = {1 / rate:g} "
                f"where it is decoupled, got {self.weight_decay:g}: a step would flip the weights' "
                "signs. Lower it, or the learning rate."
            )

    def train(
        self,
        plan: TrialPlan,
        context: TrainingContext,
        task: Task,
        comm: Comm,
        key: bytes,
        store: CheckpointStore | None,
    ) -> Trained:
        """Train with clipped gradients and noise; see `Method.train`."""
        assert plan.noise_multiplier > 0, "a private run has noise"
        # Each run gets a clipping of its own, because adaptive clipping has a state.
        clipping = self._clipping(plan)
        # Abadi et al. 2016, Algorithm 1: sample, clip, add noise, update.
        rule = StepRule(
            indices_fn=lambda step: self.batch_indices(plan, key, step),
            # Decay in the loss is clipped with the gradient, so it costs no privacy.
            gradients=ClippedGradients(
                context.model, context.parameters, clipping, weight_decay=self._loss_decay
            ),
            clipping=clipping,
            # With adaptive clipping the gradient gets more noise, to pay for the noisy count.
            noise_multiplier=self._gradient_noise_multiplier(plan, plan.noise_multiplier),
            optimizer=self.optimizer(plan, list(context.parameters.values())),
            noise=CorrelatedNoise(self.noise_strategy(plan)),
            weights=self.unit_weights(task.facts()),
            schedule=self.schedule(plan),
        )
        return loop.run(plan, rule, context, task, comm, key, store)

    def _clipping(self, plan: TrialPlan) -> Clipping:
        """Return a new clipping with the threshold at its start."""
        if self.clipping == "adaptive":
            return AdaptiveClipping(
                self.max_grad_norm,
                quantile=self.clip_quantile,
                learning_rate=self.clip_learning_rate,
                count_noise_std=self._count_noise_std(plan),
                batch_size=plan.batch_size,
            )
        return (
            AutomaticClipping(self.max_grad_norm)
            if self.clipping == "automatic"
            else Clipping(self.max_grad_norm)
        )

    def _count_noise_std(self, plan: TrialPlan) -> float:
        """Return σ_b, in examples."""
        return (
            plan.batch_size / 20
            if self.count_noise_multiplier is None
            else self.count_noise_multiplier
        )

    def _gradient_noise_multiplier(self, plan: TrialPlan, noise_multiplier: float) -> float:
        """Return the noise std of the clipped sum, over c, at which the accounted event holds."""
        # The sum alone is the accounted mechanism.
        if self.clipping != "adaptive":
            return noise_multiplier
        # Andrew et al. 2021, Theorem 1: σ_Δ = (σ^-2 - (2 σ_b)^-2)^(-1/2), which exists for 2 σ_b >
        # σ.
        count_noise_std = self._count_noise_std(plan)
        if 2 * count_noise_std <= noise_multiplier:
            default = " (batch_size / 20)" if self.count_noise_multiplier is None else ""
            raise ValueError(
                "method.count_noise_multiplier must be above noise_multiplier / 2 = "
                f"{noise_multiplier / 2:.4g}, got {count_noise_std:g}{default}. Give a larger one, "
                "a larger batch_size or a larger epsilon."
            )
        return gradient_noise_multiplier(noise_multiplier, count_noise_std)


class DecayingSGD(torch.optim.SGD):
    """SGD whose weights shrink by the factor 1 - ηλ before each update, with the η of the step.

    torch's SGD adds λθ to the gradient instead, and so to the momentum.
    """

    def __init__(
        self, parameters: list[torch.Tensor], *, lr: float, momentum: float, decay: float
    ) -> None:
        super().__init__(parameters, lr=lr, momentum=momentum)
        self._decay = decay

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Shrink the weights, then update them."""
        # Decoupled decay (Loshchilov and Hutter 2019), before the update as in AdamW.
        if self._decay:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(1 - group["lr"] * self._decay)
        super().step(closure)


class DPAdam(DPSGD):
    """DP-Adam: the privatised gradient of DP-SGD in torch's Adam (Li et al. 2022).

    Hu et al. 2025, Algorithm 3, prints Adam's γ inside the root; torch adds eps outside.

    The noise adds its variance Φ = (σ c / b)² to the second moment v of every weight. With
    second_moment `noise_corrected`, Adam divides by the root of max(v - Φ, floor Φ) instead (Tang,
    Shpilevskiy and Lécuyer 2024, DP-AdamBC). Φ is public, so ε is the same.
    """

    momentum: Annotated[float, Field(ge=0, le=0)] = 0.0
    """Must stay 0: Adam has its own moments, see betas."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (
        0.9,
        0.999,
    )
    """Decay rates of Adam's first and second moment."""
    eps: Annotated[float, Field(gt=0), Of("second_moment", ("plain",))] = 1e-8
    """Added to the root of the second moment, as in torch."""
    second_moment: Annotated[Literal["plain", "noise_corrected"], LATER] = "plain"
    """`plain`: Adam's own. `noise_corrected`: without the variance of the noise (DP-AdamBC)."""
    second_moment_floor: Annotated[
        float, Field(gt=0, le=1e6), Of("second_moment", ("noise_corrected",))
    ] = 0.1
    """The least corrected second moment, as a multiple of the noise's variance Φ.

    The paper has γ', an absolute number, which would mean something else at every (b, T).
    """

    @model_validator(mode="after")
    def _the_correction_knows_the_noise(self) -> Self:
        if self.second_moment == "plain":
            return self
        # Φ = (σ c / b)² must be one number for all steps.
        if self.clipping == "adaptive":
            raise ValueError(
                "method.second_moment must be plain with clipping adaptive, got 'noise_corrected': "
                "the scale of the noise is not the same for all steps or sets. Leave one of them "
                "out."
            )
        return self

    @property
    def traits(self) -> StepTraits:
        """How gradients are clipped and decayed, in Adam."""
        adam = type(self).optimizer is DPAdam.optimizer
        return replace(super().traits, optimizer="adam" if adam else None)

    def optimizer(self, plan: TrialPlan, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        # torch's AdamW is Adam if the decay is 0.
        if self.second_moment == "plain":
            return torch.optim.AdamW(
                parameters,
                lr=plan.learning_rate,
                betas=self.betas,
                eps=self.eps,
                weight_decay=self._decoupled_decay,
            )
        # Φ is the variance of the noise in the mean gradient. It is public.
        variance = (plan.noise_multiplier * self.max_grad_norm / plan.batch_size) ** 2
        return NoiseCorrectedAdam(
            parameters,
            lr=plan.learning_rate,
            betas=self.betas,
            decay=self._decoupled_decay,
            noise_variance=variance,
            least=self.second_moment_floor * variance,
        )

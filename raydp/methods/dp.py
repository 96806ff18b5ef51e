"""DP-SGD and DP-Adam: per-example clipping, Gaussian noise, Poisson sampling (Abadi et al. 2016; Li et al. 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator

from raydp.methods.base import ScheduledSection, StepTraits, poisson_batch, unit_weights, weighted_sets
from raydp.privacy import PoissonGaussian
from raydp.tasks.base import Task
from raydp.training import loop
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm
from raydp.training.corrected_adam import NoiseCorrectedAdam
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.thresholds import AdaptiveClipping, AutomaticClipping, Clipping, gradient_noise_multiplier
from raydp.training.noise.correlated import CorrelatedNoise
from raydp.training.trial import Trained, TrainingContext
from raydp.training.trial_plan import TrialPlan

if TYPE_CHECKING:
    from raydp.spec.document import SweepSpec


class DPSGD(ScheduledSection):
    """SGD on the clipped gradients of Poisson-sampled batches, with Gaussian noise on their sum (Abadi et al. 2016).

    Guarantee:
        The sequence of all updates is the Poisson-subsampled Gaussian mechanism with sample rate b/n and noise
        multiplier σ, composed T times; see raydp.privacy for its (ε, δ). It protects one unit added or removed: an
        example, or a user with all its examples. For a user, the sum of the gradients of its examples is clipped. The
        guarantee assumes that the loss of an example depends on that example alone and that the sweep's key stays
        secret. It holds for every kind of clipping. Automatic scaling leaves no gradient above c. The noisy count of
        adaptive clipping is part of the Gaussian mechanism, because the gradient's noise multiplier is raised to
        (σ^-2 - (2 σ_b)^-2)^(-1/2) (Andrew et al. 2021, Theorem 1). Weight decay costs no privacy: decoupled it is
        post-processing, and in the loss it is clipped.

        With a reference weight, a clipped gradient is multiplied by (1 - w) N / N_T or w N / N_R over the larger of
        these two, and the noisy sum by the larger one. An example of the set with the larger weight has the guarantee
        above. An example of the other set has the guarantee of a noise multiplier that is larger by the ratio of the
        weights (raydp.privacy.WeightedSets.event_of). N_T and N_R count as public, like n.
    """

    max_grad_norm: Annotated[float, Field(ge=1e-12, le=1e6)] = 0.5
    """Clipping norm c >= 1e-12 of a unit's gradient over all trained parameters; with clipping `adaptive` the norm of
    the first step. (Gradients whose squares round to 0 in single precision are far below 1e-12.)"""
    clipping: Literal["flat", "automatic", "adaptive"] = "flat"
    """`flat`: gradients above c are scaled down to c. `automatic`: every gradient is scaled by c / (norm + 0.01) (Bu et
    al. 2023, AUTO-S); c then only scales the update. `adaptive`: flat, and c follows a quantile of the norms
    (Andrew et al. 2021, Algorithm 1)."""
    clip_quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Adaptive clipping: the share of examples that stays unclipped."""
    clip_learning_rate: Annotated[float, Field(gt=0, le=10)] = 0.2
    """Adaptive clipping: rate of the geometric update of c."""
    count_noise_multiplier: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Adaptive clipping: σ_b, the standard deviation of the noise on the count of unclipped examples, in examples. It
    must be above σ / 2 and is batch_size / 20 by default, as in the paper."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of torch.optim.SGD; 0 for none."""
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """λ, the strength of weight decay; 0 for none."""
    decay: Literal["decoupled", "in_loss"] = "decoupled"
    """`decoupled`: every update first shrinks the weights by the factor 1 - ηλ, as AdamW does (Loshchilov and Hutter
    2019). `in_loss`: λθ, for a user with m examples m λθ, is added to every unit's gradient before clipping (Guo
    2024, section 4.1)."""
    reference_weight: Annotated[float, Field(ge=0, le=1)] | None = None
    """w of the loss (1 - w) L_T + w L_R over training and reference data (Kaplan et al. 2024, equation 13), for a task
    with both. Without it all examples have equal weight, as with w = N_R / N."""

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        for name in ("clip_quantile", "clip_learning_rate", "count_noise_multiplier"):
            value = getattr(self, name)
            if self.clipping != "adaptive" and value != type(self).model_fields[name].default:
                raise ValueError(
                    f"method.{name} must be left out with clipping {self.clipping!r}, got {value}. "
                    "Remove it, or use clipping 'adaptive'."
                )
        if self.decay != "decoupled" and not self.weight_decay:
            raise ValueError(
                f"method.decay must be left out without weight_decay, got {self.decay!r}. Remove it, or give a "
                "weight_decay."
            )
        if self.reference_weight is not None and self.clipping == "adaptive":  # its count weighs all examples equally
            raise ValueError(
                f"method.clipping must be flat or automatic with reference_weight {self.reference_weight:g}, got "
                "'adaptive'. Give a fixed max_grad_norm."
            )
        return self

    def unused(self) -> set[str]:
        """Return the names of the options that do not apply; see `ScheduledSection`."""
        adaptive = {"clip_quantile", "clip_learning_rate", "count_noise_multiplier"}
        unused = super().unused() | (set() if self.clipping == "adaptive" else adaptive)
        unused |= {"clipping"} if self.clipping == "flat" else set()
        unused |= set() if self.weight_decay else {"weight_decay", "decay"}
        return unused | (set() if self.reference_weight is not None else {"reference_weight"})

    def event(self, plan: TrialPlan, noise_multiplier: float) -> PoissonGaussian:
        """Return the event of the whole run: the sums and, with adaptive clipping, the counts.

        Raises:
            ValueError: the count of adaptive clipping has so little noise that it alone exceeds the event, or a step
                decays weights through zero.
        """
        self._gradient_noise_multiplier(plan, noise_multiplier)
        self._check_decay(plan)
        return PoissonGaussian(
            sample_rate=plan.batch_size / plan.num_examples,
            noise_multiplier=noise_multiplier,
            num_steps=plan.num_steps,
        )

    def batch_indices(self, plan: TrialPlan, key: bytes, step: int) -> NDArray[np.int64]:
        return poisson_batch(plan, key, step)

    def optimizer(self, plan: TrialPlan, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        return DecayingSGD(parameters, lr=plan.learning_rate, momentum=self.momentum, decay=self._decoupled_decay)

    def check(self, spec: SweepSpec, task: Task) -> None:
        """Raise ValueError if there is a reference weight and the task has no reference data."""
        weighted_sets(self.reference_weight, task.facts())

    @property
    def traits(self) -> StepTraits:
        """How gradients are clipped, weighted and decayed."""
        return StepTraits(
            clipping=self.clipping,
            reference_weight=self.reference_weight,
            loss_decay=self._loss_decay,
            drops_inputs=True,
        )

    @property
    def _loss_decay(self) -> float:
        """λ of the term that is clipped with every example's gradient."""
        return self.weight_decay if self.decay == "in_loss" else 0.0

    @property
    def _decoupled_decay(self) -> float:
        """Return λ of the decoupled weight decay, which the optimizer applies."""
        return self.weight_decay - self._loss_decay

    def _check_decay(self, plan: TrialPlan) -> None:
        """Raise ValueError if the factor 1 - ηλ of a step is not positive."""
        if plan.learning_rate * self._decoupled_decay >= 1:
            raise ValueError(
                f"method.weight_decay must be < 1 / learning_rate = {1 / plan.learning_rate:g} where it is decoupled, "
                f"got {self.weight_decay:g}: a step would flip the weights' signs. Lower it, or the learning rate."
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
        clipping = self._clipping(plan)
        rule = loop.StepRule(
            indices_fn=lambda step: self.batch_indices(plan, key, step),
            gradients=ClippedGradients(
                context.model,
                context.parameters,
                clipping,
                weight_decay=self._loss_decay,
            ),
            clipping=clipping,
            noise_multiplier=self._gradient_noise_multiplier(plan, plan.noise_multiplier),
            optimizer=self.optimizer(plan, list(context.parameters.values())),
            noise=CorrelatedNoise(self.noise_strategy(plan)),
            weights=unit_weights(self.reference_weight, task),
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
        return AutomaticClipping(self.max_grad_norm) if self.clipping == "automatic" else Clipping(self.max_grad_norm)

    def _count_noise_std(self, plan: TrialPlan) -> float:
        """Return σ_b, in examples."""
        return plan.batch_size / 20 if self.count_noise_multiplier is None else self.count_noise_multiplier

    def _gradient_noise_multiplier(self, plan: TrialPlan, noise_multiplier: float) -> float:
        """Return the noise std of the clipped sum over c at which the run is the accounted mechanism."""
        if self.clipping != "adaptive":
            return noise_multiplier
        count_noise_std = self._count_noise_std(plan)
        if 2 * count_noise_std <= noise_multiplier:
            default = " (batch_size / 20)" if self.count_noise_multiplier is None else ""
            raise ValueError(
                f"method.count_noise_multiplier must be above noise_multiplier / 2 = {noise_multiplier / 2:.4g}, got "
                f"{count_noise_std:g}{default}. Give a larger one, a larger batch_size or a larger epsilon."
            )
        return gradient_noise_multiplier(noise_multiplier, count_noise_std)


class DecayingSGD(torch.optim.SGD):
    """SGD whose weights shrink by the factor 1 - ηλ before each update, with the η of the step.

    torch's SGD adds λθ to the gradient instead, and so to the momentum.
    """

    def __init__(self, parameters: list[torch.Tensor], *, lr: float, momentum: float, decay: float) -> None:
        super().__init__(parameters, lr=lr, momentum=momentum)
        self._decay = decay

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Shrink the weights, then update them."""
        if self._decay:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(1 - group["lr"] * self._decay)
        super().step(closure)


class DPAdam(DPSGD):
    """DP-Adam: the privatised gradient of DP-SGD in torch's Adam (Li et al. 2022).

    Hu et al. 2025, Algorithm 3, prints Adam's γ inside the root; torch adds eps outside.

    The noise adds its variance Φ = (σ c / b)² to the second moment v of every weight. With second_moment
    `noise_corrected`, Adam divides by the root of max(v - Φ, floor Φ) instead (Tang, Shpilevskiy and Lécuyer 2024,
    DP-AdamBC). Φ is public, so ε is the same.
    """

    momentum: Annotated[float, Field(ge=0, le=0)] = 0.0
    """Must stay 0: Adam has its own moments, see betas."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """Decay rates of Adam's first and second moment."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """Added to the root of the second moment, as in torch."""
    second_moment: Literal["plain", "noise_corrected"] = "plain"
    """`plain`: Adam's own. `noise_corrected`: without the variance of the noise (DP-AdamBC)."""
    second_moment_floor: Annotated[float, Field(gt=0, le=1e6)] = 0.1
    """The least corrected second moment, as a multiple of the noise's variance Φ. The paper has γ', an absolute number,
    which would mean something else at every (b, T)."""

    @model_validator(mode="after")
    def _the_correction_knows_the_noise(self) -> Self:
        default = type(self).model_fields
        if self.second_moment == "plain":
            if self.second_moment_floor != default["second_moment_floor"].default:
                raise ValueError(
                    f"method.second_moment_floor must be left out with second_moment plain, got "
                    f"{self.second_moment_floor:g}. Remove it, or use second_moment noise_corrected."
                )
            return self
        if self.clipping == "adaptive" or self.reference_weight is not None:
            other = "reference_weight" if self.reference_weight is not None else "clipping adaptive"
            raise ValueError(
                f"method.second_moment must be plain with {other}, got 'noise_corrected': the scale of the noise is "
                "not the same for all steps or sets. Leave one of them out."
            )
        if self.eps != default["eps"].default:
            raise ValueError(
                f"method.eps must be left out with second_moment noise_corrected, got {self.eps:g}. Use "
                "second_moment_floor."
            )
        return self

    def unused(self) -> set[str]:
        """Return the names of the options that do not apply; see `ScheduledSection`."""
        plain = self.second_moment == "plain"
        return super().unused() | ({"second_moment", "second_moment_floor"} if plain else {"eps"})

    def optimizer(self, plan: TrialPlan, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        if self.second_moment == "plain":
            return torch.optim.AdamW(
                parameters, lr=plan.learning_rate, betas=self.betas, eps=self.eps, weight_decay=self._decoupled_decay
            )
        variance = (plan.noise_multiplier * self.max_grad_norm / plan.batch_size) ** 2
        return NoiseCorrectedAdam(
            parameters,
            lr=plan.learning_rate,
            betas=self.betas,
            decay=self._decoupled_decay,
            noise_variance=variance,
            least=self.second_moment_floor * variance,
        )

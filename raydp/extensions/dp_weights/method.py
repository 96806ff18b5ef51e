"""DP-Weights (Zagardo 2024): clipped training, then noise on the weights. Not private.

Training has no noise. The noise on the weights follows a formula.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator

from raydp.analysis.tables.statements import Level, Statement
from raydp.extensions.dp_weights.formulas import (
    WHY_CLAIMED,
    Formula,
    claimed_noise_std,
    claimed_sensitivity,
)
from raydp.methods.method import MethodSection, poisson_batch
from raydp.privacy import MethodRecord, Procedure, ReleasedWeights
from raydp.spec.sections import LATER, Positive, PrivacySpec
from raydp.tasks.task import Task
from raydp.training import loop
from raydp.training.batch_sum import StepRule
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.thresholds import Clipping
from raydp.training.noise.stream import KeyedStream
from raydp.training.trial import Trained, TrainingContext
from raydp.training.trial_plan import TrialPlan

if TYPE_CHECKING:
    from raydp.spec.document import SweepSpec


class DPWeights(MethodSection):
    """SGD on clipped gradients without noise; then Gaussian noise on every trained weight.

    Guarantee:
        None: the method's event is NonPrivate. The ε of the spec is the paper's claim, and every
        record says so.
    """

    private: ClassVar[bool] = False
    states: ClassVar[Level] = "claimed"
    covers_each_step: ClassVar[bool] = False

    max_grad_norm: Annotated[float, Field(ge=1e-12, le=1e6)] = 1.0
    """Clipping norm C of an example's gradient in training."""
    formula: Formula = "equation_3"
    """The paper's formula for the noise, from ε and δ of the spec."""
    epsilons: Annotated[tuple[Positive, ...], Field(max_length=100), LATER] = ()
    """Further ε at which utility and scores of the same training are measured. The saved model has
    the noise of privacy.target_epsilon."""

    @field_validator("epsilons")
    @classmethod
    def _distinct(cls, epsilons: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(epsilons)) < len(epsilons):
            raise ValueError(f"must be distinct, got {list(epsilons)}. Remove the repeated ones.")
        return epsilons

    def check(self, spec: SweepSpec, task: Task) -> None:
        """Raise ValueError if weights are sharded: every worker adds the noise to whole weights."""
        if spec.cluster.sharding != "none":
            raise ValueError(
                "cluster.sharding must be none with method dp_weights, got "
                f"{spec.cluster.sharding!r}. Leave it out."
            )

    def planned(self, trial: TrialPlan, privacy: PrivacySpec) -> TrialPlan:
        """Return the run with the claim: ε and δ of the spec."""
        claim = Statement(
            level=self.states, epsilon=privacy.require_target("with method dp_weights")
        )
        return replace(trial, stated=claim, delta=privacy.delta(trial.num_examples))

    def record_fields(self, plan: TrialPlan) -> MethodRecord:
        """Return the noise of the claim, and the caveat that it is only a claim."""
        assert plan.stated is not None, "the plan says what is claimed"
        released = ReleasedWeights(
            formula=self.formula,
            claimed_sensitivity=self._sensitivity(plan),
            noise_std=self.noise_std(plan, plan.stated.epsilon),
        )
        return MethodRecord(procedure=Procedure(released_weights=released), caveats=(WHY_CLAIMED,))

    def noise_std(self, plan: TrialPlan, epsilon: float) -> float:
        """Return the standard deviation of the noise on each weight, by the formula for an ε."""
        assert plan.delta is not None, "the plan says what is claimed"
        return claimed_noise_std(
            self.formula, epsilon=epsilon, delta=plan.delta, sensitivity=self._sensitivity(plan)
        )

    def _sensitivity(self, plan: TrialPlan) -> float:
        return claimed_sensitivity(
            num_examples=plan.num_examples,
            batch_size=plan.batch_size,
            num_steps=plan.num_steps,
            learning_rate=plan.learning_rate,
            max_grad_norm=self.max_grad_norm,
        )

    def batch_indices(self, plan: TrialPlan, key: bytes, step: int) -> NDArray[np.int64]:
        return poisson_batch(plan, key, step)

    def optimizer(self, plan: TrialPlan, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=plan.learning_rate)

    def train(
        self,
        plan: TrialPlan,
        context: TrainingContext,
        task: Task,
        comm: Comm,
        key: bytes,
        store: CheckpointStore | None,
    ) -> Trained:
        """Train with clipped gradients, then add noise to the weights; see `Method.train`."""
        assert plan.stated is not None, "the plan says what is claimed"
        # Ordinary DP-SGD without noise: the optimizer sees clipped sums.
        clipping = Clipping(self.max_grad_norm)
        rule = StepRule(
            indices_fn=lambda step: self.batch_indices(plan, key, step),
            gradients=ClippedGradients(context.model, context.parameters, clipping),
            clipping=clipping,
            noise_multiplier=0.0,
            optimizer=self.optimizer(plan, list(context.parameters.values())),
        )
        trained = loop.run(plan, rule, context, task, comm, key, store)
        if trained.ended_early:
            return trained
        # Every claimed ε starts from the same weights without noise.
        noiseless = {name: p.detach().clone() for name, p in context.parameters.items()}
        put = partial(self._put, plan, context, noiseless, KeyedStream(key=key, run_id=plan.run_id))
        put(plan.stated.epsilon)
        others = (Statement(level=self.states, epsilon=epsilon) for epsilon in self.epsilons)
        return replace(trained, variants={one: partial(put, one.epsilon) for one in others})

    def _put(
        self,
        plan: TrialPlan,
        context: TrainingContext,
        noiseless: dict[str, torch.Tensor],
        stream: KeyedStream,
        epsilon: float,
    ) -> None:
        """Put the weights of an ε into the model, the same on every rank.

        Each ε has its own noise. With shared noise, the difference of two models would reveal the
        weights.
        """
        # In double precision, then rounded once to the weight's type.
        std = self.noise_std(plan, epsilon)
        for name, parameter in context.parameters.items():
            purpose = f"weights at {epsilon!r}"
            noise = stream.normal_on(
                parameter.device, parameter.numel(), step=plan.num_steps, purpose=purpose, name=name
            )
            weights = noiseless[name].to(noise.device).double() + std * noise.view(parameter.shape)
            parameter.data.copy_(weights)

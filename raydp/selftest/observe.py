"""Observation of a method's updates, step by step, in units of the sum that is bounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.methods.method import Method, MethodSection
from raydp.privacy.accounting.events import PoissonGaussian
from raydp.tasks.task import Task
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm
from raydp.training.noise.stream import KEY_BYTES, TEST_KEY
from raydp.training.observers import AfterStep
from raydp.training.trial import TrainingContext
from raydp.training.trial_plan import TrialPlan

LEARNING_RATE = 2.0**20
"""Learning rate of observed runs, so large that an update hides the rounding of the weights.

A power of two adds no rounding of its own.
"""
NO_NOISE = 1e-30
"""A noise multiplier whose noise vanishes in fp32. Private methods refuse 0."""
OTHER_KEY = bytes(range(KEY_BYTES))
"""A second fixed key. What it draws must differ from what the test key draws."""


def observed_plan(
    run_id: str, *, batch_size: int, num_steps: int, num_examples: int, noise_multiplier: float
) -> TrialPlan:
    """Return the plan of a run whose updates are observed."""
    return TrialPlan(
        run_id=run_id,
        batch_size=batch_size,
        num_steps=num_steps,
        learning_rate=LEARNING_RATE,
        seed=0,
        num_examples=num_examples,
        noise_multiplier=noise_multiplier,
    )


IndicesFn = Callable[[int], NDArray[np.int64]]


class NoisyMethod(Method, Protocol):
    """A private method that adds noise in its steps. It is a pydantic model.

    Implementers: the DP methods of `raydp.methods`, and `DPMF`.
    """

    max_grad_norm: float

    def event(self, plan: TrialPlan, noise_multiplier: float) -> PoissonGaussian: ...

    def model_dump(self) -> dict[str, object]: ...

    @classmethod
    def model_validate(cls, obj: object) -> Self: ...


M = TypeVar("M", bound=NoisyMethod)


def with_sgd(method: M, indices_fn: IndicesFn | None = None) -> M:
    """Return the method with plain SGD at one rate: its update is the privatised gradient."""

    # A subclass, so that everything else of the method stays as it is.
    class Observed(type(method)):  # type: ignore[misc]
        def schedule(self, plan: TrialPlan) -> None:
            return None

        def optimizer(
            self, plan: TrialPlan, parameters: list[torch.Tensor]
        ) -> torch.optim.Optimizer:
            return torch.optim.SGD(parameters, lr=plan.learning_rate)

        def batch_indices(self, plan: TrialPlan, key: bytes, step: int) -> NDArray[np.int64]:
            return (
                super().batch_indices(plan, key, step) if indices_fn is None else indices_fn(step)
            )

    observed: M = Observed.model_validate(method.model_dump())
    return observed


def with_fixed_threshold(method: M) -> M:
    """Return the method with flat clipping: an adaptive threshold changes the noise's unit."""
    if method.traits.clipping != "adaptive":
        return method
    values = {k: v for k, v in method.model_dump().items() if not k.startswith(("clip_", "count_"))}
    return type(method).model_validate({**values, "clipping": "flat"})


def without_weights(method: M) -> M:
    """Return the method with equal weights of all units."""

    class Unweighted(type(method)):  # type: ignore[misc]
        unit_weights = MethodSection.unit_weights
        record_part = MethodSection.record_part

    alike: M = Unweighted.model_validate(method.model_dump())
    return alike


def noise_strategy(method: Method, plan: TrialPlan) -> NDArray[np.float64]:
    """Return the first column of C, which decorrelates noise over steps; (1,) if independent."""
    return np.array(method.noise_strategy(plan))


def accounted_event(method: Method, plan: TrialPlan) -> tuple[PoissonGaussian, int]:
    """Return the method's event for a run with the plan's noise, and the run's number of updates.

    The run has at least as many updates as the noise spans.
    """
    num_updates = max(plan.num_steps, len(noise_strategy(method, plan)))
    # Some methods refuse the observed learning rate.
    run = replace(plan, num_steps=num_updates, learning_rate=1e-9)
    event = method.event(run, plan.noise_multiplier)
    assert isinstance(event, PoissonGaussian), "the method is private"
    return event, num_updates


def accounted_noise(method: Method, plan: TrialPlan) -> float:
    """Return the noise multiplier of the method's event, as in the accountant and the record."""
    return accounted_event(method, plan)[0].noise_multiplier


def summed_updates(
    method: NoisyMethod,
    plan: TrialPlan,
    context: TrainingContext,
    task: Task,
    comm: Comm,
    store: CheckpointStore | None = None,
    key: bytes = TEST_KEY,
) -> list[torch.Tensor]:
    """Return the updates of `observed_training`."""
    return observed_training(method, plan, context, task, comm, store, key)[0]


def observed_training(
    method: NoisyMethod,
    plan: TrialPlan,
    context: TrainingContext,
    task: Task,
    comm: Comm,
    store: CheckpointStore | None = None,
    key: bytes = TEST_KEY,
) -> tuple[list[torch.Tensor], list[dict[str, float]]]:
    """Train, observe the updates, and restore the weights.

    Args:
        method, plan, context, task, comm: the run.
        store: a run is resumed from its newest checkpoint, whose weights must be the context's.
            Only the updates after the checkpoint are observed.
        key: key of the noise and the batches.

    Returns:
        The updates and the history of the run. An update is [number of trained weights] fp32, in
        the order of the parameters: the change of the weights times b over the learning rate, and
        over the scale of weighted units. For SGD the update is the clipped sum with its noise.
    """
    # Weights before the first step and after each one.
    start = flat(context)
    states = [start]
    watcher = AfterStep(lambda report: states.append(flat(context)))
    try:
        history = method.train(
            plan, replace(context, observers=(watcher,)), task, comm, key, store
        ).history
    finally:
        _restore(context, start)
    # θ_t - θ_(t+1) = η g / b, so the sum is recovered from two states of the weights.
    weights = method.unit_weights(task.facts())
    scale = plan.batch_size / plan.learning_rate / (1.0 if weights is None else weights.scale)
    return [(before - after) * scale for before, after in pairwise(states)], history


def flat(context: TrainingContext) -> torch.Tensor:
    """Return the values of all trained parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in context.parameters.values()])


def _restore(context: TrainingContext, values: torch.Tensor) -> None:
    sizes = [p.numel() for p in context.parameters.values()]
    with torch.no_grad():
        for parameter, value in zip(context.parameters.values(), values.split(sizes), strict=True):
            parameter.copy_(value.view_as(parameter))

"""A method's updates, step by step, in units of the sum that the guarantee bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.methods.base import unit_weights
from raydp.tasks.base import Task
from raydp.training.comm import Comm
from raydp.training.stream import TEST_KEY
from raydp.training.trial import Trainee, TrialPlan

LEARNING_RATE = 2.0**20
"""An update is then so much larger than the weights that their rounding does not show; a power of two adds none."""
NO_NOISE = 1e-30
"""A noise multiplier whose noise vanishes in fp32; a private method refuses 0."""


def observed_plan(
    run_id: str, *, batch_size: int, num_steps: int, num_examples: int, noise_multiplier: float
) -> TrialPlan:
    """A run whose updates are to be observed."""
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


def with_sgd(method: Any, indices_fn: IndicesFn | None = None) -> Any:
    """The method with plain SGD, so that its update is the privatised gradient, and with batches given by step."""

    class Observed(type(method)):  # type: ignore[misc]
        def optimizer(self, plan: TrialPlan, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
            return torch.optim.SGD(parameters, lr=plan.learning_rate)

        def batch_indices(self, plan: TrialPlan, key: bytes, step: int) -> NDArray[np.int64]:
            return super().batch_indices(plan, key, step) if indices_fn is None else indices_fn(step)

    return Observed.model_validate(method.model_dump())


def with_fixed_threshold(method: Any) -> Any:
    """The method; with flat clipping instead of adaptive, whose unit of noise moves from step to step."""
    if getattr(method, "clipping", "flat") != "adaptive":
        return method
    values = {k: v for k, v in method.model_dump().items() if not k.startswith(("clip_", "count_"))}
    return type(method).model_validate({**values, "clipping": "flat"})


def noise_strategy(method: Any, plan: TrialPlan) -> NDArray[np.float64]:
    """The first column of the matrix C that makes a method's noise independent of step to step: (1,) if it is so."""
    strategy_fn = getattr(method, "noise_strategy", None)
    return np.array((1.0,) if strategy_fn is None else strategy_fn(plan))


def summed_updates(method: Any, plan: TrialPlan, trainee: Trainee, task: Task, comm: Comm) -> list[torch.Tensor]:
    """Train, and put the weights back.

    Returns:
        Per step [number of trained weights] fp32, in the order of the parameters: the change of the weights times
        b over the learning rate, and over the scale of weighted units; for SGD that is the clipped sum with its noise.
    """
    start = _flat(trainee)
    states = [start]
    observed = replace(trainee, progress=lambda done, total: states.append(_flat(trainee)))
    try:
        method.train(plan, observed, task, comm, TEST_KEY, None)
    finally:
        _restore(trainee, start)
    weights = unit_weights(getattr(method, "reference_weight", None), task)
    scale = plan.batch_size / plan.learning_rate / (1.0 if weights is None else weights.scale)
    return [(before - after) * scale for before, after in pairwise(states)]


def _flat(trainee: Trainee) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainee.parameters.values()])


def _restore(trainee: Trainee, values: torch.Tensor) -> None:
    sizes = [p.numel() for p in trainee.parameters.values()]
    with torch.no_grad():
        for parameter, value in zip(trainee.parameters.values(), values.split(sizes), strict=True):
            parameter.copy_(value.view_as(parameter))

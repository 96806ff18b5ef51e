"""The Method seam: how a model is trained. One object owns the sampler and the event that is accounted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from raydp.training.stream import KeyedStream

if TYPE_CHECKING:
    import torch

    from raydp.privacy import NonPrivate, PoissonGaussian
    from raydp.tasks.base import Task
    from raydp.training.checkpoint import CheckpointStore
    from raydp.training.comm import Comm
    from raydp.training.trial import Trained, Trainee, TrialPlan


def poisson_batch(plan: TrialPlan, key: bytes, step: int) -> NDArray[np.int64]:
    """The units (examples, or users) of one step under Poisson sampling at b/n; depends on key, run and step alone."""
    stream = KeyedStream(key=key, run_id=plan.run_id)
    return np.flatnonzero(stream.poisson_mask(plan.num_examples, plan.batch_size, step=step))


class Method(Protocol):
    """How a model is trained."""

    max_grad_norm: float | None

    def event(self, plan: TrialPlan, noise_multiplier: float) -> PoissonGaussian | NonPrivate:
        """What the accountant accounts for the whole run."""

    def batch_indices(self, plan: TrialPlan, key: bytes, step: int) -> NDArray[np.int64]:
        """The units (examples, or users) of one step, the same on every rank; any step can be asked for at any time."""

    def optimizer(self, plan: TrialPlan, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        """The rule that turns the privatised gradient into an update."""

    def train(
        self, plan: TrialPlan, trainee: Trainee, task: Task, comm: Comm, key: bytes, store: CheckpointStore | None
    ) -> Trained:
        """Run all steps, from the newest checkpoint if there is one."""

"""The Method seam: how a model is trained. One object owns the sampler and the event that is accounted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import nn

    from raydp.privacy import NonPrivate, PoissonGaussian
    from raydp.tasks.base import Task
    from raydp.training.checkpoint import CheckpointStore
    from raydp.training.comm import Comm


@dataclass(frozen=True, kw_only=True)
class TrialPlan:
    """One (configuration, seed) to train: everything that decides the result, and its name.

    Attributes:
        run_id: hash of what defines the run; names its noise, its folder and its record.
        num_examples: n. The sampling rate is batch_size / num_examples.
        noise_multiplier: σ, noise std over max_grad_norm; 0 for a method without noise.
        seed: public label of the repetition: initialisation and score sampling.
    """

    run_id: str
    batch_size: int
    num_steps: int
    learning_rate: float
    seed: int
    num_examples: int
    noise_multiplier: float


@dataclass(frozen=True, kw_only=True)
class Trainee:
    """What a method is given to train.

    Attributes:
        model: in eval mode, on the comm's device.
        parameters: name -> trained parameter, at its start.
        microbatch_size: examples in one backward pass; None lets the lengths decide. Cannot change the result.
        checkpoint_seconds: time between checkpoints.
        progress: called with (steps done, steps in all) after each step.
    """

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    microbatch_size: int | None = None
    checkpoint_seconds: float = 30.0
    progress: Callable[[int, int], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What training did; the model itself was changed in place.

    Attributes:
        history: per step: step, loss (mean over the drawn examples, nats), drawn (examples), clipped (share),
            gradient_norm (mean before clipping). Computed on private data; not covered by ε.
        resumed_from: steps that a checkpoint spared, 0 without one.
        seconds: wall-clock of this process's part.
    """

    history: list[dict[str, float]]
    resumed_from: int
    seconds: float


class Method(Protocol):
    """How a model is trained."""

    max_grad_norm: float | None

    def event(self, plan: TrialPlan, noise_multiplier: float) -> PoissonGaussian | NonPrivate:
        """What the accountant accounts for the whole run."""

    def batch_indices(self, plan: TrialPlan, key: bytes, step: int) -> NDArray[np.int64]:
        """The examples of one step, the same on every rank; any step can be asked for at any time."""

    def optimizer(self, plan: TrialPlan, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        """The rule that turns the privatised gradient into an update."""

    def train(
        self, plan: TrialPlan, trainee: Trainee, task: Task, comm: Comm, key: bytes, store: CheckpointStore | None
    ) -> Trained:
        """Run all steps, from the newest checkpoint if there is one."""


def describe(method: Any) -> dict[str, Any]:
    """A method's parameters for identity and records."""
    return dict(method.model_dump(mode="json"))

"""Input and result of one training run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from raydp.privacy import Event, PoissonGaussian
from raydp.training.gradients.canaries import GradientCanaries
from raydp.training.gradients.memory import TokenBudget
from raydp.training.ledger import Ledger


class Paused(Exception):  # noqa: N818 - nothing is wrong
    """Training was asked to pause. The state so far is saved, if the method saves any."""


Progress = Callable[[int, int, Mapping[str, float]], None]


@dataclass(frozen=True, kw_only=True)
class TrainingContext:
    """The model and the settings that a method trains with.

    Attributes:
        model: in eval mode, on the comm's device.
        parameters: name -> trained parameter, at its start.
        microbatch_size: number of examples in one backward pass; None lets the budget decide. It cannot change the
            result.
        budget: padded tokens of a micro-batch if its size is not given.
        autocast: dtype of the matrix products of training; None for the weights' own dtype.
        checkpoint_seconds: time between checkpoints.
        progress: called after each step with (steps done, steps in all, the step's row of the history).
        pause_fn: asked before each step whether to save the state and raise `Paused`; rank 0's answer counts.
        check_steps: numbers of steps after which check_fn is called.
        check_fn: called on every rank with the steps done. It returns the same on every rank: whether to end training.
        evaluate_fn: called on every rank with the steps done, after each step. It returns further values of the step's
            row, on rank 0; nothing for steps after which nothing is measured.
        ledger: records every noisy step before the step is used.
        accounted: event of the run's privacy record, which the noise is checked against; None without a record.
        canaries: gradient canaries of an audit. Such a run saves no checkpoint and starts again if it is interrupted.
    """

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    microbatch_size: int | None = None
    budget: TokenBudget = field(default_factory=TokenBudget)
    autocast: torch.dtype | None = None
    checkpoint_seconds: float = 30.0
    progress: Progress | None = None
    pause_fn: Callable[[], bool] | None = None
    check_steps: frozenset[int] = frozenset()
    check_fn: Callable[[int], bool] = lambda done: False
    evaluate_fn: Callable[[int], Mapping[str, float]] = lambda done: {}
    ledger: Ledger | None = None
    accounted: Event | None = None
    canaries: GradientCanaries | None = None

    def require_noise(self, noise_multiplier: float) -> None:
        """Check that the noise which is about to be added is that of the run's privacy record.

        Args:
            noise_multiplier: standard deviation of the noise over the sensitivity. Steps that release something beside
                the noisy sum have more noise on the sum than the record says.

        Raises:
            ValueError: it is less noise.
        """
        if isinstance(self.accounted, PoissonGaussian) and not noise_multiplier >= self.accounted.noise_multiplier:
            raise ValueError(
                f"noise_multiplier must be at least that of the privacy record, {self.accounted.noise_multiplier}, got "
                f"{noise_multiplier}. Restore plan.json, or start a new sweep."
            )


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Result of training. The model itself is changed in place.

    Attributes:
        history: per step: step, loss (mean over the drawn examples, nats), drawn (examples), clipped (share),
            gradient_norm (mean before clipping), max_grad_norm (the step's threshold, if there is one). It is computed
            on private data and not covered by ε.
        ended_early: whether a check ended training before its last step; the history shows after how many steps.
        resumed_from: number of steps that a checkpoint saved; 0 without a checkpoint.
        seconds: wall-clock seconds of this process.
        details: further results of the run, as JSON values. They stay in the sweep's folder, as private as the data.
        variants: claimed ε -> function that puts the weights with this claim into the model, on every rank.
    """

    history: list[dict[str, float]]
    ended_early: bool
    resumed_from: int
    seconds: float
    details: Mapping[str, object] = field(default_factory=dict)
    variants: Mapping[float, Callable[[], None]] = field(default_factory=dict)

"""What one training run is given and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from raydp.training.gradients.memory import TokenBudget
from raydp.training.ledger import Ledger


class Paused(Exception):  # noqa: N818 - nothing is wrong
    """Training was asked to pause, and its state is saved as far as it had come."""


Progress = Callable[[int, int, Mapping[str, float]], None]


@dataclass(frozen=True, kw_only=True)
class TrainingContext:
    """What a method is given to train.

    Attributes:
        model: in eval mode, on the comm's device.
        parameters: name -> trained parameter, at its start.
        microbatch_size: examples in one backward pass; None lets the budget decide. Cannot change the result.
        budget: padded tokens of a micro-batch where its size is not given.
        autocast: type that the matrix products of training are computed in; None for the weights' own.
        checkpoint_seconds: time between checkpoints.
        progress: called after each step with (steps done, steps in all, the step's row of the history).
        pause_fn: asked before each step whether to save the state and raise `Paused`; rank 0's answer counts.
        check_steps: after so many steps check_fn is called.
        check_fn: called on every rank with the steps done, returns on every rank the same: whether to end here.
        ledger: is told of every noisy step before it is used.
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
    ledger: Ledger | None = None


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What training did; the model itself was changed in place.

    Attributes:
        history: per step: step, loss (mean over the drawn examples, nats), drawn (examples), clipped (share),
            gradient_norm (mean before clipping), max_grad_norm (the step's threshold, where there is one). Computed on
            private data; not covered by ε.
        ended_early: a check ended it before its last step; the history says after how many.
        resumed_from: steps that a checkpoint spared, 0 without one.
        seconds: wall-clock of this process's part.
        details: what else is known of the run, as JSON values. It stays in the sweep's folder, as private as the data.
        variants: claimed ε -> puts the weights that are claimed to have it into the model, on every rank.
    """

    history: list[dict[str, float]]
    ended_early: bool
    resumed_from: int
    seconds: float
    details: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[float, Callable[[], None]] = field(default_factory=dict)

"""What one training run is given and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from raydp.training.ledger import Ledger
from raydp.training.memory import TokenBudget
from search_spaces import Configuration


@dataclass(frozen=True, kw_only=True)
class TrialPlan:
    """One (configuration, seed) to train: everything that decides the result, and its name.

    Attributes:
        run_id: hash of what defines the run; names its noise, its folder and its record.
        batch_size: b, the expected number of units drawn in a step.
        num_examples: n, the units of privacy that are drawn from (examples, or users). The sampling rate is b / n.
        noise_multiplier: σ of the accounted mechanism, noise std over the sensitivity; 0 for a method without noise.
        seed: public label of the repetition: initialisation and score sampling.
    """

    run_id: str
    batch_size: int
    num_steps: int
    learning_rate: float
    seed: int
    num_examples: int
    noise_multiplier: float

    @property
    def configuration(self) -> Configuration:
        """What of it a sweep varies."""
        return Configuration(batch_size=self.batch_size, num_steps=self.num_steps, learning_rate=self.learning_rate)


@dataclass(frozen=True, kw_only=True)
class Trainee:
    """What a method is given to train.

    Attributes:
        model: in eval mode, on the comm's device.
        parameters: name -> trained parameter, at its start.
        microbatch_size: examples in one backward pass; None lets the budget decide. Cannot change the result.
        budget: padded tokens of a micro-batch where its size is not given.
        autocast: type that the matrix products of training are computed in; None for the weights' own.
        checkpoint_seconds: time between checkpoints.
        progress: called with (steps done, steps in all) after each step.
        ledger: is told of every noisy step before it is used.
    """

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    microbatch_size: int | None = None
    budget: TokenBudget = field(default_factory=TokenBudget)
    autocast: torch.dtype | None = None
    checkpoint_seconds: float = 30.0
    progress: Callable[[int, int], None] | None = None
    ledger: Ledger | None = None


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What training did; the model itself was changed in place.

    Attributes:
        history: per step: step, loss (mean over the drawn examples, nats), drawn (examples), clipped (share),
            gradient_norm (mean before clipping), max_grad_norm (the step's threshold, where there is one). Computed on
            private data; not covered by ε.
        resumed_from: steps that a checkpoint spared, 0 without one.
        seconds: wall-clock of this process's part.
    """

    history: list[dict[str, float]]
    resumed_from: int
    seconds: float

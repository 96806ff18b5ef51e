"""Input and result of one training run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import nn

from raydp.analysis.tables.statements import Statement
from raydp.training.comm import Comm
from raydp.training.gradients.memory import TokenBudget
from raydp.training.observers import Accounting, Observer

T = TypeVar("T")


class Paused(Exception):  # noqa: N818 - nothing is wrong
    """Training was asked to pause. The state so far is saved, if the method saves any."""


@dataclass(frozen=True, kw_only=True)
class TrainingContext:
    """The model and the settings that a method trains with.

    Attributes:
        model: in eval mode, on the comm's device.
        parameters: name -> trained parameter, at its start.
        microbatch_size: number of examples in one backward pass; None lets the budget decide. It
            cannot change the result.
        budget: padded tokens of a micro-batch if its size is not given.
        autocast: dtype of the matrix products of training; None for the weights' own dtype.
        checkpoint_seconds: time between checkpoints.
        accounting: compares the noise with the privacy record, and keeps the ledger. It is not one of
            the observers, so that whoever changes the observers cannot lose it.
        observers: see every step, in this order, before the state is saved.
        pause_fn: asked before each step, and before each micro-batch of a long one, whether to save
            the state and raise `Paused`; rank 0's answer counts.
        virtual_units: units that the sampler draws and that no model runs. An observer adds their
            gradients.
    """

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    microbatch_size: int | None = None
    budget: TokenBudget = field(default_factory=TokenBudget)
    autocast: torch.dtype | None = None
    checkpoint_seconds: float = 30.0
    accounting: Accounting = field(default_factory=Accounting)
    observers: tuple[Observer, ...] = ()
    pause_fn: Callable[[], bool] = lambda: False
    virtual_units: range = range(0)


class Pause:
    """Asks on rank 0 whether a run must pause. `heard` keeps the answer."""

    def __init__(self, context: TrainingContext, comm: Comm) -> None:
        self._asked_fn = context.pause_fn if comm.rank == 0 else lambda: False
        self.heard = False

    def ask(self) -> None:
        """Ask, unless the answer was yes before."""
        self.heard = self.heard or self._asked_fn()

    def between(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield micro-batches until the run must pause.

        Sharded ranks cannot leave a step like this, because the others need their weights.
        """
        for place, batch in enumerate(batches):
            if place:
                self.ask()
            if self.heard:
                return
            yield batch


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Result of training. The model itself is changed in place.

    Attributes:
        history: per step: step, loss (mean over the drawn examples, nats), drawn (examples),
            clipped (share), gradient_norm (mean before clipping), max_grad_norm (the step's
            threshold, if there is one). It is computed on private data and not covered by ε.
        ended_early: whether a check ended training before its last step; the history shows after
            how many steps.
        resumed_from: number of steps that a checkpoint saved; 0 without a checkpoint.
        seconds: wall-clock seconds of this process.
        details: further results of the run, as JSON values. They stay in the sweep's folder, as
            private as the data.
        variants: stated ε -> function that puts the weights with this statement into the model, on
            every rank.
    """

    history: list[dict[str, float]]
    ended_early: bool
    resumed_from: int
    seconds: float
    details: Mapping[str, object] = field(default_factory=dict)
    variants: Mapping[Statement, Callable[[], None]] = field(default_factory=dict)

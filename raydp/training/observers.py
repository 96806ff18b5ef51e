"""Observers of training: everything of a step that is not the mechanism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.privacy.accounting.events import Event, PoissonGaussian
from raydp.training.ledger import Ledger
from raydp.training.trial_plan import TrialPlan

if TYPE_CHECKING:
    from raydp.spec.document import SweepSpec


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of the mechanism, as `before_noise` and `after_noise` see it.

    Attributes:
        number: of the step, from 0.
        units: the units that the sampler drew, equal on every rank.
        factors_fn: [U] norms of gradients -> [U] factors that scale the gradients to the threshold.
        threshold: c, the clipping norm of this step; inf if nothing is clipped.
        noise_multiplier: σ of the noise on the sum, over c; 0 for none.
        total: [d] fp32, the sum of clipped gradients over all ranks, later with noise. If the
            parameters are sharded, it is this rank's part of the sum.
    """

    number: int
    units: NDArray[np.int64]
    factors_fn: Callable[[torch.Tensor], torch.Tensor]
    threshold: float
    noise_multiplier: float
    total: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """A step that is done, as `after_step` sees it.

    Attributes:
        done: number of steps done, equal on every rank; 0 while a run prepares its first step.
        num_steps: number of steps in all.
        row: the step's row of the history, to which an observer may add on rank 0.
    """

    done: int
    num_steps: int
    row: dict[str, float]


class Observer:
    """Sees the steps of a run, on every rank. The hooks do nothing here.

    Implementers: `Observers`, `AfterStep` and `Accounting` below, `resuming.Checkpoints`, those of
    `sweep/engine/trial_observers.py`, and each `TaskObserver`.

    Attributes:
        resumable: whether a run with this observer may go on from a checkpoint, which does not
            hold what the observer has seen.
        needs_whole_sum: whether it cannot work where each rank holds a part of the sum.
    """

    resumable: ClassVar[bool] = True
    needs_whole_sum: ClassVar[bool] = False

    def before_noise(self, step: Step) -> None:
        """See the sum of the clipped gradients, before its noise. Called in every step.

        This hook is inside the guarantee: what it adds must be scaled by `step.factors_fn`.
        """

    def after_noise(self, step: Step) -> None:
        """See the noisy sum, which the guarantee covers. Called in every step."""

    def after_step(self, report: StepReport) -> None:
        """See the updated weights, before the state is saved. Called after every step."""

    def must_end(self, done: int) -> bool:
        """Return whether training ends after `done` steps. Every rank must return the same.

        The state is saved before. It is asked again about a restored state, because the run may
        have been killed before it answered.
        """
        return False


class TaskObserver(Observer):
    """An observer that a task adds to each run on it. Implementers: those of extensions."""

    @property
    def units(self) -> range:
        """Return the drawn units that no model runs; `before_noise` adds their clipped gradients."""
        return range(0)

    def seen(self, plan: TrialPlan, method: str) -> NDArray[np.float64]:
        """Return what the trained model's scores read as `LoadedModel.observed`.

        Args:
            plan: the run, whose training has ended.
            method: name of the method, for the message.

        Raises:
            ValueError: the method did not show the steps that the observer needs.
        """
        raise NotImplementedError


@runtime_checkable
class ObservingTask(Protocol):
    """A task that observes the runs which train on it, beside the interface of every task.

    A task without these methods observes nothing. Implementers: those of extensions.
    """

    def check_run(self, spec: SweepSpec) -> None:
        """Check that a run of this spec can be trained on the task, before anything is trained.

        Raises:
            ValueError: it cannot.
        """

    def observer(self, plan: TrialPlan, num_trained: int) -> TaskObserver | None:
        """Return the observer of a run; None if the run needs none.

        Args:
            num_trained: number of trained weights.
        """


class Observers(Observer):
    """Calls several observers in their order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def before_noise(self, step: Step) -> None:
        for observer in self._observers:
            observer.before_noise(step)

    def after_noise(self, step: Step) -> None:
        for observer in self._observers:
            observer.after_noise(step)

    def after_step(self, report: StepReport) -> None:
        for observer in self._observers:
            observer.after_step(report)

    def must_end(self, done: int) -> bool:
        return any(observer.must_end(done) for observer in self._observers)


class AfterStep(Observer):
    """Calls a function after each step."""

    def __init__(self, function: Callable[[StepReport], object]) -> None:
        self._function = function

    def after_step(self, report: StepReport) -> None:
        self._function(report)


@dataclass(frozen=True, kw_only=True)
class Accounting(Observer):
    """Compares each step's noise with the run's privacy record, and writes it into the ledger.

    Attributes:
        event: event of the record; None for a run without a record.
        ledger: of the executed noisy steps; None on ranks other than 0.
    """

    event: Event | None = None
    ledger: Ledger | None = None

    def before_noise(self, step: Step) -> None:
        self.release(step.number, step.noise_multiplier)

    def release(self, number: int, noise_multiplier: float) -> None:
        """Record that noise is about to be added. Methods that add noise elsewhere call it too.

        Args:
            number: of the step.
            noise_multiplier: σ, noise over sensitivity. Steps that release something beside the
                sum have more noise on the sum than the record says.

        Raises:
            ValueError: it is less noise than the record says.
        """
        event = self.event
        # Written as "not >=", so that NaN is refused too.
        if isinstance(event, PoissonGaussian) and not noise_multiplier >= event.noise_multiplier:
            raise ValueError(
                "noise_multiplier must be at least that of the privacy record, "
                f"{event.noise_multiplier}, got {noise_multiplier}. Restore plan.json, or start "
                "a new sweep."
            )
        # The ledger is written before the noise can be used, so no kill can hide a release.
        if noise_multiplier > 0 and self.ledger is not None:
            self.ledger.record(number)

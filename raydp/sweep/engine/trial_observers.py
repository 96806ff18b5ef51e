"""Observers of a run in a worker: heartbeats, evaluation, early end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from raydp.training.comm import Comm
from raydp.training.observers import Observer, StepReport

Measure = Callable[[], float | None]
"""Measures the utility loss, on every rank together; returns it on rank 0, None on the others."""


class TrialControl(Protocol):
    """Follows a run, and decides whether it pauses or ends early.

    Implemented by `raydp.sweep.engine.worker.Heartbeat`, which asks the sweep's queue.
    """

    def beat(self, step: int, num_steps: int, row: Mapping[str, float]) -> None:
        """Note that `step` of `num_steps` steps are done; `row` is the history's newest row."""

    def must_pause(self) -> bool:
        """Return whether the run must save its state and pause."""

    def check(self, name: str, utility_loss: float) -> str | None:
        """Take the utility loss at a named check; return why the run must end here, or None."""


class StepEvaluation(Observer):
    """Measures the utility every few steps. The utility at the end is measured anyway."""

    def __init__(self, every: int, measure: Measure) -> None:
        self._every, self._measure = every, measure

    def after_step(self, report: StepReport) -> None:
        # The last step's utility is measured together with the scores.
        if report.done % self._every or report.done in (0, report.num_steps):
            return
        if (loss := self._measure()) is not None:
            report.row["heldout_loss"] = loss


class Heartbeats(Observer):
    """Tells the control how far training is."""

    def __init__(self, control: TrialControl) -> None:
        self._control = control

    def after_step(self, report: StepReport) -> None:
        self._control.beat(report.done, report.num_steps, report.row)


class EarlyEnd(Observer):
    """Ends a run at a check if the control wants it.

    Args:
        checks: number of steps -> name of the check after these steps.

    Attributes:
        reason: why the control ended the run, on every rank; None if no check ended it.
    """

    def __init__(
        self, checks: Mapping[int, str], control: TrialControl, measure: Measure, comm: Comm
    ) -> None:
        self._checks, self._control, self._measure, self._comm = checks, control, measure, comm
        self.reason: str | None = None

    def must_end(self, done: int) -> bool:
        if (name := self._checks.get(done)) is None:
            return False
        # All ranks measure together. Rank 0 alone asks the control, and the others follow.
        loss = self._measure()
        reason = None if loss is None else self._control.check(name, loss)
        self.reason = self._comm.broadcast_object(reason)
        return bool(self.reason)

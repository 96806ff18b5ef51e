"""Commits results on the driver, once each."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import ray

from raydp.privacy.records.guarantee import composed
from raydp.sweep.engine.context import SweepContext
from raydp.sweep.engine.leases.keys import split_key
from raydp.sweep.engine.listeners import RunListener
from raydp.sweep.engine.progress import SweepProgress
from raydp.sweep.store.folder import BASE_RUN
from raydp.sweep.store.results import RunResult
from raydp.sweep.store.transfer import Exchange, exchange_at
from raydp.system.output import strict

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorProxy

    from raydp.sweep.engine.queue import TrialQueue

LOGGER = logging.getLogger(__name__)
WRITE_TRIES, WRITE_SECONDS = 60, 10.0
"""Number of attempts to write a result while the disk is full, and the time between them."""
UNSEEN_TRIES = 7
"""Number of attempts to read a model that is not visible yet.

A shared folder may show a file up to a minute late.
"""


@dataclass(kw_only=True)
class Committer:
    """The only writer of results into the sweep's folder.

    Attributes:
        listener: hears of every committed run.
        base_key: see `attach`.
        committed: the runs that this committer has committed.
    """

    context: SweepContext
    listener: RunListener
    base_key: str | None = None
    _queue: ActorProxy[TrialQueue] | None = None
    _base: ObjectRef[RunResult] | None = None
    _progress: SweepProgress | None = None
    committed: set[str] = field(default_factory=set)

    def attach(
        self,
        queue: ActorProxy[TrialQueue],
        base_key: str | None,
        base: ObjectRef[RunResult] | None,
        progress: SweepProgress,
    ) -> None:
        """Connect the committer to a sweep that runs.

        Args:
            queue: gives the outcomes.
            base_key: key in the queue of the run that measures the untrained base model.
            base: its measurement; None if the folder has it.
            progress: shows each committed run.
        """
        self.base_key = base_key
        self._queue, self._base, self._progress = queue, base, progress

    def base(self) -> RunResult | None:
        """Wait for the untrained model's utility and scores. None if they could not be measured."""
        if self._base is not None:
            # Sweeps on equal data and models share one measurement.
            self.context.folder.commit(replace(ray.get(self._base), run_id=BASE_RUN))
            self._base = None
        result = self.context.folder.result(BASE_RUN)
        return result if result is not None and result.finished else None

    def commit(self, run_id: str) -> None:
        """Commit a run's outcome, after the untrained base model's, and tell the listener."""
        assert self._queue is not None, "runs are committed while a queue is attached"
        key = self.context.key(run_id)
        outcome = replace(ray.get(self._queue.outcome.remote(key)), run_id=run_id)
        outcome = self._whole(outcome)
        for note in outcome.notes:
            LOGGER.warning("%s", note)
        # Write first: the listener must never hear of a result that a crash could lose.
        outcome = self._write(outcome)
        LOGGER.debug("committed run %s: %s, attempt %s", run_id, outcome.status, outcome.attempts)
        self.committed.add(run_id)
        self._queue.committed.remote(key)
        # The listener compares the run with the untrained model, so the model's result comes first.
        self.base()
        self.listener.committed(self.context.trials[run_id])
        if self._progress is not None:
            self._progress.finished(replace(outcome, run_id=key))

    def keep(self, outcomes: Sequence[RunResult]) -> None:
        """Commit what an interrupted sweep's runs ended with; a resume tells the listener."""
        for outcome in outcomes:
            # An outcome that is refused must not keep the others from being saved.
            try:
                self._put(self._whole(outcome))
            except (OSError, ValueError) as error:
                LOGGER.warning(
                    "run %s is trained again from its last checkpoint (%s)", outcome.run_id, error
                )

    def _whole(self, outcome: RunResult) -> RunResult:
        """Return an outcome with the cost of its steps, if it was stopped early."""
        if outcome.status != "stopped":
            return outcome
        return replace(outcome, executed=self._executed(outcome.run_id, len(outcome.history or ())))

    def _put(self, outcome: RunResult) -> None:
        """Commit an outcome, with its model fetched from the object store if there is one."""
        if self._exchange is not None and outcome.finished:
            run_id, folder = outcome.run_id, self.context.folder
            self._exchange.collect(run_id, str(outcome.attempt), folder.trial(run_id))
        self.context.folder.commit(outcome)

    @cached_property
    def _exchange(self) -> Exchange | None:
        """Open the object store, if there is one, once for all runs, because that takes time."""
        exchange = exchange_at(self.context.spec.cluster.exchange)
        return None if exchange is None else exchange.of_sweep(self.context.plan.sweep_id)

    def _write(self, outcome: RunResult) -> RunResult:
        """Commit an outcome and return it.

        If the disk or the object store does not take it, wait: the result exists nowhere else. A
        run whose model does not become visible, or that has no utility, has failed.
        """
        run_id, exchange = outcome.run_id, self._exchange
        # The selection could not compare a run without a utility loss.
        if outcome.finished and outcome.utility_loss is None:
            outcome = RunResult(
                run_id=run_id, status="failed", reason="it ended without a utility loss"
            )
        # Retry: a shared folder shows files late, and a user may free the disk meanwhile.
        for left in reversed(range(WRITE_TRIES)):
            try:
                self._put(outcome)
                break
            except FileNotFoundError as error:
                # The model may become visible later. After some attempts it counts as lost.
                if WRITE_TRIES - left >= UNSEEN_TRIES:
                    lost = f"the trained model was lost: {error}"
                    outcome = RunResult(run_id=run_id, status="failed", reason=lost)
                time.sleep(WRITE_SECONDS)
            except OSError as error:
                # The disk is full or the store is away. Wait: no other copy of the result exists.
                if not left:
                    raise
                why = error.strerror or error
                problem = f"the result of {run_id} cannot be written to {self.context.folder.path} yet ({why})"
                LOGGER.warning(
                    "%s: free some space, or check the disk or the store. Trying again", problem
                )
                time.sleep(WRITE_SECONDS)
        # The folder has the files now. A failed run keeps its checkpoints for the next attempt.
        if exchange is not None and outcome.status != "failed":
            try:
                exchange.remove(run_id)
            except OSError as error:
                LOGGER.warning("the files of %s are left in %s (%s)", run_id, exchange.uri, error)
        return outcome

    def clear_store(self) -> None:
        """Delete the files of ended runs from the object store. Call it when no run is in progress.

        Workers that were thought dead may have left such files. A failed run's checkpoints stay for
        the next attempt.
        """
        if self._exchange is None:
            return
        try:
            for run_id in self._exchange.runs():
                if self.context.folder.has_ended(run_id):
                    self._exchange.remove(run_id)
        except OSError as error:
            LOGGER.warning("files are left in %s (%s)", self._exchange.uri, error)

    def _executed(self, run_id: str, num_steps: int) -> dict[str, object]:
        """Return the cost of a stopped run's steps, as if their number had been fixed in advance.

        The run's guarantee still covers all planned steps, because the run's utility decided when
        to stop.
        """
        trial = replace(self.context.trials[run_id], num_steps=num_steps)
        spec, delta = self.context.spec, self.context.plan.delta
        event = spec.of_run(trial.settings).method.params.event(trial, trial.noise_multiplier)
        return {"num_steps": num_steps, **strict(composed([event], delta, spec.privacy.accountant))}


class Committers:
    """The committers of the sweeps that share a queue."""

    def __init__(self, committers: Sequence[Committer]) -> None:
        self._of = {each.context.queue_name: each for each in committers}

    def commit(self, key: str) -> None:
        """Commit a run by its key in the queue."""
        sweep, run_id = split_key(key)
        self._of[sweep].commit(run_id)

    def has(self, key: str) -> bool:
        """Return whether a run is committed."""
        sweep, run_id = split_key(key)
        own = self._of[sweep]
        return run_id in own.committed or own.context.folder.has_ended(run_id)

    def bases(self) -> None:
        """Wait for the measurement of every untrained model."""
        for each in self._of.values():
            each.base()

    def keep(self, outcomes: Sequence[RunResult]) -> None:
        """Commit what interrupted runs have ended with; see `Committer.keep`."""
        for outcome in outcomes:
            sweep, run_id = split_key(outcome.run_id)
            # Several sweeps may share the measurement of the untrained model.
            sharing = [each for each in self._of.values() if each.base_key == outcome.run_id]
            for each in sharing or [self._of[sweep]]:
                each.keep([replace(outcome, run_id=run_id)])

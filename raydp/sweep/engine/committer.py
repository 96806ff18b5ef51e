"""Commits results on the driver, once each."""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import ray

from raydp.io.output import stderr, strict
from raydp.privacy import composed
from raydp.sweep.engine.context import SweepContext
from raydp.sweep.engine.listeners import RunListener
from raydp.sweep.engine.progress import SweepProgress
from raydp.sweep.store.folder import BASE_RUN
from raydp.sweep.store.results import RunResult
from raydp.sweep.store.transfer import Bucket, bucket_of, collect

WRITE_TRIES, WRITE_SECONDS = 60, 10.0
"""How often, and how long after one another, it is tried to write a result where there is no space."""
UNSEEN_TRIES = 7
"""The same for a model that is not seen yet: a shared folder may show it up to a minute late."""


@dataclass(kw_only=True)
class Committer:
    """The only writer of results into the sweep's folder.

    Attributes:
        listener: hears of every committed run.
        committed: the runs that this committer has committed.
    """

    context: SweepContext
    listener: RunListener
    _queue: Any = None
    _base: Any = None
    _progress: SweepProgress | None = None
    _next: deque[str] = field(default_factory=deque)
    committed: set[str] = field(default_factory=set)

    def attach(self, queue: Any, base: Any, progress: SweepProgress) -> None:
        """Where outcomes come from while the sweep runs."""
        self._queue, self._base, self._progress = queue, base, progress

    def hand_out(self, run_ids: Sequence[str]) -> None:
        """Each commit puts the next of these runs into the queue, so that as many are out as before."""
        self._next = deque(run_ids)

    def base(self) -> RunResult | None:
        """The untrained model's utility and scores; waits for them. None where they could not be measured."""
        if self._base is not None:
            self.context.folder.commit(ray.get(self._base))
            self._base = None
        result = self.context.folder.result(BASE_RUN)
        return result if result is not None and result.finished else None

    def commit(self, run_id: str) -> None:
        """Commit a run's outcome, after the untrained base model's, and tell the listener."""
        outcome: RunResult = ray.get(self._queue.outcome.remote(run_id))
        if outcome.status == "stopped":
            outcome = replace(outcome, executed=self._executed(run_id, len(outcome.history or ())))
        for note in outcome.notes:
            stderr.print(f"warning: {note}", markup=False)
        outcome = self._write(outcome)
        self.committed.add(run_id)
        self._queue.forget.remote(run_id)  # it is on disk now
        if self._next:
            self._queue.enqueue.remote([self._next.popleft()])
        self.base()
        self.listener.committed(self.context.trials[run_id])
        if self._progress is not None:
            self._progress.finished(outcome)

    @cached_property
    def _bucket(self) -> Bucket | None:
        """One for all runs: opening a store takes time."""
        return bucket_of(self.context.spec.cluster.exchange, self.context.plan.sweep_id)

    def _write(self, outcome: RunResult) -> RunResult:
        """Commit an outcome and return it. Where the disk is full or the object store does not answer, wait: the result
        is nowhere else. A run whose model does not come to be seen has failed."""
        run_id, bucket = outcome.run_id, self._bucket
        for left in reversed(range(WRITE_TRIES)):
            try:
                if bucket is not None and outcome.finished:
                    collect(bucket, run_id, str(outcome.attempt), self.context.folder.trial(run_id))
                self.context.folder.commit(outcome)
                break
            except FileNotFoundError as error:
                if WRITE_TRIES - left >= UNSEEN_TRIES:
                    lost = f"the trained model was lost: {error}"
                    outcome = RunResult(run_id=run_id, status="failed", reason=lost)
                time.sleep(WRITE_SECONDS)
            except OSError as error:
                if not left or (bucket is None and error.errno != errno.ENOSPC):
                    raise
                why = error.strerror or error
                said = f"the result of {run_id} cannot be written to {self.context.folder.path} yet ({why})"
                stderr.print(f"warning: {said}: free some space, or see to the store. Trying again", markup=False)
                time.sleep(WRITE_SECONDS)
        if bucket is not None and outcome.status != "failed":
            try:
                bucket.delete_folder(run_id)
            except OSError as error:
                stderr.print(f"warning: the files of {run_id} are left in {bucket.uri} ({error})", markup=False)
        return outcome

    def clear_store(self) -> None:
        """Nothing is in progress any more: what workers that were thought dead have left of runs that have ended goes
        out of the object store. A failed run's checkpoints stay for the next try."""
        if self._bucket is None:
            return
        try:
            for run_id in {name.partition("/")[0] for name in self._bucket.names("")}:
                if self.context.folder.has_ended(run_id):
                    self._bucket.delete_folder(run_id)
        except OSError as error:
            stderr.print(f"warning: files are left in {self._bucket.uri} ({error})", markup=False)

    def _executed(self, run_id: str, num_steps: int) -> dict[str, Any]:
        """What so many steps would have cost, had it been known before that there would be so many. The guarantee stays
        that of all steps: when to stop was seen in the run's utility."""
        trial = replace(self.context.trials[run_id], num_steps=num_steps)
        spec, delta = self.context.spec, self.context.plan.delta
        event = spec.method.params.event(trial, trial.noise_multiplier)
        return {"num_steps": num_steps, **strict(composed([event], delta, spec.privacy.accountant))}

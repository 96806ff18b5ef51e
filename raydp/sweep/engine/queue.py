"""The actor of Ray through which the driver, the trials of Tune and the workers share the runs.

`RunQueue` has the runs, and `SlotBoard` the slots. Here are the waits and the names of the calls.

`ray.method` on a method of the actor gives each `handle.method.remote(...)` its types, for a handle
that is annotated `ActorProxy[TrialQueue]`. Ray's types need every argument, so these methods have
no default values.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import ray

from raydp.sweep.engine.leases.run_queue import News, RunQueue
from raydp.sweep.engine.leases.slot_board import SlotBoard
from raydp.sweep.engine.stopping import EarlyStopping
from raydp.sweep.store.results import RunResult

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.util.placement_group import PlacementGroup

    from raydp.sweep.engine.context import WorkerInputs

Order = Literal["go on", "pause", "lost"]

LEASE_SECONDS = 60.0
"""A lease without a heartbeat for this long ends as soon as a slot asks for a run.

At a sweep's end the other slots may have ended, and no slot asks. Then Ray Train's health check (10
minutes) ends a worker that does not answer.
"""

GATHER_SECONDS = 10.0
"""How long Tune's first actors wait for the other actors of their round."""


@dataclass(frozen=True, kw_only=True)
class QueueStatus:
    """The runs in progress, for the progress display.

    Attributes:
        running: run_id -> (steps done, steps in all) of each run that a slot holds. Both are 0
            before the first step.
        waiting: number of runs that wait for a slot.
        retried: run_id and reason of each attempt that failed and is made again, in order.
        preparing: slot -> what its workers do before they take a run.
    """

    running: Mapping[str, tuple[int, int]]
    waiting: int
    retried: tuple[tuple[str, str], ...] = ()
    preparing: Mapping[int, str] = field(default_factory=dict)


class TrialQueue:
    """Hands runs to slots, and their outcomes to the driver.

    If a slot's workers start anew while the slot holds a lease, the lease ends, because the earlier
    workers have died. Once the last run is handed out, an idle slot ends and frees its devices.

    Args:
        expected, max_retries, early_stopping: see `RunQueue`.
        max_idle_starts: how often in a row a slot's workers may die before they lease a run.
    """

    def __init__(
        self,
        *,
        expected: int,
        max_retries: int,
        early_stopping: Mapping[str, EarlyStopping] | None = None,
        max_idle_starts: int = 3,
    ) -> None:
        self._runs = RunQueue(
            expected=expected, max_retries=max_retries, early_stopping=early_stopping
        )
        self._slots = SlotBoard(max_idle_starts=max_idle_starts)
        self._inputs: list[ObjectRef[WorkerInputs]] = []
        self._actors: dict[str, set[str]] = {}
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[RunQueue]:
        """Change the state in the block, and then wake every call that waits for a change."""
        async with self._changed:
            yield self._runs
            self._changed.notify_all()

    async def _wait_for(self, condition: Callable[[], object], seconds: float | None) -> None:
        """Wait for a condition; at most so many seconds, if any. The caller holds the lock."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait_for(lambda: bool(condition())), seconds)

    # The driver, and the trials of Tune.

    @ray.method
    async def enqueue(self, run_ids: list[str], at_once: int) -> None:
        """Put runs into the queue, each once: `at_once` now, and one of the others at each commit.

        Beside it, only `follow` puts a run into the queue.
        """
        async with self._change() as runs:
            runs.enter(run_ids, at_once)

    @ray.method
    async def follow(self, run_id: str, step: int, seconds: float) -> News:
        """Put a run into the queue, if it is not there yet, and wait for news of it.

        Args:
            step: the last step that the caller knows.
            seconds: time between two checks for a new step.

        Returns:
            The run's progress, or its outcome without the history.
        """
        async with self._changed:
            if self._runs.enter([run_id], 1):
                self._changed.notify_all()
            while (news := self._runs.news(run_id, step)) is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), timeout=seconds)
            return news

    @ray.method
    async def outcome(self, run_id: str) -> RunResult:
        """Wait for a run's outcome and return it.

        This is the only way out of the queue of a sweep that goes on.
        """
        async with self._changed:
            await self._wait_for(lambda: self._runs.outcome(run_id), None)
            outcome = self._runs.outcome(run_id)
            assert outcome is not None, "the condition is that there is an outcome"
            return outcome

    @ray.method
    async def committed(self, run_id: str) -> None:
        """Note that an outcome is on disk; see `RunQueue.committed`."""
        async with self._change() as runs:
            runs.committed(run_id)

    @ray.method
    async def close(self, expected: int) -> None:
        """Expect `expected` runs in all. Once the last run is handed out, idle slots end."""
        async with self._change() as runs:
            runs.expected = expected

    @ray.method
    async def gather(self, actor: str, num_actors: int, tune_round: str) -> None:
        """Wait until `num_actors` of Tune's actors have started in this round of Tune.

        Each round of Tune starts its own actors. When a trial ends early, Tune reuses its actor for
        the next trial and kills the actor that is still starting for that trial. Without this wait,
        every short run would start an actor.
        """
        async with self._change():
            started = self._actors.setdefault(tune_round, set())
            started.add(actor)
        # An actor that cannot start must not hold up the others for ever.
        async with self._changed:
            await self._wait_for(lambda: len(started) >= num_actors, GATHER_SECONDS)

    @ray.method
    async def status(self) -> QueueStatus:
        """Return what runs now."""
        return QueueStatus(
            running=self._runs.running,
            waiting=self._runs.num_waiting,
            retried=tuple(self._runs.retried),
            preparing=self._slots.preparing,
        )

    @ray.method
    async def first_lease(self) -> None:
        """Wait until a slot's workers have taken a run, or no slot is left."""
        async with self._changed:
            await self._wait_for(lambda: self._runs.abandoned or self._runs.has_begun, None)

    @ray.method
    async def pause(self) -> None:
        """Ask the runs in progress to save their state and to be given back.

        No run is handed out any more.
        """
        async with self._change() as runs:
            runs.paused = True

    @ray.method
    async def saved(self) -> None:
        """Wait until no run that trains is in progress.

        A run that prepares or measures itself has nothing to save: it goes on from its last
        checkpoint.
        """
        async with self._changed:
            await self._wait_for(lambda: self._runs.is_saved, None)

    @ray.method
    async def ended(self) -> list[RunResult]:
        """Return an interrupted sweep's outcomes that are not on disk yet, without failures."""
        return self._runs.unsaved()

    # The slots.

    @ray.method
    async def share(self, reference: list[ObjectRef[WorkerInputs]]) -> None:
        """Give the workers their inputs: a list of one reference.

        Ray does not resolve a reference inside a list, so only the workers fetch the object.
        """
        async with self._change():
            self._inputs = reference

    @ray.method
    async def shared(self) -> list[ObjectRef[WorkerInputs]]:
        """Wait for the workers' inputs, and return the list that `share` was given."""
        async with self._changed:
            await self._wait_for(lambda: self._inputs, None)
            return self._inputs

    @ray.method
    async def register(
        self, slot: int, placement_group: PlacementGroup | None, nodes: Iterable[str]
    ) -> bool:
        """Note that a slot's workers have started, in this placement group and on these nodes.

        Returns:
            Whether the workers go on. False if the slot's workers have died too often before they
            leased a run.
        """
        async with self._change() as runs:
            # Workers that start while their slot holds a lease replace workers that have died.
            runs.expire(slot, "the worker group died")
            goes_on = self._slots.register(slot, placement_group, nodes)
            if runs.abandoned is not None:
                self._slots.rest(slot)
            return goes_on

    @ray.method
    async def prepare(self, slot: int, work: str) -> None:
        """Note what a slot's workers do before they take a run, such as "loads the base model"."""
        self._slots.prepare(slot, work)

    @ray.method
    async def explain(self, slot: int, reason: str, for_good: bool) -> None:
        """Note why a slot's workers die before they lease a run.

        Args:
            for_good: whether they can never train on their nodes. The slot then starts no other
                worker group.
        """
        self._slots.explain(slot, reason, for_good=for_good)

    @ray.method
    async def drain(self, nodes: Iterable[str]) -> None:
        """Leave these nodes, which will be removed.

        Runs on them save their state and are given back, and their slots start anew on other nodes.
        """
        async with self._change():
            self._slots.drain(nodes)

    @ray.method
    async def placement_group(self, slot: int) -> PlacementGroup | None:
        """Return the placement group of a slot's newest workers; None before its first workers."""
        return self._slots.placement_group(slot)

    @ray.method
    async def has_work_for(self, slot: int) -> bool:
        """Return whether a new worker group of this slot could get a run, now or later.

        The slot's last worker group has ended. A run that it still holds was lost with its
        controller.
        """
        async with self._change() as runs:
            runs.expire(slot, "the worker group's controller died")
            self._slots.rest(slot)
            return not runs.paused and not runs.is_exhausted and self._slots.may_start(slot)

    @ray.method
    async def abandon(self, reason: str) -> None:
        """Fail every run without an outcome, because no slot is left.

        The workers' explanations join the reason.
        """
        async with self._change() as runs:
            runs.abandon("; ".join([reason, *self._slots.reasons()]))
            self._slots.rest()

    # The holder of a run.

    @ray.method
    async def lease(self, slot: int) -> tuple[str, int] | None:
        """Wait for the next run, and return it with its fencing token.

        Returns:
            None if every expected run is handed out, the sweep pauses, or a node of the slot will
            be removed. Also None if the slot's workers were replaced during the wait: the worker
            that asked is dead.
        """
        runs, slots = self._runs, self._slots
        async with self._changed:
            start = slots.starts(slot)
            while slots.starts(slot) == start and not runs.paused and not slots.leaves(slot):
                # Leases expire here, when a slot asks for a run: no timer is needed.
                now = time.monotonic()
                reason = f"no heartbeat for {LEASE_SECONDS:.0f} s"
                if runs.expire_silent(now - LEASE_SECONDS, reason):
                    self._changed.notify_all()
                if (leased := runs.lease(slot, now)) is not None:
                    slots.leased(slot)
                    self._changed.notify_all()
                    return leased
                # All runs are handed out. If one fails, the slots that are left take it again.
                if runs.is_exhausted:
                    break
                with suppress(TimeoutError):  # then look for expired leases
                    await asyncio.wait_for(self._changed.wait(), timeout=LEASE_SECONDS / 4)
            # Newer workers of the slot have a note of their own, which stays.
            if slots.starts(slot) == start:
                slots.rest(slot)
        return None

    @ray.method
    async def heartbeat(self, run_id: str, token: int, news: News, seconds: float) -> Order:
        """Note that the holder of a run is alive, and how far training is.

        Args:
            seconds: how long the answer waits for an order to pause, so that the order is heard at
                once.

        Returns:
            Whether the holder goes on or pauses. "lost" if another holder has the lease now.
        """
        # A holder whose lease has ended changes nothing, and is told so below.
        self._runs.beat(run_id, token, news, time.monotonic())
        async with self._changed:
            if self._runs.paused:  # `saved` looks again
                self._changed.notify_all()
            await self._wait_for(lambda: self._order(run_id, token) != "go on", seconds)
            return self._order(run_id, token)

    @ray.method
    async def check(self, run_id: str, token: int, check: str, utility_loss: float) -> str | None:
        """Take the utility loss that the holder has measured at a check.

        Returns:
            Why the run stops early; None if the run goes on.
        """
        return self._runs.check(run_id, token, check, utility_loss, time.monotonic())

    @ray.method
    async def release(self, run_id: str, token: int) -> None:
        """Take back a paused run. The attempt does not count."""
        async with self._change() as runs:
            runs.release(run_id, token)

    @ray.method
    async def complete(self, run_id: str, token: int, outcome: RunResult) -> bool:
        """Take a run's result. Return whether it counts, see `RunQueue.complete`."""
        async with self._change() as runs:
            return runs.complete(run_id, token, outcome)

    @ray.method
    async def fail(self, run_id: str, token: int, reason: str, retry: bool) -> None:
        """Note that an attempt failed, and why. Without `retry`, the run has failed for good."""
        async with self._change() as runs:
            runs.fail(run_id, token, reason, retry=retry)

    def _order(self, run_id: str, token: int) -> Order:
        slot = self._runs.slot_of(run_id, token)
        if slot is None:
            return "lost"
        return "pause" if self._runs.paused or self._slots.leaves(slot) else "go on"

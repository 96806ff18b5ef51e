"""The queue of a sweep's trials: leases with heartbeats and fencing tokens. The driver makes the queue an actor of Ray.

`ray.method` on a method of the actor gives each `handle.method.remote(...)` its types, for a handle that is annotated
`ActorProxy[TrialQueue]`. Ray's types need every argument, so these methods have no default values.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import ray

from raydp.sweep.engine.stopping import EarlyStopping
from raydp.sweep.store.results import RunResult

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.util.placement_group import PlacementGroup

    from raydp.sweep.engine.context import WorkerInputs

Order = Literal["go on", "pause", "lost"]

LEASE_SECONDS = 60.0
"""A lease without a heartbeat for this long ends as soon as a slot asks for a run.

At a sweep's end the other slots may have ended, and no slot asks. Then Ray Train's health check (10 minutes) ends a
worker that does not answer.
"""

GATHER_SECONDS = 10.0
"""How long Tune's first actors wait for the other actors of their round."""


@dataclass
class _Item:
    """State of one run in the queue."""

    run_id: str
    attempts: int = 0
    token: int = 0
    slot: int | None = None
    heartbeat: float = 0.0
    step: int = 0
    num_steps: int = 0
    row: Mapping[str, float] = field(default_factory=dict)
    outcome: RunResult | None = None
    reasons: list[str] = field(default_factory=list)
    checks: dict[str, float] = field(default_factory=dict)

    def is_held_with(self, token: int) -> bool:
        """Return whether a slot holds the run with this token."""
        return self.token == token and self.slot is not None


@dataclass(frozen=True, kw_only=True)
class News:
    """Progress or outcome of a run.

    Attributes:
        step, num_steps: steps done, and steps in all.
        row: newest row of the run's history.
        outcome: how the run ended; None while it runs.
    """

    step: int = 0
    num_steps: int = 0
    row: Mapping[str, float] = field(default_factory=dict)
    outcome: RunResult | None = None


@dataclass(frozen=True, kw_only=True)
class QueueStatus:
    """The runs in progress, for the progress display.

    Attributes:
        running: run_id -> (steps done, steps in all) of each run that a slot holds. Both are 0 before the first step.
        waiting: number of runs that wait for a slot.
        retried: run_id and reason of each attempt that failed and is made again, in order.
        preparing: slot -> what its workers do before they take a run.
    """

    running: Mapping[str, tuple[int, int]]
    waiting: int
    retried: tuple[tuple[str, str], ...] = ()
    preparing: Mapping[int, str] = field(default_factory=dict)


class TrialQueue:
    """Hands runs to slots. A run that fails is tried again `max_retries` times, and then fails with its reasons.

    If a slot's workers start anew while the slot holds a lease, the lease ends, because the earlier workers have died.
    Only the holder of the newest token can complete a run. A worker that was wrongly thought dead can therefore not
    replace the result of the next holder.

    Args:
        expected: how many runs will enter the queue. Once the last run is handed out, an idle slot ends and frees its
            devices.
        max_retries: how often a failed run is tried again.
        early_stopping: decides which runs stop early; None if no run stops early.
        max_idle_starts: how often in a row a slot's workers may die before they lease a run.
    """

    def __init__(
        self, *, expected: int, max_retries: int, early_stopping: EarlyStopping | None = None, max_idle_starts: int = 3
    ) -> None:
        self._early_stopping = early_stopping
        self._paused = False
        self._expected = expected
        self._max_retries = max_retries
        self._max_idle_starts = max_idle_starts
        self._items: dict[str, _Item] = {}
        self._held: dict[str, _Item] = {}  # runs with a slot: few of thousands
        self._waiting: deque[str] = deque()
        self._idle_starts: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._placement_groups: dict[int, PlacementGroup | None] = {}
        self._retried: list[tuple[str, str]] = []
        self._nodes: dict[int, frozenset[str]] = {}  # slot -> ids of its workers' nodes
        self._draining: frozenset[str] = frozenset()
        self._explained: dict[int, str] = {}
        self._preparing: dict[int, str] = {}
        self._shared: list[ObjectRef[WorkerInputs]] = []
        self._actors: dict[str, set[str]] = {}
        self._abandoned: str | None = None
        self._changed = asyncio.Condition()

    @ray.method
    async def enqueue(self, run_ids: list[str]) -> None:
        """Put runs into the queue, each once. This is the only way into the queue."""
        async with self._changed:
            for run_id in run_ids:
                self._enter(run_id)

    @ray.method
    async def outcome(self, run_id: str) -> RunResult:
        """Wait for a run's outcome and return it. This is the only way out of the queue."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._outcome_of(run_id) is not None)
            outcome = self._outcome_of(run_id)
            assert outcome is not None, "the condition is that there is an outcome"
            return outcome

    @ray.method
    async def follow(self, run_id: str, step: int, seconds: float) -> News:
        """Wait for news of a run.

        Args:
            step: the last step that the caller knows.
            seconds: time between two checks for a new step.

        Returns:
            The run's progress, or its outcome without the history.
        """
        async with self._changed:
            while (outcome := self._outcome_of(run_id)) is None:
                item = self._items.get(run_id)
                if item is not None and item.slot is not None and item.step not in (0, step):
                    return News(step=item.step, num_steps=item.num_steps, row=item.row)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), timeout=seconds)
            return News(outcome=replace(outcome, history=None))

    @ray.method
    async def close(self, expected: int) -> None:
        """Expect `expected` runs in all. Once the last run is handed out, idle slots end."""
        async with self._changed:
            self._expected = expected
            self._changed.notify_all()

    @ray.method
    async def share(self, reference: list[ObjectRef[WorkerInputs]]) -> None:
        """Give the workers their inputs: a list of one reference. Ray does not resolve a reference inside a list, so
        only the workers fetch the object."""
        async with self._changed:
            self._shared = reference
            self._changed.notify_all()

    @ray.method
    async def shared(self) -> list[ObjectRef[WorkerInputs]]:
        """Wait for the workers' inputs, and return the list that `share` was given."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._shared)
            return self._shared

    @ray.method
    async def gather(self, actor: str, num_actors: int, tune_round: str) -> None:
        """Wait until `num_actors` of Tune's actors have started in this round of Tune.

        Each round of Tune starts its own actors. When a trial ends early, Tune reuses its actor for the next trial and
        kills the actor that is still starting for that trial. Without this wait, every short run would start an actor.
        """
        async with self._changed:
            started = self._actors.setdefault(tune_round, set())
            started.add(actor)
            self._changed.notify_all()
            with suppress(TimeoutError):
                enough = self._changed.wait_for(lambda: len(started) >= num_actors)
                await asyncio.wait_for(enough, timeout=GATHER_SECONDS)

    @ray.method
    async def register(self, slot: int, placement_group: PlacementGroup | None, nodes: Iterable[str]) -> bool:
        """Note that a slot's workers have started, in this placement group and on these nodes.

        Returns:
            Whether the workers go on. False if the slot's workers have died too often before they leased a run.
        """
        async with self._changed:
            self._placement_groups[slot] = placement_group
            self._nodes[slot] = frozenset(nodes)
            self._starts[slot] = self._starts.get(slot, 0) + 1
            self._changed.notify_all()
            self._expire(slot=slot, reason="the worker group died")
            self._idle_starts[slot] = self._idle_starts.get(slot, 0) + 1
            goes_on = self._idle_starts[slot] <= self._max_idle_starts
            if goes_on and self._abandoned is None:
                self._preparing[slot] = "waits for the base model"
            return goes_on

    @ray.method
    async def prepare(self, slot: int, work: str) -> None:
        """Note what a slot's workers do before they take a run, such as "loads the base model"."""
        if slot in self._preparing:  # a note that comes late says nothing any more
            self._preparing[slot] = work

    @ray.method
    async def drain(self, nodes: Iterable[str]) -> None:
        """Leave these nodes, which will be removed. Runs on them save their state and are given back, and their slots
        start anew on other nodes."""
        async with self._changed:
            self._draining = frozenset(nodes)
            self._changed.notify_all()

    @ray.method
    async def placement_group(self, slot: int) -> PlacementGroup | None:
        """Return the placement group of a slot's newest workers; None before the slot's first workers."""
        return self._placement_groups.get(slot)

    @ray.method
    async def has_work_for(self, slot: int) -> bool:
        """Return whether a new worker group of this slot could get a run, now or later.

        The slot's last worker group has ended. A run that it still holds was lost with its controller.
        """
        async with self._changed:
            self._expire(slot=slot, reason="the worker group's controller died")
            self._preparing.pop(slot, None)
            exhausted = self._paused or (not self._waiting and len(self._items) >= self._expected)
            return not exhausted and self._idle_starts.get(slot, 0) <= self._max_idle_starts

    @ray.method
    async def lease(self, slot: int) -> tuple[str, int] | None:
        """Wait for the next run, and return it with its fencing token.

        Returns:
            None if every expected run is handed out, the sweep pauses, or a node of the slot will be removed. Also None
            if the slot's workers were replaced during the wait: the worker that asked is dead.
        """
        async with self._changed:
            start = self._starts.get(slot, 0)
            while self._starts.get(slot, 0) == start and not self._paused and not self._leaves(slot):
                self._expire(slot=None, reason=f"no heartbeat for {LEASE_SECONDS:.0f} s")
                if self._waiting:
                    item = self._items[self._waiting.popleft()]
                    item.attempts, item.token, item.slot = item.attempts + 1, item.token + 1, slot
                    item.heartbeat, item.step = time.monotonic(), 0
                    self._held[item.run_id] = item
                    self._idle_starts[slot] = 0
                    self._preparing.pop(slot, None)
                    self._changed.notify_all()
                    return item.run_id, item.token
                if len(self._items) >= self._expected:
                    self._preparing.pop(slot, None)
                    return None
                try:
                    await asyncio.wait_for(self._changed.wait(), timeout=LEASE_SECONDS / 4)
                except TimeoutError:
                    continue  # look for expired leases
            if self._starts.get(slot, 0) == start:
                self._preparing.pop(slot, None)
        return None

    @ray.method
    async def first_lease(self) -> None:
        """Wait until a slot's workers have taken a run, or no slot is left."""
        async with self._changed:
            while self._abandoned is None and not any(item.attempts for item in self._items.values()):
                await self._changed.wait()

    @ray.method
    async def heartbeat(self, run_id: str, token: int, news: News, seconds: float) -> Order:
        """Note that the holder of a run is alive, and how far training is.

        Args:
            seconds: how long the answer waits for an order to pause, so that the order is heard at once.

        Returns:
            Whether the holder goes on or pauses. "lost" if another holder has the lease now.
        """
        item = self._items[run_id]
        if item.is_held_with(token):
            item.heartbeat = time.monotonic()
            item.step, item.num_steps, item.row = news.step, news.num_steps, news.row
        async with self._changed:
            with suppress(TimeoutError):
                ordered = self._changed.wait_for(lambda: self._order(item, token) != "go on")
                await asyncio.wait_for(ordered, timeout=seconds)
            return self._order(item, token)

    @ray.method
    async def check(self, run_id: str, token: int, check: str, utility_loss: float) -> str | None:
        """Take the utility loss that the holder has measured at a check.

        Returns:
            Why the run stops early; None if the run goes on.
        """
        item = self._items[run_id]
        if self._early_stopping is None or not item.is_held_with(token):
            return None
        item.heartbeat = time.monotonic()
        item.checks[check] = utility_loss
        return self._early_stopping.reason(check, utility_loss)

    @ray.method
    async def pause(self) -> None:
        """Ask the runs in progress to save their state and to be given back. No run is handed out any more."""
        async with self._changed:
            self._paused = True
            self._changed.notify_all()

    @ray.method
    async def release(self, run_id: str, token: int) -> None:
        """Take back a paused run. The attempt does not count."""
        async with self._changed:
            item = self._items[run_id]
            if item.is_held_with(token):
                self._let_go(item)
                item.attempts -= 1
                self._waiting.appendleft(run_id)
                self._changed.notify_all()

    @ray.method
    async def idle(self) -> None:
        """Wait until no run is in progress."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._held)

    @ray.method
    async def complete(self, run_id: str, token: int, outcome: RunResult) -> bool:
        """Take a run's result.

        Returns:
            Whether the result counts. False, without any change, if the token is not the newest or the run has a result
            already.
        """
        async with self._changed:
            item = self._items[run_id]
            if not item.is_held_with(token) or item.outcome is not None:
                return False
            self._let_go(item)
            item.outcome = replace(outcome, attempts=item.attempts, checks=item.checks)
            if self._early_stopping is not None:
                self._early_stopping.learn(item.outcome)
            self._changed.notify_all()
            return True

    @ray.method
    async def forget(self, run_id: str) -> None:
        """Drop an outcome that is on disk, except its status and reason. Otherwise memory would grow with the
        results."""
        item = self._items[run_id]
        if item.outcome is not None:
            item.outcome = RunResult(run_id=run_id, status=item.outcome.status, reason=item.outcome.reason)

    @ray.method
    async def fail(self, run_id: str, token: int, reason: str, retry: bool) -> None:
        """Note that an attempt failed, and why. Without `retry`, the run has failed for good."""
        async with self._changed:
            item = self._items[run_id]
            if item.is_held_with(token):
                self._retry_or_fail(item, reason, retry=retry)

    @ray.method
    async def explain(self, slot: int, reason: str) -> None:
        """Note why a slot's workers die before they lease a run."""
        self._explained[slot] = reason

    @ray.method
    async def give_up(self, slot: int, reason: str) -> None:
        """Note why a slot's workers can never train on their nodes. The slot starts no other worker group."""
        self._explained[slot] = reason
        self._idle_starts[slot] = self._max_idle_starts

    @ray.method
    async def abandon(self, reason: str) -> None:
        """Fail every run without an outcome, because no slot is left. The workers' explanations join the reason."""
        async with self._changed:
            reason = "; ".join([reason, *dict.fromkeys(self._explained.values())])
            self._waiting.clear()
            self._preparing.clear()
            self._abandoned = reason
            for item in list(self._held.values()):  # a result that a holder still hands in is refused
                self._let_go(item)
            for item in self._items.values():
                if item.outcome is None:
                    item.outcome = RunResult(run_id=item.run_id, status="failed", reason=reason)
            self._changed.notify_all()

    @ray.method
    async def status(self) -> QueueStatus:
        """Return what runs now."""
        running = {i.run_id: (i.step, i.num_steps) for i in self._held.values()}
        return QueueStatus(
            running=running,
            waiting=len(self._waiting),
            retried=tuple(self._retried),
            preparing=dict(self._preparing),
        )

    def _expire(self, *, slot: int | None, reason: str) -> None:
        """End the leases of a slot; with slot None, the leases without a recent heartbeat."""
        now = time.monotonic()
        for item in list(self._held.values()):
            if item.slot == slot if slot is not None else now - item.heartbeat > LEASE_SECONDS:
                self._retry_or_fail(item, reason)

    def _order(self, item: _Item, token: int) -> Order:
        if not item.is_held_with(token):
            return "lost"
        return "pause" if self._paused or self._leaves(item.slot) else "go on"

    def _leaves(self, slot: int | None) -> bool:
        """Return whether a node of the slot's workers will be removed."""
        return slot is not None and not self._draining.isdisjoint(self._nodes.get(slot, ()))

    def _enter(self, run_id: str) -> None:
        if run_id in self._items:
            return
        item = self._items[run_id] = _Item(run_id)
        if self._abandoned is None:
            self._waiting.append(run_id)
        else:
            item.outcome = RunResult(run_id=run_id, status="failed", reason=self._abandoned)
        self._changed.notify_all()

    def _outcome_of(self, run_id: str) -> RunResult | None:
        item = self._items.get(run_id)
        return None if item is None else item.outcome

    def _let_go(self, item: _Item) -> None:
        item.slot = None
        del self._held[item.run_id]

    def _retry_or_fail(self, item: _Item, reason: str, *, retry: bool = True) -> None:
        self._let_go(item)
        item.reasons.append(reason)
        if retry and item.attempts <= self._max_retries:
            self._waiting.appendleft(item.run_id)
            self._retried.append((item.run_id, reason))
        else:
            reason = "; then ".join(item.reasons)
            item.outcome = RunResult(run_id=item.run_id, status="failed", reason=reason, attempts=item.attempts)
        self._changed.notify_all()

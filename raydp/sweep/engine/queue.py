"""The queue of a sweep's trials: leases with heartbeats and fencing tokens. The driver makes it an actor."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from raydp.sweep.engine.stopping import EarlyStopping
from raydp.sweep.store.results import RunResult

Order = Literal["go on", "pause", "lost"]

LEASE_SECONDS = 60.0
"""A lease without a heartbeat for this long is given to the next slot that asks. At a sweep's end, when the other slots
have gone home, nobody asks: there Ray Train's own health check (10 minutes) ends a worker that does not answer."""

GATHER_SECONDS = 10.0
"""How long the first of Tune's actors wait for the others."""


@dataclass
class _Item:
    """One run's way through the queue."""

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
        """Whether the token is that of the run's present holder."""
        return self.token == token and self.slot is not None


@dataclass(frozen=True, kw_only=True)
class News:
    """What is new of a run.

    Attributes:
        step, num_steps: how far the run is.
        row: the newest row of its history.
        outcome: how the run ended; None while it runs.
    """

    step: int = 0
    num_steps: int = 0
    row: Mapping[str, float] = field(default_factory=dict)
    outcome: RunResult | None = None


class TrialQueue:
    """Hands runs to slots; a run is retried `max_retries` times and then failed with its reason.

    A slot that comes back without having given up its lease has lost its workers: the lease ends. Only the holder of
    the newest token can complete a run, so a worker that was thought dead cannot commit over its successor.

    Args:
        expected: how many runs will enter the queue. Once the last run is handed out, an idle slot ends and frees its
            devices.
        max_retries: how often a run is tried again.
        early_stopping: which runs are to be stopped early, None where every run goes to its end.
        max_idle_starts: how often a slot's workers may die in a row before they lease anything.
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
        self._held: dict[str, _Item] = {}  # those with a slot: few of thousands
        self._waiting: deque[str] = deque()
        self._idle_starts: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._placement_groups: dict[int, Any] = {}
        self._controllers: dict[int, Any] = {}
        self._nodes: dict[int, frozenset[str]] = {}  # of a slot's workers
        self._draining: frozenset[str] = frozenset()
        self._explained: dict[int, str] = {}
        self._shared: list[Any] = []
        self._actors: dict[str, set[str]] = {}
        self._abandoned: str | None = None
        self._changed = asyncio.Condition()

    async def enqueue(self, run_ids: list[str]) -> None:
        """Put runs into the queue, each once. This is the only way into the queue."""
        async with self._changed:
            for run_id in run_ids:
                self._enter(run_id)

    async def outcome(self, run_id: str) -> RunResult:
        """Wait for a run's outcome and return it. This is the only way out of the queue."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._outcome_of(run_id) is not None)
            outcome = self._outcome_of(run_id)
            assert outcome is not None, "it was waited for"
            return outcome

    async def follow(self, run_id: str, step: int, seconds: float) -> News:
        """Wait for news of a run.

        Args:
            step: the last step that the caller knows of.
            seconds: how often to look for another step.

        Returns:
            How far the run is, or its outcome without the history.
        """
        async with self._changed:
            while (outcome := self._outcome_of(run_id)) is None:
                item = self._items.get(run_id)
                if item is not None and item.slot is not None and item.step not in (0, step):
                    return News(step=item.step, num_steps=item.num_steps, row=item.row)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), timeout=seconds)
            return News(outcome=replace(outcome, history=None))

    async def close(self, expected: int) -> None:
        """Expect at most so many runs in all: once the last of them is handed out, idle slots end."""
        async with self._changed:
            self._expected = expected
            self._changed.notify_all()

    async def share(self, reference: list[Any]) -> None:
        """Give the workers what they all need: a list with an object reference, so that only they fetch the object."""
        async with self._changed:
            self._shared = reference
            self._changed.notify_all()

    async def shared(self) -> list[Any]:
        """What was shared; waits for it."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._shared)
            return self._shared

    async def gather(self, actor: str, num_actors: int, tune_round: str = "") -> None:
        """Wait until this many of Tune's actors have started, for each round of Tune, which starts its own, anew. Tune
        reuses an actor that ends its trial early for the next trial, and kills the one that is still starting for it:
        short runs would start an actor each for ever."""
        async with self._changed:
            here = self._actors.setdefault(tune_round, set())
            here.add(actor)
            self._changed.notify_all()
            with suppress(TimeoutError):
                enough = self._changed.wait_for(lambda: len(here) >= num_actors)
                await asyncio.wait_for(enough, timeout=GATHER_SECONDS)

    async def register(self, slot: int, placement_group: Any = None, nodes: Iterable[str] = ()) -> bool:
        """A slot's workers have started, in this placement group and on these nodes. False when they keep dying before
        they lease anything: the slot gives up."""
        async with self._changed:
            self._placement_groups[slot] = placement_group
            self._nodes[slot] = frozenset(nodes)
            self._starts[slot] = self._starts.get(slot, 0) + 1
            self._changed.notify_all()
            self._expire(slot=slot, reason="the worker group died")
            self._idle_starts[slot] = self._idle_starts.get(slot, 0) + 1
            return self._idle_starts[slot] <= self._max_idle_starts

    async def drain(self, nodes: Iterable[str]) -> None:
        """These nodes are about to be taken away: what runs there saves its state and is given back, and the slots
        start anew elsewhere."""
        async with self._changed:
            self._draining = frozenset(nodes)
            self._changed.notify_all()

    async def control(self, slot: int, controller: Any) -> None:
        """The actor that starts a slot's workers has started."""
        self._controllers[slot] = controller

    async def controllers(self) -> list[Any]:
        """The newest of every slot."""
        return list(self._controllers.values())

    async def placement_group(self, slot: int) -> Any:
        """Where a slot's workers last ran, None before they did."""
        return self._placement_groups.get(slot)

    async def has_work_for(self, slot: int) -> bool:
        """Whether a new worker group of this slot, whose last one has ended, would find anything to do, now or later.
        What that one still holds was lost with its controller."""
        async with self._changed:
            self._expire(slot=slot, reason="the worker group's controller died")
            exhausted = self._paused or (not self._waiting and len(self._items) >= self._expected)
            return not exhausted and self._idle_starts.get(slot, 0) <= self._max_idle_starts

    async def lease(self, slot: int) -> tuple[str, int] | None:
        """The next run and its fencing token; waits for one. None when all that will ever come is handed out, after a
        pause, where a node of the slot is drained, or when the slot's workers were replaced meanwhile: who asked is
        dead."""
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
                    self._changed.notify_all()
                    return item.run_id, item.token
                if len(self._items) >= self._expected:
                    return None
                try:
                    await asyncio.wait_for(self._changed.wait(), timeout=LEASE_SECONDS / 4)
                except TimeoutError:
                    continue  # look for expired leases
        return None

    async def first_lease(self) -> None:
        """Wait until a slot's workers have taken a run, or no slot is left that could."""
        async with self._changed:
            while self._abandoned is None and not any(item.attempts for item in self._items.values()):
                await self._changed.wait()

    async def heartbeat(self, run_id: str, token: int, step: int, num_steps: int, row: Mapping[str, float]) -> Order:
        """The holder is alive. It is told to go on, to pause, or that the lease is somebody else's now."""
        item = self._items[run_id]
        if not item.is_held_with(token):
            return "lost"
        item.heartbeat, item.step, item.num_steps, item.row = time.monotonic(), step, num_steps, row
        return "pause" if self._paused or self._leaves(item.slot) else "go on"

    async def check(self, run_id: str, token: int, check: str, utility_loss: float) -> str | None:
        """The holder has measured its model at one of the checks. Why it is to stop, None to go on."""
        item = self._items[run_id]
        if self._early_stopping is None or not item.is_held_with(token):
            return None
        item.heartbeat = time.monotonic()
        item.checks[check] = utility_loss
        return self._early_stopping.reason(check, utility_loss)

    async def pause(self) -> None:
        """Runs in progress are to save their state and be given back; nothing is handed out any more."""
        async with self._changed:
            self._paused = True
            self._changed.notify_all()

    async def release(self, run_id: str, token: int) -> None:
        """A paused run is given back; it does not count as tried."""
        async with self._changed:
            item = self._items[run_id]
            if item.is_held_with(token):
                self._let_go(item)
                item.attempts -= 1
                self._waiting.appendleft(run_id)
                self._changed.notify_all()

    async def idle(self) -> None:
        """Wait until nothing is in progress."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._held)

    async def complete(self, run_id: str, token: int, outcome: RunResult) -> bool:
        """Hand in a result. False, and nothing changes, when the token is not the newest or there is a result."""
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

    async def forget(self, run_id: str) -> None:
        """A run's outcome is on disk: of it stays how it ended, so that memory does not grow with what runs report."""
        item = self._items[run_id]
        if item.outcome is not None:
            item.outcome = RunResult(run_id=run_id, status=item.outcome.status, reason=item.outcome.reason)

    async def fail(self, run_id: str, token: int, reason: str) -> None:
        """An attempt failed with a reason."""
        async with self._changed:
            item = self._items[run_id]
            if item.is_held_with(token):
                self._retry_or_fail(item, reason)

    async def explain(self, slot: int, reason: str) -> None:
        """Why a slot's workers die before they lease anything."""
        self._explained[slot] = reason

    async def give_up(self, slot: int, reason: str) -> None:
        """A slot's workers cannot ever do anything where they are: no other group of it is started for nothing."""
        self._explained[slot] = reason
        self._idle_starts[slot] = self._max_idle_starts

    async def abandon(self, reason: str) -> None:
        """No slot is left: everything that has no outcome fails, with this reason and what the workers said."""
        async with self._changed:
            reason = "; ".join([reason, *dict.fromkeys(self._explained.values())])
            self._waiting.clear()
            self._abandoned = reason
            for item in list(self._held.values()):  # what their holders still hand in is late
                self._let_go(item)
            for item in self._items.values():
                if item.outcome is None:
                    item.outcome = RunResult(run_id=item.run_id, status="failed", reason=reason)
            self._changed.notify_all()

    async def status(self) -> dict[str, Any]:
        """Who runs what, for the progress display: run_id -> (step, num_steps) of what runs now."""
        running = {i.run_id: (i.step, i.num_steps) for i in self._held.values()}
        return {"running": running, "waiting": len(self._waiting)}

    def _expire(self, *, slot: int | None, reason: str) -> None:
        """End the leases of a slot, or with None those without a heartbeat."""
        now = time.monotonic()
        for item in list(self._held.values()):
            if item.slot == slot if slot is not None else now - item.heartbeat > LEASE_SECONDS:
                self._retry_or_fail(item, reason)

    def _leaves(self, slot: int | None) -> bool:
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

    def _retry_or_fail(self, item: _Item, reason: str) -> None:
        self._let_go(item)
        item.reasons.append(reason)
        if item.attempts <= self._max_retries:
            self._waiting.appendleft(item.run_id)
        else:
            reason = "; then ".join(item.reasons)
            item.outcome = RunResult(run_id=item.run_id, status="failed", reason=reason, attempts=item.attempts)
        self._changed.notify_all()

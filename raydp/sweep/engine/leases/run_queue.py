"""The runs of a sweep: leases with heartbeats and fencing tokens, retries and outcomes.

The state is pure: it knows no clock, no waiting and no Ray. `TrialQueue` is the actor around it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from raydp.sweep.engine.leases.keys import split_key
from raydp.sweep.store.results import RunResult

if TYPE_CHECKING:
    from raydp.sweep.engine.stopping import EarlyStopping


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


@dataclass
class _Run:
    """State of one run in the queue."""

    run_id: str
    attempts: int = 0
    token: int = 0
    slot: int | None = None
    heartbeat: float = 0.0
    at: News = News()
    knows_pause: bool = False
    outcome: RunResult | None = None
    on_disk: bool = False
    reasons: list[str] = field(default_factory=list)
    checks: dict[str, float] = field(default_factory=dict)

    def is_held_with(self, token: int) -> bool:
        """Return whether a slot holds the run with this token."""
        return self.token == token and self.slot is not None


class RunQueue:
    """Hands runs to slots.

    Runs of several sweeps have keys instead of ids (see `raydp.sweep.engine.leases.keys`).

    A run that fails is tried again `max_retries` times, and then fails with its reasons. Each lease
    has a new fencing token. Only the holder of the newest token can complete a run: a worker that
    was wrongly thought dead cannot replace the result of the next holder.

    Args:
        expected: how many runs will enter the queue.
        max_retries: how often a failed run is tried again.
        early_stopping: sweep -> what decides which of its runs stop early.

    Attributes:
        paused: whether no run is handed out any more.
        retried: run_id and reason of each attempt that failed and is made again, in order.
        abandoned: why no run can be trained any more; None while slots are left.
    """

    def __init__(
        self,
        *,
        expected: int,
        max_retries: int,
        early_stopping: Mapping[str, EarlyStopping] | None = None,
    ) -> None:
        self.expected = expected
        self.paused = False
        self.retried: list[tuple[str, str]] = []
        self.abandoned: str | None = None
        self._max_retries = max_retries
        self._early_stopping = dict(early_stopping or {})
        self._runs: dict[str, _Run] = {}
        self._held: dict[str, _Run] = {}  # runs with a slot: few of thousands
        self._waiting: deque[str] = deque()
        self._later: deque[str] = deque()

    def enter(self, run_ids: Sequence[str], at_once: int) -> bool:
        """Put runs into the queue, each once: so many at once, and one at each commit.

        Returns:
            Whether a run is new.
        """
        new = [run_id for run_id in dict.fromkeys(run_ids[:at_once]) if run_id not in self._runs]
        for run_id in new:
            run = self._runs[run_id] = _Run(run_id)
            if self.abandoned is None:
                self._waiting.append(run_id)
            else:  # no slot is left: the run would wait for ever
                run.outcome = RunResult(run_id=run_id, status="failed", reason=self.abandoned)
        self._later.extend(run_ids[at_once:])
        return bool(new)

    @property
    def num_waiting(self) -> int:
        """Return how many runs wait for a slot."""
        return len(self._waiting)

    @property
    def running(self) -> dict[str, tuple[int, int]]:
        """Return run_id -> (steps done, steps in all) of each run that a slot holds."""
        return {run.run_id: (run.at.step, run.at.num_steps) for run in self._held.values()}

    @property
    def has_begun(self) -> bool:
        """Return whether a slot has taken a run."""
        return any(run.attempts for run in self._runs.values())

    @property
    def is_exhausted(self) -> bool:
        """Return whether every expected run is handed out."""
        return not self._waiting and len(self._runs) >= self.expected

    @property
    def is_saved(self) -> bool:
        """Return whether no run trains that has steps left, by heartbeats since the pause."""
        return all(
            run.knows_pause and run.at.step >= run.at.num_steps for run in self._held.values()
        )

    def outcome(self, run_id: str) -> RunResult | None:
        """Return how a run has ended; None before its end."""
        run = self._runs.get(run_id)
        return None if run is None else run.outcome

    def news(self, run_id: str, step: int) -> News | None:
        """Return news of a run whose caller knows of `step`; None if there is none."""
        run = self._runs[run_id]
        if run.outcome is not None:
            # Tune needs no history, which may be long.
            return News(outcome=replace(run.outcome, history=None))
        # Step 0 is no news: the run has a slot, but has not begun to train.
        return run.at if run.slot is not None and run.at.step not in (0, step) else None

    def lease(self, slot: int, now: float) -> tuple[str, int] | None:
        """Return the next run with its fencing token; None if no run waits."""
        if not self._waiting:
            return None
        run = self._runs[self._waiting.popleft()]
        # The new token makes every earlier holder's result invalid (fencing).
        run.attempts, run.token, run.slot = run.attempts + 1, run.token + 1, slot
        run.heartbeat, run.at, run.knows_pause = now, News(), False
        self._held[run.run_id] = run
        return run.run_id, run.token

    def slot_of(self, run_id: str, token: int) -> int | None:
        """Return the slot that holds a run with this token; None if the lease was lost."""
        run = self._runs[run_id]
        return run.slot if run.token == token else None

    def beat(self, run_id: str, token: int, at: News, now: float) -> None:
        """Note how far the holder of a run is. A holder that lost the lease changes nothing."""
        run = self._runs[run_id]
        if run.is_held_with(token):
            run.heartbeat, run.at, run.knows_pause = now, at, self.paused

    def check(
        self, run_id: str, token: int, check: str, utility_loss: float, now: float
    ) -> str | None:
        """Take the utility loss at a check. Return why the run ends; None if it goes on."""
        run, stopping = self._runs[run_id], self._early_stopping.get(split_key(run_id)[0])
        if stopping is None or not run.is_held_with(token):
            return None
        run.heartbeat = now
        run.checks[check] = utility_loss
        return stopping.reason(check, utility_loss)

    def release(self, run_id: str, token: int) -> None:
        """Take back a paused run. The attempt does not count, because a pause is no failure."""
        run = self._runs[run_id]
        if run.is_held_with(token):
            self._let_go(run)
            run.attempts -= 1
            self._waiting.appendleft(run_id)

    def complete(self, run_id: str, token: int, outcome: RunResult) -> bool:
        """Take a run's result.

        Returns:
            Whether the result counts. False, without any change, if the token is not the newest or
            the run has a result already.
        """
        run = self._runs[run_id]
        # Fencing: only the newest holder's first result counts.
        if not run.is_held_with(token) or run.outcome is not None:
            return False
        self._let_go(run)
        run.outcome = replace(outcome, run_id=run_id, attempts=run.attempts, checks=run.checks)
        if (stopping := self._early_stopping.get(split_key(run_id)[0])) is not None:
            stopping.learn(run.outcome)
        return True

    def fail(self, run_id: str, token: int, reason: str, *, retry: bool) -> None:
        """Note that an attempt failed, and why. Without `retry`, the run has failed for good."""
        run = self._runs[run_id]
        if run.is_held_with(token):
            self._retry_or_fail(run, reason, retry=retry)

    def expire(self, slot: int, reason: str) -> None:
        """End the leases of a slot whose workers have died."""
        self._expire(lambda run: run.slot == slot, reason)

    def expire_silent(self, since: float, reason: str) -> bool:
        """End the leases without a heartbeat since this time. Return whether there were any."""
        return self._expire(lambda run: run.heartbeat < since, reason)

    def committed(self, run_id: str) -> None:
        """Drop an outcome that is on disk, except its status and reason, and let a run enter.

        Otherwise memory would grow with the results. The number of runs in the queue stays.
        """
        run = self._runs[run_id]
        run.on_disk = True
        if run.outcome is not None:
            run.outcome = RunResult(
                run_id=run_id, status=run.outcome.status, reason=run.outcome.reason
            )
        if self._later:
            self.enter([self._later.popleft()], 1)

    def unsaved(self) -> list[RunResult]:
        """Return the outcomes that are not on disk, without failures, which a resume tries again."""
        outcomes = [run.outcome for run in self._runs.values() if not run.on_disk]
        return [o for o in outcomes if o is not None and o.status != "failed"]

    def abandon(self, reason: str) -> None:
        """Fail every run without an outcome, because no slot is left."""
        self._waiting.clear()
        self.abandoned = reason
        # No slot is left, so a result that a holder still hands in is refused.
        for run in list(self._held.values()):
            self._let_go(run)
        for run in self._runs.values():
            if run.outcome is None:
                run.outcome = RunResult(run_id=run.run_id, status="failed", reason=reason)

    def _expire(self, is_dead: Callable[[_Run], bool], reason: str) -> bool:
        dead = list(filter(is_dead, self._held.values()))  # a lease that ends leaves `_held`
        for run in dead:
            self._retry_or_fail(run, reason)
        return bool(dead)

    def _let_go(self, run: _Run) -> None:
        run.slot = None
        del self._held[run.run_id]

    def _retry_or_fail(self, run: _Run, reason: str, *, retry: bool = True) -> None:
        self._let_go(run)
        run.reasons.append(reason)
        if retry and run.attempts <= self._max_retries:
            # At the front, because the run may go on from its checkpoint.
            self._waiting.appendleft(run.run_id)
            self.retried.append((run.run_id, reason))
        else:
            reasons = "; then ".join(run.reasons)
            run.outcome = RunResult(
                run_id=run.run_id, status="failed", reason=reasons, attempts=run.attempts
            )

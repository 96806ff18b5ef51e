"""Show how a sweep goes on: runs done, running and failed, the best loss, the time left."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from raydp.sweep.engine.queue import QueueStatus
from raydp.sweep.store.results import RunResult
from raydp.sweep.store.state import DriverProgress
from raydp.system.notebook import in_notebook, replaced_text
from raydp.system.output import phase
from raydp.system.waiting import AGAIN_SECONDS, SILENT_SECONDS, again_seconds

LOGGER = logging.getLogger(__name__)
REFRESH_SECONDS = 1.0
RECORD_SECONDS = 5.0
"""Time between two records of the progress."""
MOST_STEPS = 4
"""The largest number of runs whose steps a line names."""


@dataclass(frozen=True, kw_only=True)
class FirstPass:
    """The runs that are certain to be started if adaptive seeds decide on the others.

    Attributes:
        run_ids: the runs of the first pass.
        further_cost: the largest compute C of all further runs together.
    """

    run_ids: frozenset[str]
    further_cost: float


def follow_start(
    console: Console,
    what: str,
    *,
    poll: Callable[[], QueueStatus],
    wait: Callable[[float], bool],
    slots: int,
) -> None:
    """Say what the workers do until one of them has taken a run.

    Args:
        what: the phase in words.
        poll: returns the queue's status.
        wait: waits for at most so many seconds, and returns whether a worker has taken a run.
        slots: number of worker groups that start.
    """
    text = f"{what} (0 of {slots} have started)"
    with phase(console, text) as update:
        while not wait(REFRESH_SECONDS):
            known, preparing = text, poll().preparing
            works = "; ".join(f"worker {slot} {work}" for slot, work in sorted(preparing.items()))
            text = (
                f"{what} ({len(preparing)} of {slots} have started{'; ' + works if works else ''})"
            )
            if text != known:
                LOGGER.debug("%s", text)
            update(text)


class SweepProgress:
    """Shows a sweep's progress on a console until it is closed.

    Args:
        costs: run_id -> compute C of each run that is left. The time left is estimated in
            proportion to C.
        done_before: number of runs that have ended before.
        poll: returns the queue's status. It is called from a thread of its own.
        names: run_id -> the run's name for people, such as its configuration and seed.
        searched: whether a search or adaptive seeds decide how many of these runs are started.
        first_pass: the runs of the first pass, if adaptive seeds decide on the others.
        record: takes the progress every few seconds, and None at the end.
    """

    def __init__(
        self,
        console: Console,
        costs: dict[str, int],
        done_before: int,
        poll: Callable[[], QueueStatus],
        *,
        names: Mapping[str, str],
        searched: bool = False,
        first_pass: FirstPass | None = None,
        record: Callable[[DriverProgress | None], None] = lambda _: None,
    ) -> None:
        self._names, self._record = names, record
        self._searched, self._first_pass = searched, first_pass
        self._console = console
        self._costs = costs
        self._done_before = done_before
        self._poll = poll
        self._status = QueueStatus(running={}, waiting=0)
        self._statuses: dict[str, str] = {}
        self._best: tuple[float, str] | None = None
        self._started = time.monotonic()
        # When steps were first seen and when the last one was, each with the compute by then.
        self._first_steps: tuple[float, float] | None = None
        self._last_steps = (self._started, 0.0)
        self._stop = threading.Event()
        self._waits = phase(console, "")  # the lines of the loop are enough
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> SweepProgress:
        self._waits.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        # After an interruption runs are still in progress, and the end of the sweep tells of them.
        if exc[0] is None and not in_notebook():
            self._console.print(self._line(), markup=False)
        self._waits.__exit__(None, None, None)
        self._keep(None)

    def finished(self, result: RunResult) -> None:
        """Count a run's result, without keeping it: there may be thousands, each with a history."""
        self._statuses[result.run_id] = result.status
        if result.finished and (self._best is None or result.loss < self._best[0]):
            scores = ", ".join(f"{name} {m.value:.3g}" for name, m in result.scores.items())
            self._best = result.loss, f"best utility_loss so far {result.loss:.4f} ({scores})"

    def _loop(self) -> None:
        """Look at the queue every second; show and record what is there at longer intervals."""
        terminal, seconds, silent = self._console.is_terminal, 0.0, AGAIN_SECONDS - SILENT_SECONDS
        # A terminal is redrawn, a notebook's cell replaced, and other outputs get line after line.
        cell = replaced_text() if in_notebook() and not terminal else None
        live = (
            Live(self._render(), console=self._console, refresh_per_second=2, transient=True)
            if terminal
            else None
        )
        with live or nullcontext():
            while not self._stop.wait(REFRESH_SECONDS):
                seconds, silent = seconds + REFRESH_SECONDS, silent + REFRESH_SECONDS
                self._refresh()
                # The record lets another process tell how far the sweep is.
                if seconds % RECORD_SECONDS == 0:
                    self._keep(
                        DriverProgress(sentence=self._line(), running=dict(self._status.running))
                    )
                if live is not None:
                    live.update(self._render())
                elif cell is not None:
                    cell(self._text())
                elif silent >= again_seconds(seconds):
                    self._console.print(self._line())
                    silent = 0.0
        # The last text must not show a run in progress.
        self._status = QueueStatus(running={}, waiting=0)
        if cell is not None:
            cell(self._text())

    def _keep(self, progress: DriverProgress | None) -> None:
        """Record the progress. A full disk must not end the display."""
        with suppress(OSError):
            self._record(progress)

    def _refresh(self) -> None:
        """Take the queue's status, and print each attempt that failed since the last time."""
        before, self._status = self._status, self._poll()
        for run_id in self._status.running.keys() - before.running.keys():
            LOGGER.debug("%s has begun, run %s", self._names.get(run_id, run_id), run_id)
        # Remember when steps were first and last seen, for the rate of the steps.
        computed = sum(self._computed().values())
        if computed > self._last_steps[1]:
            self._last_steps = time.monotonic(), computed
        if self._first_steps is None and computed:
            self._first_steps = self._last_steps
        # Each failed attempt is printed once.
        for run_id, reason in self._status.retried[len(before.retried) :]:
            name = self._names.get(run_id, run_id)
            self._console.print(f"{name}: {reason}. The run is tried again.", markup=False)

    def _line(self) -> str:
        ended = list(self._statuses.values())
        failed, stopped = ended.count("failed"), ended.count("stopped")
        done = self._done_before + len(ended) - failed
        total = self._done_before + len(self._costs)
        share = f"{done} of at most {total}" if self._searched else f"{done}/{total}"
        # The first pass is certain and further runs are not, so they count apart.
        if self._first_pass is not None:
            of_first = len(self._first_pass.run_ids)
            further = f"{max(0, done - of_first)} of at most {total - of_first} further runs"
            share = f"first pass {min(done, of_first)}/{of_first}, {further}"
        preparing = "; ".join(dict.fromkeys(self._status.preparing.values()))
        parts = [f"{share} done", self._running(), f"{failed} failed"]
        parts += [f"{len(self._status.preparing)} starting ({preparing})"] if preparing else []
        parts += [f"{stopped} stopped early"] if stopped else []
        return ", ".join(parts if self._stop.is_set() else [*parts, self._time_left()])

    def _running(self) -> str:
        """Return how many runs are in progress, and how far the first of them are."""
        steps = [
            f"{step} of {of}" for step, of in list(self._status.running.values())[:MOST_STEPS] if of
        ]
        more = ", ..." if len(self._status.running) > MOST_STEPS else ""
        return f"{len(self._status.running)} running" + (
            f" (step {', '.join(steps)}{more})" if steps else ""
        )

    def _computed(self) -> dict[str, float]:
        """Return the compute of each run that has ended or begun, the latter by its steps done."""
        spent = {run_id: float(self._costs[run_id]) for run_id in list(self._statuses)}
        for run_id, (step, num_steps) in self._status.running.items():
            if run_id in self._costs and num_steps:
                spent[run_id] = self._costs[run_id] * step / num_steps
        return spent

    def _time_left(self) -> str:
        """Estimate the time left in proportion to compute.

        Before the first run has ended, only the time of its steps is known, not the time of its
        scores. It counts from the first step that was seen to the last one, so that a step that has
        not ended makes the others no slower.
        """
        spent, since_last = self._computed(), 0.0
        computed, elapsed, without = sum(spent.values()), time.monotonic() - self._started, ""
        # No run has ended: take the rate of the steps seen so far, in compute C = b·T a second.
        if not self._statuses and self._first_steps is not None:
            (began, before), (last, _) = self._first_steps, self._last_steps
            done, elapsed, without = computed - before, last - began, ", scores not counted"
            since_last = time.monotonic() - last
        else:
            done = computed if self._statuses else 0.0
        if done <= 0:
            return "time left: known after the first steps"
        # The compute that is left, of all runs; with adaptive seeds, of those that are certain.
        left, about, of = (
            sum(self._costs.values()) - computed,
            "at most about" if self._searched else "about",
            "",
        )
        if self._first_pass is not None:
            first = self._first_pass.run_ids & self._costs.keys()
            if first <= self._statuses.keys():
                # The first pass has ended: further runs use at most what is left of their budget.
                further = sum(cost for run_id, cost in spent.items() if run_id not in first)
                left = max(0.0, min(left, self._first_pass.further_cost - further))
            else:
                # The first pass decides on further runs, so only the pass itself is estimated.
                left = sum(self._costs[run_id] - spent.get(run_id, 0.0) for run_id in first)
                about, of = "about", " of the first pass"
        # The time since the last step has passed already.
        seconds = max(0.0, elapsed * left / done - since_last)
        return f"{about} {int(seconds // 60)} min {int(seconds % 60):02d} s left{of}{without}"

    def _text(self) -> str:
        """Return what a notebook shows."""
        return self._line() if self._best is None else f"{self._line()}\n{self._best[1]}"

    def _render(self) -> Table:
        grid = Table.grid(padding=(0, 1))
        grid.add_row(Text(self._line(), style="bold"))
        if self._best is not None:
            grid.add_row(Text(self._best[1]))
        for run_id, (step, num_steps) in self._status.running.items():
            grid.add_row(
                Text(
                    f"  {self._names.get(run_id, run_id)}  step {step}/{num_steps or '?'}",
                    style="dim",
                )
            )
        return grid

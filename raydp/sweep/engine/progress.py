"""What a user sees while a sweep runs: done, running, failed, best so far, time left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from raydp.sweep.store.results import RunResult

REFRESH_SECONDS = 1.0
PLAIN_SECONDS = 30.0
"""Time between two lines where the output is no terminal."""


class SweepProgress:
    """Shows a sweep's progress on a console until it is closed.

    Args:
        costs: run_id -> expected compute C of each run that is left; the time left is in proportion to it.
        names: run_id -> what people call the run, such as its configuration and seed.
        poll: gives the queue's status; called from a thread of its own.
        searched: a search decides how many of them are run.
    """

    def __init__(
        self,
        console: Console,
        costs: dict[str, int],
        done_before: int,
        poll: Callable[[], dict[str, Any]],
        *,
        names: Mapping[str, str],
        searched: bool = False,
    ) -> None:
        self._names = names
        self._searched = searched
        self._console = console
        self._costs = costs
        self._done_before = done_before
        self._poll = poll
        self._status: dict[str, Any] = {"running": {}, "waiting": 0}
        self._statuses: dict[str, str] = {}
        self._best: tuple[float, str] | None = None
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> SweepProgress:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def finished(self, result: RunResult) -> None:
        """A run has its result. It is not kept: a sweep may have thousands, each with the history of its steps."""
        self._statuses[result.run_id] = result.status
        if result.finished and (self._best is None or result.loss < self._best[0]):
            scores = ", ".join(f"{name} {m.value:.3g}" for name, m in result.scores.items())
            self._best = result.loss, f"best utility_loss so far {result.loss:.4f} ({scores})"

    def _loop(self) -> None:
        if self._console.is_terminal:
            with Live(self._render(), console=self._console, refresh_per_second=2, transient=True) as live:
                while not self._stop.wait(REFRESH_SECONDS):
                    self._status = self._poll()
                    live.update(self._render())
        else:
            while not self._stop.wait(PLAIN_SECONDS):
                self._status = self._poll()
                self._console.print(self._line())

    def _line(self) -> str:
        ended = list(self._statuses.values())
        failed, stopped = ended.count("failed"), ended.count("stopped")
        done = self._done_before + len(ended) - failed
        total = self._done_before + len(self._costs)
        of = f"{done} of at most {total}" if self._searched else f"{done}/{total}"
        parts = [f"{of} done", f"{len(self._status['running'])} running", f"{failed} failed"]
        parts += [f"{stopped} stopped early"] if stopped else []
        return ", ".join([*parts, self._time_left()])

    def _time_left(self) -> str:
        """In proportion to compute; a run in progress counts by its steps."""
        spent = sum(self._costs[r] for r in list(self._statuses))
        for run_id, (step, num_steps) in self._status["running"].items():
            if run_id in self._costs and num_steps:
                spent += self._costs[run_id] * step / num_steps
        if not spent or not self._statuses:
            return "time left: known after the first run"
        elapsed = time.monotonic() - self._started
        left = elapsed * (sum(self._costs.values()) - spent) / spent
        about = "at most about" if self._searched else "about"
        return f"{about} {int(left // 60)} min {int(left % 60):02d} s left"

    def _render(self) -> Table:
        grid = Table.grid(padding=(0, 1))
        grid.add_row(Text(self._line(), style="bold"))
        if self._best is not None:
            grid.add_row(Text(self._best[1]))
        for run_id, (step, num_steps) in self._status["running"].items():
            grid.add_row(Text(f"  {self._names.get(run_id, run_id)}  step {step}/{num_steps or '?'}", style="dim"))
        return grid


class MeasurementProgress:
    """How many measurements are done: a bar, or now and then a line where the output is no terminal."""

    def __init__(self, console: Console, *, total: int) -> None:
        self._console, self._total, self._done = console, total, 0
        self._seen = ""
        self._bar = Progress(console=console, transient=True, disable=not console.is_terminal)
        self._last = time.monotonic()

    def __enter__(self) -> MeasurementProgress:
        self._bar.start()
        self._task = self._bar.add_task("measuring", total=self._total)
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def advance(self) -> None:
        self._done += 1
        self._bar.advance(self._task)
        self._tell()

    def report(self, seen: dict[str, tuple[int, int]]) -> None:
        """How many models each score has gone through that gives no value before it saw all."""
        under_way = (f"{label} has seen {done} of {total} models" for label, (done, total) in seen.items())
        self._seen = "".join(f", {text}" for text in under_way)
        self._bar.update(self._task, description=f"measuring{self._seen}")
        self._tell()

    def _tell(self) -> None:
        if not self._console.is_terminal and time.monotonic() - self._last >= PLAIN_SECONDS:
            self._console.print(f"{self._done}/{self._total} measured{self._seen}")
            self._last = time.monotonic()

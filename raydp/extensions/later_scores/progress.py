"""The display of a measurement of many models."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress

from raydp.system.output import begin_phase, end_phase


class MeasurementProgress:
    """Shows how many measurements are done: a bar on a terminal, else lines at intervals."""

    def __init__(self, console: Console, *, total: int) -> None:
        self._console, self._total, self._done = console, total, 0
        self._seen = ""
        self._bar = Progress(console=console, transient=True, disable=not console.is_terminal)

    def __enter__(self) -> MeasurementProgress:
        self._bar.start()
        self._task = self._bar.add_task("measuring", total=self._total)
        self._phase = begin_phase(
            self._console, lambda: f"{self._done}/{self._total} measured{self._seen}"
        )
        return self

    def __exit__(self, *exc: object) -> None:
        end_phase(self._phase)
        self._bar.stop()

    def advance(self) -> None:
        self._done += 1
        self._bar.advance(self._task)

    def report(self, seen: dict[str, tuple[int, int]]) -> None:
        """Show the progress of scores that give no value before they have seen all models.

        Args:
            seen: label of a score -> (models that it has seen, models in all).
        """
        under_way = (
            f"{label} has seen {done} of {total} models" for label, (done, total) in seen.items()
        )
        self._seen = "".join(f", {text}" for text in under_way)
        self._bar.update(self._task, description=f"measuring{self._seen}")

"""The result of a sweep, as `Sweep.run` and `raydp sweep` return it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from raydp import analysis
from raydp.analysis.tables.notebook import html_table
from raydp.plugins.registries import service
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.points import points_table
from raydp.sweep.store.summary import RunCounts

if TYPE_CHECKING:
    import pandas as pd

    from raydp.sweep.engine.tune import ResultGrid


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """The result of a sweep.

    Attributes:
        folder: the sweep's folder.
        counts: numbers of runs by status, and the failures with their reasons.
        selected: the selection of the sweep's rule; None if there is nothing to select from.
        best_utility: the selection of the rule best-utility.
        reason: why nothing was selected.
        report: the HTML report.
        interrupted: whether the sweep was stopped before its end. Only the result in `Interrupted`
            has it set.
    """

    folder: Path
    counts: RunCounts
    selected: analysis.Selection | None
    best_utility: analysis.Selection | None
    reason: str | None
    report: Path | None
    interrupted: bool

    @property
    def grid(self) -> ResultGrid:
        """Return the runs that have ended, as Ray Tune's `ResultGrid`."""
        grid: ResultGrid = service("result_grid", needed_by="grid")(SweepFolder.open(self.folder))
        return grid

    def points(self) -> pd.DataFrame:
        """Return the sweep's points table, as `Sweep.points` does."""
        return points_table(SweepFolder.open(self.folder))

    def document(self) -> dict[str, object]:
        """Return the document of `raydp sweep --json`."""
        return {
            **vars(self),
            "counts": self.counts.to_json(),
            "selected": None if self.selected is None else self.selected.to_dict(),
            "best_utility": None if self.best_utility is None else self.best_utility.to_dict(),
        }

    def __repr__(self) -> str:
        return f"SweepResult({', '.join(f'{name}={value}' for name, value in self._summary().items())})"

    def _repr_html_(self) -> str:
        """Return a table for a notebook."""
        return html_table(self._summary(), "SweepResult")

    def _summary(self) -> dict[str, object]:
        """Return the fields that a reader looks for first."""
        runs = ", ".join(
            f"{getattr(self.counts, name)} {name}" for name in ("finished", "failed", "pending")
        )
        chosen = {"reason": self.reason} if self.selected is None else {"selected": self.selected}
        ended = {"interrupted": True} if self.interrupted else {}
        return {"folder": str(self.folder), "runs": runs, **chosen, **ended}

"""Check that a row more keeps other rows of a table, or of texts with a class, in their part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from raydp.methods.method import Method
from raydp.selftest.check_result import Check, FurtherChecks
from raydp.selftest.checks.divisions import Row, moved_rows, text_rows


def table_rows(folder: Path, rows: Sequence[Row]) -> dict[str, object]:
    """Write rows as a table, and return the task on it as a spec writes it."""
    path = folder / "rows.csv"
    lines = ["x,y,label", *(f"{row['x']},{row['y']},{row['label']}" for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"name": "tabular", "path": str(path), "heldout_fraction": 0.4}


class DivisionChecks(FurtherChecks):
    """Checks of the tasks that split their rows."""

    title = "held-out rows with a class"

    def checks(self, method: Method | None, progress: Callable[[float], object]) -> list[Check]:
        """Check the tasks text_classification and tabular."""
        return [
            moved_rows(
                "text_classification",
                lambda folder, rows: text_rows(folder, rows, name="text_classification"),
            ),
            moved_rows("tabular", table_rows),
        ]


CHECKS = DivisionChecks()

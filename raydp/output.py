"""How commands answer: a table or a few lines for people, one strict JSON document for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 160
"""Columns of a table that goes to a file or a pipe."""


def _console(*, to_stderr: bool) -> Console:
    console = Console(stderr=to_stderr, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


stderr = _console(to_stderr=True)
stdout = _console(to_stderr=False)


def strict(value: Any) -> Any:
    """The value as JSON takes it: infinity is the string "inf", an undefined number null, numpy scalars plain."""
    if isinstance(value, Mapping):
        return {str(k): strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [strict(v) for v in value]
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Path):
        return str(value)
    return value


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(strict(document), indent=1, ensure_ascii=False, allow_nan=False))


def print_table(title: str, rows: Sequence[Mapping[str, Any]], *, marks: Mapping[int, str] | None = None) -> None:
    """A table for people; marks name rows by their position."""
    if not rows:
        stdout.print(f"{title}: none", markup=False)
        return
    table = Table(title=Text(title), title_justify="left", box=None, header_style="bold", pad_edge=False)
    for name in rows[0]:
        table.add_column(Text(str(name)), justify="right", overflow="fold")
    if marks:
        table.add_column("")
    for position, row in enumerate(rows):
        cells = [_cell(v) for v in row.values()]
        mark = [(marks or {}).get(position, "")] if marks else []
        table.add_row(*map(Text, [*cells, *mark]), style="bold" if marks and position in marks else None)
    stdout.print(table)


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(end, float) for end in value):
        return f"{_cell(value[0])} to {_cell(value[1])}"  # an interval
    return str(value)

"""How commands answer: a table or a few lines for people, one strict JSON document for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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


@contextmanager
def phase(console: Console, text: str) -> Iterator[None]:
    """Some seconds without further news: shown while they last, or said once where the output is no terminal."""
    if console.is_terminal:
        with console.status(text):
            yield
    else:
        console.print(text, markup=False)
        yield


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


def print_document(document: Mapping[str, Any], title: str = "") -> None:
    """A document for people: a line for each plain value, a table for each of its parts that is one."""
    if document and (whole := _rows(document)) is not None:
        print_table(title, whole)
    else:
        _print_parts(document, "")


def _print_parts(document: Mapping[str, Any], title: str) -> None:
    for name, value in document.items():
        if _is_line(value):
            inner = (
                ", ".join(f"{k} {_cell(v)}" for k, v in value.items()) if isinstance(value, Mapping) else _cell(value)
            )
            stdout.print(f"{name}: {inner}", markup=False)
    for name, value in document.items():
        heading = f"{title} {name}".strip()
        if _is_line(value):
            continue
        stdout.print()
        if (rows := _rows(value)) is not None:
            print_table(heading, rows)
        elif isinstance(value, Mapping):
            stdout.print(heading, style="bold", markup=False)
            _print_parts(value, heading)
        else:
            for part in value:
                _print_parts(part, heading)


def _is_plain(value: Any) -> bool:
    return not isinstance(value, Mapping) and not (
        isinstance(value, list | tuple) and any(isinstance(v, Mapping) for v in value)
    )


def _is_line(value: Any) -> bool:
    return all(map(_is_plain, value.values())) if isinstance(value, Mapping) else _is_plain(value)


def _rows(value: Any) -> list[dict[str, Any]] | None:
    """The rows of a table, where that is what the value is: a list of flat mappings, or those by name."""
    parts = value if isinstance(value, list | tuple) else [v for v in value.values() if isinstance(v, Mapping)]
    if len(parts) < len(value) or not all(_is_plain(cell) for part in parts for cell in part.values()):
        return None
    names = [{}] * len(parts) if isinstance(value, list | tuple) else [{"name": name} for name in value]
    columns = dict.fromkeys(column for part in parts for column in part)
    return [{**name, **{c: part.get(c) for c in columns}} for name, part in zip(names, parts, strict=True)]


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(end, float) for end in value):
        return f"{_cell(value[0])} to {_cell(value[1])}"  # an interval
    if isinstance(value, list | tuple):
        return "; ".join(map(_cell, value)) or "none"
    return str(value)

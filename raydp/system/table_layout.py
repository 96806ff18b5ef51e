"""Layout of tables for people: complete if they fit, and with no cell broken over two lines.

If a table is wider than the terminal, columns with equal values in all rows are stated once, above
it. If the rest is still too wide, a table of few rows gets one field per line, and a long table
omits columns and names them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from rich.cells import cell_len

from raydp.analysis.tables.statements import UNPROVEN, rounded_up
from raydp.search_spaces.settings import short_names

HEADERS = {
    "batch_size": "b",
    "num_steps": "T",
    "learning_rate": "η",
    "num_examples": "n",
    "sample_rate": "q",
    "noise_multiplier": "σ",
    "single_run_epsilon": "ε alone",
    "epsilon": "ε",
    "target_epsilon": "target ε",
    **UNPROVEN,
    "delta": "δ",
    "compute": "C",
    "updates": "U",
    "utility_loss": "loss",
    "utility_gain": "gain",
}
"""The papers' symbols and short names, for tables that people read.

`--json` and files have the long names.
"""
_UPPER_BOUND = re.compile(r"(.*_)?epsilon|epsilon_(?!hat|gdp|mechanism).*|(.* )?ε|ε .*")
"""Names of an ε, an upper bound that is rounded up; those of audits are lower bounds."""
_OF_A_SPEC = ("method.", "model.")
"""Beginnings of the paths of fields of a spec.

A table shows the end of each path that distinguishes it from the others.
"""
FEW_ROWS = 4
"""The largest number of rows shown with one field per line instead of omitting columns."""
ELSEWHERE = "A wider terminal, a pipe (| less -S) and --json show every column."
_GAP = "  "


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of output.

    Attributes:
        text: the text of the line.
        kind: "header", "row", "marked" (a row with a mark) or "remark" (about the table).
    """

    text: str
    kind: str = "row"


@dataclass(frozen=True, kw_only=True)
class _Column:
    """One column as text.

    Attributes:
        name: key of the column's values in the rows, None for the marks.
        header: the column's header.
        cells: the column's values as texts.
        is_text: whether a value is neither a number nor an interval. Such columns are aligned on
            the left.
    """

    name: str | None
    header: str
    cells: tuple[str, ...]
    is_text: bool

    @property
    def width(self) -> int:
        """Return the number of terminal columns that the column needs."""
        return max(cell_len(text) for text in (self.header, *self.cells))

    @property
    def is_constant(self) -> bool:
        """Return whether all of at least two cells are equal."""
        return len(self.cells) > 1 and len(set(self.cells)) == 1


def lay_out(
    rows: Sequence[Mapping[str, object]],
    *,
    marks: Mapping[int, str] | None = None,
    width: int | None,
    keep: Sequence[str] = (),
    spare: Sequence[str] = (),
    whole: bool = False,
) -> list[Line]:
    """Lay out rows with the same keys.

    Args:
        rows: the rows.
        marks: position of a row -> words that mark it.
        width: number of columns of the terminal. None for a file or a pipe, where every row is
            whole on one line.
        keep: keys that are never omitted, beside the first one.
        spare: keys that are omitted first, in this order. The other keys follow from the right.
        whole: whether no key is omitted. A table that is too wide then gets one field per line.

    Returns:
        The lines. A line is wider than the terminal only if a single cell or header is.
    """
    # Format the columns: symbols for hyperparameters, the shortest distinct ends for paths.
    paths = [key for key in rows[0] if key.startswith(_OF_A_SPEC)]
    headers = {**HEADERS, **short_names(paths)}
    columns = [_column(key, headers.get(key, key), [row[key] for row in rows]) for key in rows[0]]
    # Marks come last, in a column without a name, which is never omitted.
    if marks:
        words = tuple(one_line(marks.get(position, "")) for position in range(len(rows)))
        columns.append(_Column(name=None, header="", cells=words, is_text=True))
    # Print the whole table if it fits.
    if width is None or _total(columns) <= width:
        return list(_table(columns))
    # State constant columns once. The first column names the row, so it stays.
    constant = [column for column in columns[1:] if column.is_constant and column.name is not None]
    varying = [column for column in columns if column not in constant]
    stated = list(
        _flowing(
            "in every row: ", [f"{c.header} {c.cells[0].strip() or '-'}" for c in constant], width
        )
    )
    if _total(varying) <= width:
        return [*stated, *_table(varying)]
    # Omit columns, or print one field per line.
    left = _fitting(varying, width, keep, spare)
    if whole or len(rows) <= FEW_ROWS or left is None:
        return [*stated, *_records(varying, width)]
    names = [column.header for column in varying if column not in left]
    remark = [f"Left out to fit {width} columns:", *_listed(names), *ELSEWHERE.split()]
    return [*stated, *_table(left), *_wrapped(remark, width)]


def cell_text(value: object, name: str = "") -> str:
    """Format a value for people: four digits, intervals as "low to high", undefined as "-"."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        up = math.isfinite(value) and _UPPER_BOUND.fullmatch(name)
        return f"{rounded_up(value) if up else value:.4g}"
    # An interval is two floats; two integers are a list.
    if _is_interval(value):
        return f"{cell_text(value[0])} to {cell_text(value[1])}"
    if isinstance(value, list | tuple):
        return "; ".join(map(cell_text, value)) or "none"
    return str(value)


def one_line(text: str) -> str:
    """Return the text without line breaks and other characters that move the cursor."""
    # Control characters in private texts could rewrite the terminal.
    return "".join(c if c.isprintable() else " " for c in text)


def _is_interval(value: object) -> TypeGuard[Sequence[float]]:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(isinstance(end, float) for end in value)
    )


def _column(name: str, header: str, values: Sequence[object]) -> _Column:
    return _Column(
        name=name,
        header=one_line(header).strip(),
        cells=tuple(one_line(cell_text(value, name)) for value in values),
        is_text=any(
            isinstance(v, str) or (isinstance(v, list | tuple) and not _is_interval(v))
            for v in values
        ),
    )


def _total(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + len(_GAP) * (len(columns) - 1)


def _fitting(
    columns: Sequence[_Column], width: int, keep: Sequence[str], spare: Sequence[str]
) -> list[_Column] | None:
    """Return the columns to show; None if the first, the kept ones and one more do not fit."""
    # Omit the spare columns first, then the others from the right.
    by_name = {column.name: column for column in columns}
    optional = [c for c in columns[1:] if c.name is not None and c.name not in keep]
    first = [by_name[name] for name in spare if by_name.get(name) in optional]
    left_out: list[_Column] = []
    for column in [*first, *(c for c in reversed(optional) if c not in first)]:
        if _total([c for c in columns if c not in left_out]) <= width:
            break
        left_out.append(column)
    # After a wide column was omitted, an earlier narrow one may fit again.
    for column in reversed(left_out[:-1]):
        if _total([c for c in columns if c not in left_out or c is column]) <= width:
            left_out.remove(column)
    shown = [c for c in columns if c not in left_out]
    # A table of its first column alone says nothing.
    enough = sum(c.name is not None for c in shown) > 1
    return shown if enough and _total(shown) <= width else None


def _table(columns: Sequence[_Column]) -> Iterator[Line]:
    """Yield a header and one line per row."""
    yield Line(text=_joined(columns, [column.header for column in columns]), kind="header")
    marks = next((column.cells for column in columns if column.name is None), None)
    for position in range(len(columns[0].cells)):
        kind = "marked" if marks is not None and marks[position] else "row"
        yield Line(text=_joined(columns, [column.cells[position] for column in columns]), kind=kind)


def _joined(columns: Sequence[_Column], texts: Sequence[str]) -> str:
    padded = []
    # cell_len counts terminal columns: some letters take two.
    for column, text in zip(columns, texts, strict=True):
        space = " " * (column.width - cell_len(text))
        padded.append(text + space if column.is_text else space + text)
    return _GAP.join(padded).rstrip()


def _records(columns: Sequence[_Column], width: int) -> Iterator[Line]:
    """Yield one field per line, a long value below its name, and an empty line between rows."""
    named = [column for column in columns if column.name is not None]
    marks = next((column.cells for column in columns if column.name is None), None)
    names = max(cell_len(column.header) for column in named)
    for position in range(len(columns[0].cells)):
        if position:
            yield Line(text="")
        kind = "row"
        if marks is not None and marks[position]:
            kind = "marked"
            yield Line(text=marks[position], kind=kind)
        for column in named:
            # A value stands beside its name if it fits, otherwise below, indented if that fits.
            text, header = column.cells[position], column.header
            beside = header + " " * (names - cell_len(header)) + _GAP + text
            if cell_len(beside) <= width:
                yield Line(text=beside.rstrip(), kind=kind)
            else:
                yield Line(text=header, kind=kind)
                yield Line(text=(_GAP if cell_len(_GAP + text) <= width else "") + text, kind=kind)


def _flowing(start: str, items: Sequence[str], width: int) -> Iterator[Line]:
    """Yield items separated by commas on as many lines as they need, none of them broken."""
    if items:
        yield from _wrapped([start.rstrip(), *_listed(items)], width)


def _listed(items: Sequence[str]) -> list[str]:
    return [*(f"{item}," for item in items[:-1]), f"{items[-1]}."]


def _wrapped(words: Sequence[str], width: int) -> Iterator[Line]:
    """Yield words on as many lines as they need, none of them broken."""
    line = ""
    for word in words:
        longer = f"{line} {word}" if line else word
        if line and cell_len(longer) > width:
            yield Line(text=line, kind="remark")
            longer = word
        line = longer
    yield Line(text=line, kind="remark")

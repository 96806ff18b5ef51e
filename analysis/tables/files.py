"""Reading of points files: whether a file can be read and has the form of a table.

The values are checked later.
"""

from __future__ import annotations

import csv
import errno
from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from typing import TextIO

import pandas as pd

_DAMAGED = (
    ValueError,
    OSError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
)
"""Exceptions that pyarrow and pandas raise for damaged content, such as a broken page."""
_LINE = "line"
"""Name of the index of a table from a CSV file: the line of each row."""


def read_table(path: Path, *, as_text: Iterable[str], content: str | None = None) -> pd.DataFrame:
    """Read a .parquet file, or any other as CSV.

    Args:
        path: the file.
        as_text: columns of a CSV file that stay text.
        content: the content of a CSV file that is not read from the disk.

    Raises:
        ValueError: the file is empty, not UTF-8 or not well formed. The message names the line.
    """
    return _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path, as_text, content)


def _read_parquet(path: Path) -> pd.DataFrame:
    """Read a Parquet file."""
    try:
        with path.open("rb") as stream:  # neither pandas nor pyarrow opens every path
            # A file's own index may be anything.
            return pd.read_parquet(stream).reset_index(drop=True)
    except _DAMAGED as error:
        # An error of the disk is not one of the content. A damaged offset leads where nothing can
        # be read: EINVAL.
        if isinstance(error, OSError) and error.errno not in {None, errno.EINVAL}:
            raise
        raise ValueError(
            f"points must be a Parquet file, got {str(path)!r}, which pyarrow does not read as "
            "one. Write it again."
        ) from error


def _read_csv(path: Path, as_text: Iterable[str], content: str | None) -> pd.DataFrame:
    """Read a CSV file and check its form: pandas alone would shift or drop cells of long rows."""
    encoding = "utf-8-sig"  # spreadsheets put a byte order mark first
    try:
        with (
            path.open(encoding=encoding, newline="") if content is None else StringIO(content)
        ) as file:
            lines = _check_form(file, str(path))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"points must be UTF-8 text, got other bytes in {str(path)!r}. Save it as UTF-8."
        ) from error
    table = pd.read_csv(
        path.absolute() if content is None else StringIO(content),
        encoding=encoding,
        skipinitialspace=True,
        dtype=dict.fromkeys(as_text, str),
    )
    # Where csv and pandas count different rows, line numbers would mislead.
    return table.set_axis(pd.Index(lines, name=_LINE)) if len(lines) == len(table) else table


def numbered(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose index gives each row's line in a CSV file, or else its position."""
    return table if table.index.name == _LINE else table.reset_index(drop=True)


def place_of(column: pd.Series | pd.DataFrame, at: int) -> str:
    """Return a row's place for a message: its line in a CSV file, or its number from 1."""
    index = column.index
    return f"line {index[at]}" if index.name == _LINE else f"row {index[at] + 1}"


def _check_form(file: TextIO, name: str) -> list[int]:
    """Return the line in which each row below the header ends. Blank lines are no rows.

    Raises:
        ValueError: the file is empty, a quote is not closed, or a row has more cells than the
            header.
    """
    reader = csv.reader(file, skipinitialspace=True, strict=True)
    header: list[str] = []
    lines: list[int] = []
    try:
        for row in reader:
            header = header or row
            if any(map(str.strip, row)) or len(row) > 1:
                lines.append(reader.line_num)
            if len(row) > len(header):
                raise ValueError(
                    f"points must have at most {len(header)} cells in a row, as the header, got "
                    f"{len(row)} in line {reader.line_num} of {name!r}. Remove some, or quote "
                    "cells that hold commas."
                )
    except csv.Error as error:
        raise ValueError(
            f"points must be valid CSV, got {error} in line {reader.line_num} of {name!r}. Correct "
            "the quotes there."
        ) from error
    if not header:
        raise ValueError(
            f"points must have a header and rows, got an empty file {name!r}. Write it again."
        )
    return lines[1:]

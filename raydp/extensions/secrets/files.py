"""The data that secrets come from, and the secrets file.

The secrets file is the only place where secrets are stored in the clear. Its owner alone can read
it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from raydp.tasks.row_files import read_rows, string_of


def texts_of(data: Path, column: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the text of each row of a data file, with the row.

    Raises:
        ValueError: the file is malformed, or a row has no text in the column.
    """
    remedy = "Name the column with the texts: --column NAME. If only some rows lack it, correct these rows."
    for line, row in read_rows(data, "DATA"):
        yield string_of(row, column, "DATA", f"{data.name}, line {line}", remedy=remedy), row


def require_column(data: Path, column: str) -> None:
    """Raise ValueError if the first row has no text in the column. Other rows are not checked."""
    next(texts_of(data, column), None)


def require_new(path: Path) -> None:
    """Raise ValueError if the file exists, because a person may have edited it."""
    if path.exists():
        raise ValueError(
            f"--output must be a new file, got {str(path)!r}. Choose another name, or remove the "
            "file."
        )


def write_secrets(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write JSON Lines to a file that has mode 0600 from its creation on.

    Raises:
        ValueError: the file exists.
    """
    require_new(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

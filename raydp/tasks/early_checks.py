"""First looks at a task's files, before torch and a tokenizer are loaded (TaskSection.early_check)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from raydp.tasks.row_files import FILE_SUFFIXES, read_rows, string_of

Parameters = Mapping[str, Any]
"""The parameters of a task, by name."""
MOST_BYTES = 1 << 25
"""Size of the largest file whose rows are all looked at first, which takes about a second."""


def check_texts(params: Parameters, files: Mapping[str, str]) -> None:
    """Check the rows of texts, unless this takes long, and the files of secrets.

    Args:
        params: the task's parameters.
        files: those of them that name a file on this machine.
    """
    for field, place, row in few_rows(params, files):
        string_of(row, params["column"], field, place)
    check_secrets(params, files)


def few_rows(
    params: Parameters, files: Mapping[str, str]
) -> Iterator[tuple[str, str, Mapping[str, object]]]:
    """Yield the rows of `path` and `heldout_path`, with the field and the place, for messages.

    A Parquet file or a large file takes too long for a first look.
    """
    for name in ("path", "heldout_path"):
        path = files.get(name, "")
        light = path.endswith(FILE_SUFFIXES) and not path.endswith(".parquet")
        if not light or not Path(path).is_file() or Path(path).stat().st_size > MOST_BYTES:
            continue
        for line, row in islice(read_rows(path, f"task.{name}"), params.get("max_rows")):
            yield f"task.{name}", f"{Path(path).name}, line {line}", row


def check_secrets(params: Parameters, files: Mapping[str, str]) -> None:
    """Check the files of secrets and of controls. The arguments are those of `check_texts`."""
    # Imported here, because numpy takes longer than the other checks together.
    from raydp.tasks.secret import read_secrets

    for name in ("secrets", "controls"):
        if name in files:
            read_secrets(files[name], f"task.{name}")

"""JSON files of a sweep: written whole or not at all. Reading a damaged or foreign file is an error with a remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from raydp.io.files import write_atomically

S = TypeVar("S")


def write_json(path: Path, document: object) -> None:
    """Write a JSON file, whole or not at all."""
    write_atomically(path, (json.dumps(document, indent=1) + "\n").encode())


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Return None if the file does not exist.

    Raises:
        ValueError: the file is not JSON.
    """
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"SWEEP must have whole files, got {str(path)!r} that is not JSON ({error}). If it is in trials/, "
            "delete it and continue with --resume; if in scores/, delete it and run `raydp score` again; without "
            "plan.json a sweep cannot continue."
        ) from error


def read_state(path: Path, from_json: Callable[[Any], S]) -> S | None:
    """Return the state in a JSON file. Return None if the file does not exist.

    Args:
        path: the file.
        from_json: makes the state from the file's content.

    Raises:
        ValueError: the file is not JSON, or another version of raydp wrote other content.
    """
    document = read_json(path)
    if document is None:
        return None
    try:
        return from_json(document)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"SWEEP must have files that this version of raydp reads, got {str(path)!r} ({type(error).__name__}: "
            f"{error}). Restore the file, or read the sweep with the version that wrote it."
        ) from error

"""JSON files of a sweep: written whole or not at all. Reading a damaged file raises an error with a remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from raydp.io.files import write_atomically


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

"""The secrets file, the only place where secrets are stored in the clear, readable by its owner alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path


def require_new(path: Path) -> None:
    """Raise ValueError if the file exists, because a person may have edited it."""
    if path.exists():
        raise ValueError(f"--output must be a new file, got {str(path)!r}. Choose another name, or remove the file.")


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

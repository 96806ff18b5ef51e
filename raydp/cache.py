"""The user's cache folder."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_dir() -> Path:
    """Where converted weights, calibrations and hidden states are kept; safe to delete at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raydp"


def stored_once(target: Path, write_fn: Callable[[Path], None]) -> Path:
    """A folder that is written at its first use, whole or not at all, by one of several processes.

    Args:
        write_fn: writes the content into the folder that it is given.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        part = Path(scratch) / "model"
        write_fn(part)
        try:
            part.rename(target)
        except OSError:  # another process was first
            if not target.is_dir():
                raise
    return target

"""The user's cache folder."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """Where converted weights, calibrations and hidden states are kept; safe to delete at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raydp"

"""Packages with plug-ins that this process can import for the time of a test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raydp.analysis.entry_points import entries


@contextmanager
def importable(folder: Path, package: str) -> Iterator[None]:
    """Have a package of a folder, with its entry points, in this process, and forget it
    afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        entries.cache_clear()
        yield
    entries.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]

"""The loader that a language model's MLmodel names: raydp's own if installed, else the plain one.

Every language model's folder holds a copy of this file, which MLflow imports as `raydp_standalone`.
Nothing in raydp imports it. Python writes the bytecode of what it imports beside it, so the copy
removes its own: the seal lists every file of the folder, and one more would make the folder differ
from the sealed one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Python keeps or wrote none, or the folder is read-only.
with contextlib.suppress(OSError, NotImplementedError):
    bytecode = Path(importlib.util.cache_from_source(__file__))
    bytecode.unlink()
    bytecode.parent.rmdir()


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> Any:
    """Load a model's folder; MLflow's entry point.

    raydp's own loader also compares every file with the seal.
    """
    try:
        from raydp.tracking.serving import _load_pyfunc as load_checked
    except ModuleNotFoundError as error:
        if error.name != "raydp":
            raise
        writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        try:
            from raydp_plain import load_plainly  # the copy beside this one
        finally:
            sys.dont_write_bytecode = writes
        return load_plainly(Path(path), dict(model_config or {}))
    return load_checked(path, model_config)

"""The loader that a language model's MLmodel names: raydp's own where raydp is installed, else the plain one.

Every language model's folder holds a copy of this file, which MLflow imports as `raydp_standalone`. Nothing in raydp
imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> Any:
    """Load a model's folder; MLflow's entry point. raydp's own loader also compares every file with the seal."""
    try:
        from raydp.tracking.serving import _load_pyfunc as load_checked
    except ModuleNotFoundError as error:
        if error.name != "raydp":
            raise
        from raydp_plain import load_plainly  # the copy beside this one

        return load_plainly(Path(path), dict(model_config or {}))
    return load_checked(path, model_config)

"""raydp: hyperparameter sweeps under one differential-privacy guarantee, scored for what the models leak."""

from importlib import import_module
from typing import Any

_LAZY = {
    "Sweep": "raydp.sweep.api",
    "plan": "raydp.sweep.api",
    "select": "raydp.sweep.api",
    "load_points": "analysis",
    "find_models": "raydp.tracking",
    "load_model": "raydp.tracking",
}
__all__ = ["Sweep", "find_models", "load_model", "load_points", "plan", "select"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'raydp' has no attribute {name!r}. Known: {', '.join(__all__)}.")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__

"""Runs, models and their lookup in MLflow.

Only this package imports MLflow, and only on first use of a name below. MLflow's defaults that do
not suit a privacy tool with a machine-readable stdout are replaced here, because MLflow reads some
of them when it is imported. User settings win.
"""

import os
from importlib import import_module
from typing import Any

for _name, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
}.items():
    os.environ.setdefault(_name, _value)

_LAZY = {
    "NotDeliveredError": "raydp.tracking.tracker",
    "Pauses": "raydp.tracking.tracker",
    "MLflowTracker": "raydp.tracking.runs",
    "Tracker": "raydp.tracking.tracker",
    "TrialRecord": "raydp.tracking.records",
    "UnreachableError": "raydp.tracking.address",
    "check_store": "raydp.tracking.address",
    "delivering": "raydp.tracking.delivery",
    "fetch_model": "raydp.tracking.later_scores",
    "find_models": "raydp.tracking.registry",
    "load_model": "raydp.tracking.models.loading",
    "load_signer": "raydp.tracking.sealing.seal",
    "load_tokenizer": "raydp.tracking.models.loading",
    "log_scores": "raydp.tracking.later_scores",
    "open_tracker": "raydp.tracking.runs",
    "promote_model": "raydp.tracking.registry",
    "set_alarms": "raydp.tracking.alarms",
    "set_alias": "raydp.tracking.registry",
    "show_model": "raydp.tracking.registry",
}
_SERVICES = ("export_model", "new_key", "seal_model")
"""Functions of extensions, called by name."""
__all__ = sorted([*_LAZY, *_SERVICES])


def __getattr__(name: str) -> Any:
    if name in _SERVICES:
        from raydp.plugins.registries import service

        return service(name, needed_by=f"raydp.tracking.{name}")
    if name not in _LAZY:
        raise AttributeError(
            f"module 'raydp.tracking' has no attribute {name!r}. Known: {', '.join(__all__)}."
        )
    return getattr(import_module(_LAZY[name]), name)

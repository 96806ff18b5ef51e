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
    "NotDeliveredError": "raydp.tracking.base",
    "Pauses": "raydp.tracking.base",
    "MLflowTracker": "raydp.tracking.runs",
    "Tracker": "raydp.tracking.base",
    "TrialRecord": "raydp.tracking.records",
    "UnreachableError": "raydp.tracking.address",
    "check_signing_key": "raydp.tracking.sealing.signing",
    "check_store": "raydp.tracking.address",
    "delivering": "raydp.tracking.delivery",
    "fetch_model": "raydp.tracking.later",
    "find_models": "raydp.tracking.registry",
    "load_model": "raydp.tracking.models.loading",
    "load_tokenizer": "raydp.tracking.models.loading",
    "log_scores": "raydp.tracking.later",
    "open_tracker": "raydp.tracking.opening",
    "new_key": "raydp.tracking.sealing.signing",
    "promote_model": "raydp.tracking.registry",
    "seal_model": "raydp.tracking.models.resealing",
    "set_alarms": "raydp.tracking.alarms",
    "set_alias": "raydp.tracking.registry",
    "show_model": "raydp.tracking.registry",
}
__all__ = [
    "MLflowTracker",
    "NotDeliveredError",
    "Pauses",
    "Tracker",
    "TrialRecord",
    "UnreachableError",
    "check_signing_key",
    "check_store",
    "delivering",
    "export_model",
    "fetch_model",
    "find_models",
    "load_model",
    "load_tokenizer",
    "log_scores",
    "new_key",
    "open_tracker",
    "promote_model",
    "seal_model",
    "set_alarms",
    "set_alias",
    "show_model",
]


def __getattr__(name: str) -> Any:
    if name == "export_model":
        from raydp.plugins.registries import service

        return service(name, needed_by=f"raydp.tracking.{name}")
    if name not in _LAZY:
        raise AttributeError(
            f"module 'raydp.tracking' has no attribute {name!r}. Known: {', '.join(__all__)}."
        )
    return getattr(import_module(_LAZY[name]), name)

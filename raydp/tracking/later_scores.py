"""Registered models after their sweep: fetching their files, and logging later scores."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow.entities import Metric

from raydp.tracking.delivery import answering
from raydp.tracking.models.fetching import checked_folder
from raydp.tracking.portable import model_files
from raydp.tracking.records import clean_key, latest_metrics
from raydp.tracking.store import Store, open_store, resolve_uri


def fetch_model(uri: str, folder: Path, *, tracking_uri: str | None = None) -> Path:
    """Copy a registered model's weights and configuration, after checking them against its seal.

    Args:
        uri: models:/NAME/VERSION, models:/NAME@ALIAS or models:/m-ID.
        folder: target folder; created if needed.
        tracking_uri: the store of the model; by default MLFLOW_TRACKING_URI, else
            sqlite:///raydp.db.

    Returns:
        The folder.

    Raises:
        ValueError: there is no such model, it has no safetensors weights, or its files differ from
            the sealed ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with checked_folder(uri, tracking_uri=tracking_uri) as held:
        for path in model_files(held):
            shutil.copy(path, folder)
    return folder


@answering()
def log_scores(
    values: Mapping[str, Mapping[str, float | None]], *, tracking_uri: str | None = None
) -> int:
    """Log metrics on registered models and on their runs. An unchanged value is not logged again.

    Args:
        values: models:/NAME/VERSION -> metric -> value. Undefined values (None, NaN, infinite) are
            left out.
        tracking_uri: the store; by default MLFLOW_TRACKING_URI, else sqlite:///raydp.db.

    Returns:
        The number of models that have all their values now.

    Raises:
        ValueError: the store or a model in it does not exist.
    """
    store = open_store(tracking_uri)
    for uri, metrics in values.items():
        finite = {
            clean_key(k): float(v) for k, v in metrics.items() if v is not None and math.isfinite(v)
        }
        _log(store, uri, finite)
    return len(values)


def _log(store: Store, uri: str, values: Mapping[str, float]) -> None:
    model = store.client.get_logged_model(resolve_uri(store, uri).model_id)
    there = latest_metrics(model)
    # The latest value counts, also if the clock was set back since the last one.
    last = max((metric.timestamp for metric in model.metrics or ()), default=0)
    now = max(int(time.time() * 1000), last + 1)
    # An unchanged value is not logged again, so that repeated calls do not grow the history.
    new = [
        Metric(k, v, now, 0, model_id=model.model_id)
        for k, v in values.items()
        if there.get(k) != v
    ]
    if new:
        assert model.source_run_id is not None, "a model is logged in a run"
        store.client.log_batch(model.source_run_id, metrics=new)

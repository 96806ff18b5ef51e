"""What a store holds of a sweep's runs, so that a resume sees what the store has lost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from mlflow.entities import Run
from mlflow.entities.model_registry import ModelVersion

from raydp.tracking.sealing.seal import SEAL_FILE
from raydp.tracking.store import MODEL_ID_TAG, Store, local_folder, pages

RUN_ID_TAG = "raydp.run_id"
STATUS_TAG = "raydp.status"
MODEL_URI_TAG = "raydp.model_uri"  # written last; it marks the run as complete
PARENT_TAG = "mlflow.parentRunId"
PAGE = 1000
CHUNK = 100
"""Number of runs named in one address.

The longest address must stay below the 8 KiB that proxies accept.
"""


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run as the store holds it.

    Attributes:
        status: "finished", "stopped" or "failed"; None while the run is incomplete.
        model_uri: models:/name/version, if the version exists and no file of it is missing; else
            None.
        metrics: the latest values of the run's metrics.
    """

    status: str | None
    model_uri: str | None
    metrics: Mapping[str, float]


def recorded_runs(store: Store, experiment_id: str, parent_id: str) -> dict[str, RecordedRun]:
    """Return the runs of a sweep that the store holds, by the run's identity."""
    # All runs of the sweep, in pages.
    condition = f"tags.`{PARENT_TAG}` = '{parent_id}'"
    runs: list[Run] = pages(
        partial(store.client.search_runs, [experiment_id], condition, max_results=PAGE)
    )
    # The models whose files are whole, and the versions that point at such a model.
    registered = [run.info.run_id for run in runs if MODEL_URI_TAG in run.data.tags]
    models = set[str]()
    for named in _named(store, registered):
        search = partial(
            store.client.search_logged_models, [experiment_id], f"source_{named}", max_results=PAGE
        )
        models |= {
            model.model_id for model in pages(search) if is_whole(store, model.artifact_location)
        }
    held = {
        uri_of(v) for v in versions_of_runs(store, registered) if v.tags.get(MODEL_ID_TAG) in models
    }
    # A run whose version or files are gone has no URI, so that a resume delivers it again.
    return {
        run.data.tags[RUN_ID_TAG]: RecordedRun(
            status=run.data.tags.get(STATUS_TAG),
            model_uri=uri if (uri := run.data.tags.get(MODEL_URI_TAG)) in held else None,
            metrics=run.data.metrics,
        )
        for run in runs
        if RUN_ID_TAG in run.data.tags
    }


def versions_of_runs(
    store: Store, mlflow_run_ids: list[str], registered_model: str | None = None
) -> list[ModelVersion]:
    """Return the registered versions of runs, in any order, of one registered model or of all."""
    parts = [] if registered_model is None else [f"name = '{registered_model}'"]
    versions: list[ModelVersion] = []
    for named in _named(store, mlflow_run_ids):
        versions += pages(
            partial(store.client.search_model_versions, " AND ".join([*parts, named]), PAGE)
        )
    return versions


def _named(store: Store, mlflow_run_ids: list[str]) -> Iterator[str]:
    """Yield conditions on `run_id` that name all runs.

    In a file, each search reads the tags of all versions once, and there is no address to keep
    short.
    """
    chunk = CHUNK if store.database is None else PAGE
    for start in range(0, len(mlflow_run_ids), chunk):
        yield f"run_id IN ({', '.join(map(repr, mlflow_run_ids[start : start + chunk]))})"


def is_whole(store: Store, location: str) -> bool:
    """Return whether no file that a model's seal names is missing, if the location is local."""
    folder = local_folder(store, location)
    if folder is None:
        return True
    # The seal's list is read, not the folder: a missing file leaves no trace there.
    try:
        names = json.loads((folder / SEAL_FILE).read_bytes())["files"]
        return all((folder / name).is_file() for name in names)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def uri_of(version: ModelVersion) -> str:
    """Return models:/name/version."""
    return f"models:/{version.name}/{version.version}"

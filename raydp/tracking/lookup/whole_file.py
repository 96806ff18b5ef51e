"""All models of a SQLite store by plain SQL.

MLflow makes an object of each of some fifty rows of a model. For thousands of models that takes
most of a look-up.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path

from mlflow.entities import LoggedModel, Metric
from mlflow.entities.model_registry import ModelVersion, ModelVersionTag

from raydp.tracking.address import open_to_read

_MODELS = """SELECT model_id, CAST(experiment_id AS TEXT) AS experiment_id, name, artifact_location,
    creation_timestamp_ms AS creation_timestamp, last_updated_timestamp_ms AS last_updated_timestamp, model_type,
    source_run_id, status, status_message FROM logged_models WHERE lifecycle_stage = 'active'"""
_VERSIONS = """SELECT name, version, creation_time AS creation_timestamp, last_updated_time AS last_updated_timestamp,
    description, user_id, current_stage, source, run_id, status, status_message
    FROM model_versions WHERE current_stage != 'Deleted_Internal'"""


def all_models(database: Path) -> list[LoggedModel]:
    """Return every logged model of a store, as MLflow's search returns it."""
    # Three tables, read once each and joined here by the model's id.
    with closing(open_to_read(database)) as connection:
        tags, params = (_texts(connection, kind) for kind in ("tag", "param"))
        metrics = defaultdict[str, list[Metric]](list)
        for model_id, name, value, at, step in connection.execute(
            "SELECT model_id, metric_name, metric_value, metric_timestamp_ms, metric_step FROM "
            "logged_model_metrics"
        ):
            metrics[model_id].append(Metric(name, value, at, step, model_id=model_id))
        return [
            LoggedModel(**dict(row), tags=tags[one], params=params[one], metrics=metrics[one])
            for row in connection.execute(_MODELS)
            for one in [row["model_id"]]
        ]


def all_versions(database: Path) -> list[ModelVersion]:
    """Return every version of every registered model of a store, as MLflow's search returns it."""
    with closing(open_to_read(database)) as connection:
        tags = defaultdict[tuple[str, int], list[ModelVersionTag]](list)
        for name, version, key, value in connection.execute(
            "SELECT name, version, key, value FROM model_version_tags"
        ):
            tags[name, version].append(ModelVersionTag(key, value))  # type: ignore[no-untyped-call]
        return [
            ModelVersion(**dict(row), tags=tags[row["name"], row["version"]], workspace="default")
            for row in connection.execute(_VERSIONS)
        ]


def _texts(connection: sqlite3.Connection, kind: str) -> defaultdict[str, dict[str, str]]:
    """Return the tags or the parameters by model."""
    texts = defaultdict[str, dict[str, str]](dict)
    rows = connection.execute(
        f"SELECT model_id, {kind}_key, {kind}_value FROM logged_model_{kind}s"
    )
    for model_id, key, value in rows:
        texts[model_id][key] = value
    return texts

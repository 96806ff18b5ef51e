"""`raydp.score`: measure leakage of trained models after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from raydp.extensions.later_scores.requests import requests_of
from raydp.scores.score import ScoreSection
from raydp.sweep.api import sweep_folder
from raydp.system.output import stderr

ScoreLike = str | Mapping[str, object] | ScoreSection


def score(
    source: str | Path,
    scores: ScoreLike | Sequence[ScoreLike],
    *,
    task: str | Path | None = None,
    seed: int | None = None,
    workers: int | None = None,
    tracking_uri: str | None = None,
    storage: str = "raydp_runs",
) -> pd.DataFrame:
    """Measure the models of a sweep, or one model, with new or other scores.

    Args:
        source: a sweep by its folder or name; or, with `task`, a model: models:/... or a folder.
        scores: "vmr", {"name": "vmr", "label": "vmr-9", "num_samples": 9}, a score, or several.
        task: for one model: the spec with its task and base model.
        seed: seed of all draws; by default each run's own, or 0 for one model.
        workers: number of processes that measure a sweep side by side; by default as many as fit.
        tracking_uri: store of models:/...; default MLFLOW_TRACKING_URI, else sqlite:///raydp.db.
        storage: the folder that sweeps are in.

    Returns:
        One row per score, by its label: a model's value, or minimum, mean and maximum of a sweep.
        `.attrs["document"]` is that of `raydp score --json`, with every failure and every secret.

    Raises:
        ValueError: as `score_sweep` and `score_model`.
    """
    asked = [scores] if isinstance(scores, str | Mapping | ScoreSection) else list(scores)
    requests = requests_of(
        [{"name": entry} if isinstance(entry, str) else entry for entry in asked]
    )
    # One model comes without a task, so the spec gives it. A sweep's folder has its own spec.
    if task is not None or str(source).startswith("models:/"):
        from raydp.extensions.later_scores.one_model import score_model

        spec = None if task is None else Path(task)
        document: Mapping[str, Any] = score_model(
            str(source),
            requests,
            task=spec,
            tracking_uri=tracking_uri,
            seed=seed or 0,
            console=stderr,
        )
        columns = ["score", "value", "std_error", "num_samples"]
    else:
        from raydp.extensions.later_scores.sweep import score_sweep

        document = score_sweep(
            sweep_folder(source, storage), requests, seed=seed, workers=workers, console=stderr
        )
        columns = ["score", "base", "min", "mean", "max", "measured", "already", "seconds"]
    table = (
        pd.DataFrame.from_dict(document["scores"], orient="index")
        .reindex(columns=columns)
        .rename_axis("label")
    )
    table.attrs["document"] = document
    return table

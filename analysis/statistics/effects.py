"""The effect of one hyperparameter at a time, the others held fixed (Hu et al. 2025, Fig. 5)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from analysis.statistics.heuristics import Coded
from analysis.statistics.spread import std
from analysis.tables.points import configuration_means, configurations
from search_spaces.configuration import HYPERPARAMETERS

SERIES = (*HYPERPARAMETERS, "compute", "updates")


def hyperparameter_effects(points: pd.DataFrame) -> dict[str, Any]:
    """Find series of configurations that differ in one hyperparameter, and the effect of doubling it.

    Args:
        points: a points table.

    Returns:
        For each of "batch_size", "num_steps", "learning_rate" (the other two fixed), "compute" (C and η fixed, b and T
        vary) and "updates" (U fixed, C and η vary): "series": [{"fixed": {...}, "points": [{"batch_size", "num_steps",
        "learning_rate", "score", "score_std", "utility_loss"}]}]. Each series has at least two configurations, ordered
        by the varied hyperparameter: b for compute, η for updates. Also "per_doubling": the mean change of the score
        if that hyperparameter doubles, "std_error" (over series) and "series_count". The change is None with a "reason"
        if there is no series.

    Raises:
        ValueError: as `configuration_means`.

    Source: Hu et al. 2025, §4.1 and Fig. 5.
    """
    # One row of figures per configuration.
    means = configuration_means(points)
    coded = Coded.of(means)
    figures = ["batch_size", "num_steps", "learning_rate", "score", "score_std", "utility_loss"]
    listed_figures = means[figures].astype(object).where(means[figures].notna(), None).to_dict("records")
    rows: list[dict[str, Any]] = [{str(name): value for name, value in row.items()} for row in listed_figures]
    for row in rows:
        if row["score_std"] is None:
            row["reason"] = "score_std needs two seeds"
    listed = configurations(means)
    # For each kind of series, the values that must be equal within a series.
    fixed = {
        **{
            name: [tuple(row[other] for other in HYPERPARAMETERS if other != name) for row in rows]
            for name in HYPERPARAMETERS
        },
        "compute": [(int(code),) for code in coded.same_compute],
        "updates": [(int(code),) for code in coded.same_updates],
    }
    # Group the configurations into series, and keep those with at least two values of the varied hyperparameter.
    result = {}
    for name in SERIES:
        moving = {"compute": "batch_size", "updates": "learning_rate"}.get(name, name)
        of_group: dict[Any, list[int]] = {}
        for at, key in enumerate(fixed[name]):
            of_group.setdefault(key, []).append(at)
        series = []
        for members in of_group.values():
            if len({rows[at][moving] for at in members}) < 2:
                continue
            members = sorted(members, key=lambda at: (rows[at][moving], at))
            series.append({"fixed": _fixed(name, listed[members[0]]), "points": [rows[at] for at in members]})
        result[name] = {"series": series, **_per_doubling(series, moving)}
    return result


def _fixed(name: str, one: Any) -> dict[str, Any]:
    """Return the values that all configurations of a series share."""
    if name == "compute":
        return {"compute": one.compute, "learning_rate": one.learning_rate}
    if name == "updates":
        return {"updates": float(one.updates)}
    return {other: getattr(one, other) for other in HYPERPARAMETERS if other != name}


def _per_doubling(series: list[dict[str, Any]], moving: str) -> dict[str, Any]:
    """Return the mean over series of the least-squares slope of the score on log2 of the varied hyperparameter."""
    if not series:
        reason = f"no two configurations differ in {moving} alone"
        return {"per_doubling": None, "std_error": None, "series_count": 0, "reason": reason}
    slopes = []
    for one in series:
        x = np.log2([float(p[moving]) for p in one["points"]])
        y = np.array([float(p["score"]) for p in one["points"]])
        slopes.append(float(((x - x.mean()) * y).sum() / ((x - x.mean()) ** 2).sum()))
    effect: dict[str, Any] = {"per_doubling": float(np.mean(slopes)), "std_error": None, "series_count": len(series)}
    if len(slopes) < 2:
        return effect | {"reason": "std_error needs two series"}
    return effect | {"std_error": std(np.array(slopes)) / math.sqrt(len(slopes))}

"""The effect of one hyperparameter at a time, the others held fixed (Hu et al. 2025, Fig. 5)."""

from __future__ import annotations

import math
from typing import Literal, TypedDict

import numpy as np
import pandas as pd

from analysis.statistics.heuristics import Coded
from analysis.statistics.results import Reason, because
from analysis.statistics.spread import std
from analysis.tables.points import configuration_means, configurations
from search_spaces.configuration import HYPERPARAMETERS, Configuration, Hyperparameters

Hyperparameter = Literal["batch_size", "num_steps", "learning_rate"]
MOVING: dict[str, Hyperparameter] = {
    "batch_size": "batch_size",
    "num_steps": "num_steps",
    "learning_rate": "learning_rate",
    "compute": "batch_size",
    "updates": "learning_rate",
}
"""Kind of series -> the hyperparameter by which a series of this kind is ordered."""
SERIES = tuple(MOVING)


class SeriesPoint(Hyperparameters, Reason):
    """One configuration of a series."""

    score: float
    score_std: float | None
    utility_loss: float


class Series(TypedDict):
    """Configurations that differ in one hyperparameter."""

    fixed: dict[str, float]
    points: list[SeriesPoint]


class Doubling(Reason):
    """The mean change of the score if a hyperparameter doubles."""

    per_doubling: float | None
    std_error: float | None
    series_count: int


class Effect(Doubling):
    """The series of one hyperparameter, and its effect."""

    series: list[Series]


def hyperparameter_effects(points: pd.DataFrame) -> dict[str, Effect]:
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
    listed = configurations(means)
    figures = zip(means["score"].tolist(), means["score_std"].tolist(), means["utility_loss"].tolist(), strict=True)
    rows = [_point(one, *values) for one, values in zip(listed, figures, strict=True)]
    # For each kind of series, the values that must be equal within a series.
    fixed = {
        **{
            name: [tuple(getattr(one, other) for other in HYPERPARAMETERS if other != name) for one in listed]
            for name in HYPERPARAMETERS
        },
        "compute": [(int(code),) for code in coded.same_compute],
        "updates": [(int(code),) for code in coded.same_updates],
    }
    # Group the configurations into series, and keep those with at least two values of the varied hyperparameter.
    result: dict[str, Effect] = {}
    for name in SERIES:
        moving = MOVING[name]
        of_group: dict[tuple[float, ...], list[int]] = {}
        for at, key in enumerate(fixed[name]):
            of_group.setdefault(key, []).append(at)
        series: list[Series] = []
        for members in of_group.values():
            if len({rows[at][moving] for at in members}) < 2:
                continue
            members = sorted(members, key=lambda at: (rows[at][moving], at))
            series.append({"fixed": _fixed(name, listed[members[0]]), "points": [rows[at] for at in members]})
        result[name] = {"series": series, **_per_doubling(series, moving)}
    return result


def _point(one: Configuration, score: float, score_std: float, utility_loss: float) -> SeriesPoint:
    """Return the figures of one configuration."""
    undefined = math.isnan(score_std)
    return {
        **one.to_json(),
        "score": score,
        "score_std": None if undefined else score_std,
        "utility_loss": utility_loss,
        **because("score_std needs two seeds" if undefined else None),
    }


def _fixed(name: str, one: Configuration) -> dict[str, float]:
    """Return the values that all configurations of a series share."""
    if name == "compute":
        return {"compute": one.compute, "learning_rate": one.learning_rate}
    if name == "updates":
        return {"updates": float(one.updates)}
    return {other: getattr(one, other) for other in HYPERPARAMETERS if other != name}


def _per_doubling(series: list[Series], moving: Hyperparameter) -> Doubling:
    """Return the mean over series of the least-squares slope of the score on log2 of the varied hyperparameter."""
    if not series:
        reason = f"no two configurations differ in {moving} alone"
        return {"per_doubling": None, "std_error": None, "series_count": 0, "reason": reason}
    slopes = []
    for one in series:
        x = np.log2([float(p[moving]) for p in one["points"]])
        y = np.array([float(p["score"]) for p in one["points"]])
        slopes.append(float(((x - x.mean()) * y).sum() / ((x - x.mean()) ** 2).sum()))
    effect: Doubling = {"per_doubling": float(np.mean(slopes)), "std_error": None, "series_count": len(series)}
    if len(slopes) < 2:
        return effect | {"reason": "std_error needs two series"}
    return effect | {"std_error": std(np.array(slopes)) / math.sqrt(len(slopes))}

"""The effect of one hyperparameter at a time, the others held fixed (Hu et al. 2025, Fig. 5)."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TypedDict

import numpy as np
import pandas as pd

from raydp.analysis.statistics.heuristics import Coded
from raydp.analysis.statistics.results import Reason, because
from raydp.analysis.statistics.spread import std
from raydp.analysis.tables.coordinates import UNSET, is_numeric, varied_fields
from raydp.analysis.tables.points import configuration_means, configurations
from raydp.search_spaces.configuration import HYPERPARAMETERS, Configuration, Hyperparameters
from raydp.search_spaces.settings import Settings, value_in_words

MOVING = {
    "batch_size": "batch_size",
    "num_steps": "num_steps",
    "learning_rate": "learning_rate",
    "compute": "batch_size",
    "updates": "learning_rate",
}
"""Kind of series -> the hyperparameter that orders it. A further field is ordered by itself."""
SERIES = tuple(MOVING)


class SeriesPoint(Hyperparameters, Reason):
    """One configuration of a series."""

    score: float
    score_std: float | None
    utility_loss: float


class Series(TypedDict):
    """Configurations that differ in one hyperparameter."""

    fixed: dict[str, object]
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
    """Find series that differ in one hyperparameter, and the effect of doubling it.

    Args:
        points: a points table.

    Returns:
        For each of "batch_size", "num_steps", "learning_rate" (the other two fixed), "compute" (C
        and η fixed, b and T vary) and "updates" (U fixed, C and η vary): "series": [{"fixed":
        {...}, "points": [{"batch_size", "num_steps", "learning_rate", "score", "score_std",
        "utility_loss"}]}]. Each series has at least two configurations, ordered by the varied
        hyperparameter: b for compute, η for updates. The further fields are the same in each of
        these. After them comes each further field that varies, under its path, with everything else
        fixed. Also "per_doubling": the mean change of the score if that hyperparameter doubles,
        "std_error" (over series) and "series_count". The change is None with a "reason" if there is
        no series, or if the values of a further field are no positive numbers.

    Raises:
        ValueError: as `configuration_means`.

    Source: Hu et al. 2025, §4.1 and Fig. 5.
    """
    # One row of figures per configuration.
    means = configuration_means(points)
    coded = Coded.of(means)
    listed = configurations(means)
    figures = zip(
        means["score"].tolist(),
        means["score_std"].tolist(),
        means["utility_loss"].tolist(),
        strict=True,
    )
    rows = [_point(one, *values) for one, values in zip(listed, figures, strict=True)]
    # For each kind of series, the values that must be equal within a series.
    fields = varied_fields(means)
    fixed: dict[str, list[Hashable]] = {
        **{name: [_values_without(one, name) for one in listed] for name in HYPERPARAMETERS},
        "compute": coded.same_compute.tolist(),
        "updates": coded.same_updates.tolist(),
        **{path: [_values_without(one, path) for one in listed] for path in fields},
    }
    # Group the configurations into series, and keep those with at least two values of the varied
    # hyperparameter.
    result: dict[str, Effect] = {}
    for name, keys in fixed.items():
        moving = MOVING.get(name, name)
        of_group: dict[Hashable, list[int]] = {}
        for at, key in enumerate(keys):
            if moving_value(rows[at], moving) is not UNSET:
                of_group.setdefault(key, []).append(at)
        series: list[Series] = []
        for group in of_group.values():
            order = sorted(group, key=lambda at: (*_in_order(moving_value(rows[at], moving)), at))
            if len({_in_order(moving_value(rows[at], moving)) for at in order}) > 1:
                series.append(
                    {"fixed": _fixed(name, listed[order[0]]), "points": [rows[at] for at in order]}
                )
        result[name] = {"series": series, **_per_doubling(series, moving)}
    return result


def moving_value(point: SeriesPoint, moving: str) -> object:
    """Return a configuration's value of a hyperparameter, or of a further field by its path."""
    return point.get(moving, point.get("settings", {}).get(moving, UNSET))


def _in_order(value: object) -> tuple[float, str]:
    """Return what sorts the values of one series: numbers by size, then others by their text."""
    # A bool is an int to Python, but not a number here.
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (float(value), "")
    return (math.inf, value_in_words(value))


def _values_without(one: Configuration, name: str) -> Hashable:
    """Return everything that a configuration sets but one hyperparameter or further field."""
    fields = {path: value for path, value in one.settings.items() if path != name}
    return (*(getattr(one, other) for other in HYPERPARAMETERS if other != name), Settings(fields))


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


def _fixed(name: str, one: Configuration) -> dict[str, object]:
    """Return the values that all configurations of a series share."""
    fields = {path: value for path, value in one.settings.items() if path != name}
    if name == "compute":
        return {"compute": one.compute, "learning_rate": one.learning_rate, **fields}
    if name == "updates":
        return {"updates": float(one.updates), **fields}
    return {**{other: getattr(one, other) for other in HYPERPARAMETERS if other != name}, **fields}


def _per_doubling(series: list[Series], moving: str) -> Doubling:
    """Return the mean over series of the least-squares slope of the score on log2 of `moving`."""
    effect: Doubling = {"per_doubling": None, "std_error": None, "series_count": len(series)}
    if not series:
        return effect | {"reason": f"no two configurations differ in {moving} alone"}
    values = [[moving_value(point, moving) for point in one["points"]] for one in series]
    if not all(is_numeric(own) and min(map(float, own)) > 0 for own in values):  # type: ignore[arg-type]  # numbers
        reason = f"the values of {moving} are no positive numbers, so they cannot double"
        return effect | {"reason": reason}
    # One slope per series, because two series may differ in level for other reasons.
    slopes = []
    for one, own in zip(series, values, strict=True):
        x = np.log2(np.array(own, dtype=np.float64))
        y = np.array([float(p["score"]) for p in one["points"]])
        slopes.append(float(((x - x.mean()) * y).sum() / ((x - x.mean()) ** 2).sum()))
    effect["per_doubling"] = float(np.mean(slopes))
    if len(slopes) < 2:
        return effect | {"reason": "std_error needs two series"}
    return effect | {"std_error": std(np.array(slopes)) / math.sqrt(len(slopes))}

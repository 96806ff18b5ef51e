"""The results of a search, as Optuna takes them: two objectives, and the excess over each bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from raydp.analysis.statistics.noise import upper_limit
from raydp.analysis.tables.points import (
    check_points,
    column_means,
    configuration_means,
    configurations,
)
from raydp.analysis.tables.utility_filter import within
from raydp.search_spaces import Configuration
from raydp.sweep.search import Goal

COMPUTE = "compute"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The result of a finished configuration, for the study.

    Attributes:
        utility_loss, score: means over the configuration's seeds.
        exceeds: name of a bound -> by how much it is exceeded, in the bound's unit; at most 0 if
            the bound is kept.
    """

    utility_loss: float
    score: float
    exceeds: Mapping[str, float]


def observations_of(points: pd.DataFrame, goal: Goal) -> dict[Configuration, Observation]:
    """Return each finished configuration's objectives and excess over bounds, in table order."""
    points = check_points(points)
    means = configuration_means(points)
    loss, score = (
        means["utility_loss"].to_numpy(dtype=np.float64),
        means["score"].to_numpy(dtype=np.float64),
    )
    # Optuna reads a positive excess as infeasible, and 0 or less as a bound that is kept.
    exceeds = {}
    threshold = np.full_like(loss, goal.threshold(loss.min(keepdims=True))[0])
    # `within` allows for rounding, so a loss that it accepts has no positive excess.
    if np.isfinite(threshold).all():
        exceeds["utility_loss"] = np.where(
            within(loss, threshold), np.minimum(loss - threshold, 0), loss - threshold
        )
    if goal.max_score is not None:
        # The selection bounds the upper confidence limit of the score, so the search does too.
        exceeds["score"] = upper_limit(points, means, None)[0] - goal.max_score
    for column, bound in goal.at_most.items():
        if column == COMPUTE:
            exceeds[column] = np.array(
                [c.compute - bound for c in configurations(means)], dtype=np.float64
            )
        elif column in points:
            exceeds[column] = column_means(points, column) - bound
    observations = {
        configuration: Observation(
            utility_loss=float(loss[at]),
            score=float(score[at]),
            # a bound that one configuration says nothing about counts as kept: Optuna wants the
            # same bounds of all
            exceeds={
                name: float(np.nan_to_num(by[at], posinf=1e9, neginf=-1e9))
                for name, by in exceeds.items()
                if not np.isnan(by).all()
            },
        )
        for at, configuration in enumerate(configurations(means))
    }
    # The study records results in the order of the table, which is the order of the runs.
    return {
        configuration: observations[configuration]
        for configuration in dict.fromkeys(configurations(points))
    }

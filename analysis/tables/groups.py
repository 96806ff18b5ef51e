"""The groups of a points table's rows by the values of a column."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from raydp.search_spaces.names import familiar, unknown_name

_SAME = 0.01


def split_by(points: pd.DataFrame, column: str) -> dict[str, pd.DataFrame]:
    """Split a table's rows by the values of a column, in ascending order.

    Numbers whose successive differences are below 1 % form one group, named after the largest. The
    reason is that the reached ε of runs with one target differ in their last digits.

    Raises:
        ValueError: there is no such column, or a row has no value in it.
    """
    if column not in points.columns:
        raise ValueError(unknown_name("by: the column", column, familiar(points)))
    if points[column].isna().any():
        raise ValueError(
            f"{column} must be given in every row to group by it, got an empty one. Fill it."
        )
    if not pd.api.types.is_float_dtype(points[column]):
        return {str(value): part for value, part in points.groupby(column, sort=True)}
    # Neighbours within 1 % are one value, such as an ε that calibration reaches only nearly.
    values = np.unique(points[column].to_numpy(dtype=np.float64))
    apart = np.diff(values) > _SAME * np.maximum(np.abs(values[1:]), np.abs(values[:-1]))
    group = np.concatenate([[0], np.cumsum(apart)])[np.searchsorted(values, points[column])]
    parts = [points[group == g] for g in range(group.max() + 1)]
    # A group of nearly equal numbers is named with three digits.
    return {
        f"{part[column].max():.{'3' if part[column].nunique() > 1 else '12'}g}": part
        for part in parts
    }


def of_each(
    groups: Mapping[str, pd.DataFrame], figure: Callable[[pd.DataFrame], Mapping[str, object]]
) -> dict[str, Mapping[str, object]]:
    """Return a figure of each group's points, or {"reason"} where a group has none.

    Raises:
        ValueError: no group has one.
    """
    answers, reasons = dict[str, Mapping[str, object]](), list[ValueError]()
    for name, points in groups.items():
        try:
            answers[name] = figure(points)
        except ValueError as error:
            reasons.append(error)
            answers[name] = {"reason": str(error)}
    if len(reasons) == len(answers):
        raise reasons[0]
    return answers

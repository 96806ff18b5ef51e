"""The score that a points table uses, and each model's scores by secret."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.tables.columns import LARGEST, numbers
from raydp.search_spaces.names import unknown_name

PREFIX, ERROR = "score.", ".std_error"
LOGARITHMS = {"exposure": 2.0, "logprob": math.e}
"""Built-in score that is a logarithm -> its base. Differences are meaningful, ratios are not.

A table does not tell whether its score is a logarithm, so the name must.
"""
RATES = {
    *("air", "extraction", "mia", "mia_of_reference", "mia_outputs", "mia_outputs_of_reference"),
    *("vmr", "vmr_exact", "vmr_greedy", "vmr_near", "vmr_text"),
}
"""Built-in scores that are at most 1."""
SECRET_COLUMNS = ["run_id", "score", "secret_id", "value"]


def controls_of(score: str) -> str:
    """Return the name under which secrets.parquet lists the controls that a score subtracts."""
    return f"{score}.controls"


def base_of(name: str | None, declared: float | None = None) -> float | None:
    """Return the base of a logarithmic score, declared or of its name; None for another score."""
    return LOGARITHMS.get(name or "") if declared is None else declared


def highest(name: str | None, measured: pd.Series) -> float:
    """Return the largest value of a score: 1 for a built-in rate whose means do not exceed 1."""
    # A figure above 1 shows that a score of this name is not the built-in rate.
    return 1.0 if name in RATES and measured.max() <= 1 else math.inf


def score_names(points: pd.DataFrame) -> list[str]:
    """Return the names of the scores that have a column in the table, in the table's order."""
    columns = [str(c) for c in points if str(c).startswith(PREFIX) and not str(c).endswith(ERROR)]
    return [column.removeprefix(PREFIX) for column in columns]


def score_values(points: pd.DataFrame, name: str) -> pd.Series:
    """Return one of the table's scores as doubles, NaN if a run has none.

    Raises:
        ValueError: a value is not a number, or is too large for the analyses to square.
    """
    column = points[PREFIX + name].reset_index(drop=True)
    values = numbers(column)
    large = np.isfinite(values) & (np.abs(values) > LARGEST)
    if large.any():
        at = int(large.argmax())
        raise ValueError(
            f"{PREFIX}{name} must be at most {LARGEST:g} in size, got another value in row "
            f"{at + 1} of those that finished. Correct the row, or leave it out."
        )
    return pd.Series(values, index=points.index, name=PREFIX + name)


def own_score(points: pd.DataFrame) -> str | None:
    """Return the name of the score that equals the column `score`, or None if there is none."""
    for name in score_names(points):
        values = pd.to_numeric(points[PREFIX + name], errors="coerce")
        # The table does not name the score of its column `score`, so compare the values.
        if values.notna().all() and (values == points["score"]).all():
            return name
    return None


def with_score(points: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the table with another of its scores in the column `score`.

    Raises:
        ValueError: there is no such score, or it is not measured for every finished row.
    """
    known = score_names(points)
    if name not in known:
        raise ValueError(unknown_name("score", name, known))
    return points.assign(score=_complete(points, score_values(points, name), name))


def with_worst_case(points: pd.DataFrame, secrets: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the table with each model's largest value over its secrets in the column `score`.

    Args:
        points: a points table with run_id.
        secrets: the content of the sweep's secrets.parquet.
        name: name of the score.

    Raises:
        ValueError: the score has no values by secret, or lacks them for a finished row.

    Source: Hu et al. 2025, App. F.
    """
    values, _ = by_secret(points, secrets, name)
    # A model with a missing value has no known worst case.
    return points.assign(score=_complete(points, values.max(axis=1, skipna=False), name))


def by_secret(
    points: pd.DataFrame, secrets: pd.DataFrame, name: str
) -> tuple[pd.DataFrame, pd.Series]:
    """Return one score of every model and secret.

    Returns:
        [model, secret] values with the index of points and the names of the secrets as columns,
        null if a model has no value. Then [secret] the number of training examples that contain the
        secret, null if the table lacks it.

    Raises:
        ValueError: the table has no column run_id, or the score has no values by secret.
    """
    # Name the faults of a user's file before pandas fails on them.
    if "run_id" not in points.columns:
        raise ValueError(
            "points must have the column run_id for figures by secret, got none. Use a sweep's own "
            "table."
        )
    missing = [column for column in SECRET_COLUMNS if column not in secrets.columns]
    if missing:
        raise ValueError(
            f"secrets must have the columns {', '.join(SECRET_COLUMNS)}, got none of {missing}. "
            "Use the sweep's own secrets.parquet."
        )
    rows = secrets[secrets["score"] == name]
    if rows.empty:
        known = [score for score in score_names(points) if (secrets["score"] == score).any()]
        raise ValueError(
            f"score must have values by secret, got {name!r} without. Those that have: "
            f"{', '.join(known) or 'none'}."
        )
    if not pd.api.types.is_numeric_dtype(rows["value"]):
        raise ValueError(
            f"secrets must have numbers in the column value, got {rows['value'].dtype}. Correct "
            "the file."
        )
    if rows.duplicated(["run_id", "secret_id"]).any():
        raise ValueError(
            "secrets must have one value of a score for each run and secret, got two. Correct the "
            "file."
        )
    # The rows follow the points. A model without values has NaN.
    table = rows.pivot(index="run_id", columns="secret_id", values="value")
    values = table.reindex(points["run_id"]).set_axis(points.index)
    counts = (
        rows.groupby("secret_id")["count"].first() if "count" in rows else pd.Series(dtype="Int64")
    )
    return values, counts.reindex(values.columns)


def as_array(values: pd.DataFrame) -> NDArray[np.float64]:
    """Return [model, secret] values as a numeric array."""
    return values.to_numpy(dtype=np.float64)


def _complete(points: pd.DataFrame, values: pd.Series, name: str) -> pd.Series:
    """Return the values. Raise ValueError if a finished row has none."""
    finished = (
        points["status"] == "finished"
        if "status" in points
        else pd.Series(True, index=points.index)
    )
    lacking = int((values.isna() & finished).sum())
    if lacking:
        raise ValueError(
            f"score {name!r} must be measured for every finished row, got {lacking} of "
            f"{int(finished.sum())} without. Run `raydp score SWEEP` for it again."
        )
    return values

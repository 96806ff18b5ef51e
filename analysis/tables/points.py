"""The points table: one row per (configuration, seed), checked once; configuration means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.tables.columns import KEY, LARGEST, SETTINGS, numbers, with_settings
from raydp.analysis.tables.files import numbered, place_of, read_table
from raydp.analysis.tables.rounded_means import rounded_means
from raydp.search_spaces.configuration import HYPERPARAMETERS, Configuration
from raydp.search_spaces.configuration import exact as exact
from raydp.search_spaces.names import familiar, require_columns, unknown_name
from raydp.search_spaces.settings import Settings

REQUIRED_COLUMNS = [*HYPERPARAMETERS, "seed", "utility_loss", "score"]
OPTIONAL_NUMBERS = ("epsilon", "delta", "base_utility_loss")
"""Columns of numbers that a table may lack, and whose cells may be null."""
_INTEGERS = {"batch_size", "num_steps", "seed"}
_REALS = ["learning_rate", "utility_loss", "score"]
_POSITIVE = set(HYPERPARAMETERS)
_OTHER_ROWS = "other_rows"
_STATUSES = {"failed", "stopped", "pending", "running", "skipped", "unknown"}
"""Known statuses of unfinished rows. Any other word may be private text and is not repeated."""
_ROUNDING = 2.0**-40
"""The relative rounding of a mean of a few thousand values that were added in another order."""
_LARGEST_INTEGER = 2**53
"""The largest magnitude up to which doubles represent all integers."""


def load_points(path: str | Path, *, by: str | None = None, scored: bool = True) -> pd.DataFrame:
    """Read a points table.

    Args:
        path: a .csv or .parquet file with the columns batch_size, num_steps, learning_rate, seed,
            utility_loss (nats, lower is better) and score (higher is more leakage); other columns
            are kept. If there is a column `status`, only rows with "finished" are used. A column
            `settings` has the further fields that a configuration sets.
        by: a column that splits the table into groups, each a points table of its own (`split_by`).
        scored: as in `check_points`.

    Returns:
        The finished rows in the file's order, checked as by `check_points`.

    Raises:
        ValueError: there is no such file, the extension is unknown, or `check_points` refuses the
            table.
    """
    return check_points(read_points(path), by=by, scored=scored)


def read_points(path: str | Path, *, content: str | None = None) -> pd.DataFrame:
    """Read a points table that `check_points` has still to check.

    Args:
        path: the file.
        content: the content of a CSV file that is not read from the disk.
    """
    path = Path(path)
    if path.suffix not in (".csv", ".parquet"):
        raise ValueError(
            f"points must be a .csv or .parquet file, got {str(path)!r}. Convert it, or rename it."
        )
    if content is None and not path.is_file():
        raise ValueError(f"points must be an existing file, got {str(path)!r}. Check the path.")
    # The real columns are read as text, because pandas' parser does not promise the nearest double.
    table = read_table(path, as_text=[*_REALS, SETTINGS], content=content)
    for name in table.columns:
        if str(name).startswith("score.") and not pd.api.types.is_numeric_dtype(table[name]):
            table[name] = numbers(table[name])
    return table


def save_points(points: pd.DataFrame, path: str | Path) -> None:
    """Write a points table so that `load_points` reads the same values.

    Raises:
        ValueError: the extension is neither .csv nor .parquet, or there is no such folder.
    """
    path = Path(path)
    if not path.parent.is_dir():  # pandas would raise a plain OSError
        raise ValueError(
            f"points must go into an existing folder, got {str(path)!r}. Create it, or correct the "
            "path."
        )
    if SETTINGS in points.columns and not points[SETTINGS].fillna("").astype(bool).any():
        points = points.drop(columns=SETTINGS)  # `load_points` adds it again
    if path.suffix == ".parquet":
        with path.open("wb") as stream:  # neither pandas nor pyarrow opens every path
            points.to_parquet(stream, index=False)
    elif path.suffix == ".csv":
        points.to_csv(path.absolute(), index=False)
    else:
        raise ValueError(
            f"points must go to a .csv or .parquet file, got {str(path)!r}. Rename it."
        )


def check_points(
    table: pd.DataFrame, *, by: str | None = None, scored: bool = True
) -> pd.DataFrame:
    """Validate a points table and keep its finished rows.

    Args:
        table: the table to check.
        by: as in `load_points`.
        scored: whether every finished row must have a score. If not, a table whose finished rows
            have none is allowed. Its column `score` is NaN, and is added if it is missing.

    Returns:
        A new table: batch_size, num_steps and seed as integers, learning_rate, utility_loss and
        score as float64, and settings as text, empty where a configuration sets no further field. A
        double keeps every decimal of at most 15 digits, so a learning rate still equals the written
        decimal (see `exact`). Hyperparameters may be null, for methods without b, T and η.
        Functions that need them refuse such rows.

    Raises:
        ValueError: missing columns, no finished rows, text or NaN or infinity in place of a number,
            values that are not positive, or a (configuration, seed) that occurs twice. The message
            gives the row, or its line in a CSV file.
    """
    if not scored and "score" not in table.columns:
        table = table.assign(score=np.nan)
    require_columns("points", REQUIRED_COLUMNS, table.columns)
    if len(table) == 0:
        raise ValueError("points must have at least one row, got none. Run the sweep first.")
    # Only finished rows are checked: a failed run's cells may be empty.
    points, others = _finished(numbered(table))
    measured = not points["score"].isna().all()
    if scored and not measured:
        raise ValueError(
            "score must be measured in the finished rows, got none. Measure one by `raydp score`, "
            "or select by a rule that needs none, such as procedure."
        )
    if not measured:
        points["score"] = np.nan
    for name in REQUIRED_COLUMNS if measured else REQUIRED_COLUMNS[:-1]:
        column = points[name]
        # A column that is right already is not copied.
        if (checked := check_column(column)) is not column:
            points[name] = checked
    for name in OPTIONAL_NUMBERS:
        if name in points.columns:
            points[name] = numbers(points[name])
    points = with_settings(points)
    _refuse_duplicates(points, by)
    # attrs survive copies, so that later warnings can tell how many rows were left out.
    points.attrs[_OTHER_ROWS] = others
    return points.reset_index(drop=True)


def other_rows(points: pd.DataFrame) -> dict[str, int]:
    """Return how many unfinished rows of each status were left out when the table was checked."""
    counts: Mapping[str, int] = points.attrs.get(_OTHER_ROWS, {})
    return dict(counts)


def configuration_means(points: pd.DataFrame, *, scored: bool = True) -> pd.DataFrame:
    """Return one row per configuration with averages over its seeds.

    All analyses start from these averages.

    Args:
        points: a points table, which is checked here.
        scored: as in `check_points`. The means and errors of scores that were not measured are NaN.

    Returns:
        Rows sorted by (T, b, η, settings), with batch_size, num_steps, learning_rate, settings and
        num_seeds. utility_loss and score are means, correctly rounded, so that equal samples give
        equal means. utility_loss_std and score_std have ddof = 1 and are NaN with one seed.
        base_utility_loss is a mean, if the table has it. model_uri is the URI of the
        configuration's first listed row, None if there is none.

    Raises:
        ValueError: as `check_points`, or a finished row without batch_size, num_steps or
            learning_rate.
    """
    points = require_hyperparameters(points, scored=scored)
    order, starts = _by_configuration(points)
    columns = {
        name: points[name].to_numpy()[order[starts]] for name in (*HYPERPARAMETERS, SETTINGS)
    }
    columns["num_seeds"] = np.diff(starts, append=len(points))
    # Correctly rounded, so that equal samples tie exactly, whatever the order of their rows.
    for name in ("utility_loss", "score"):
        columns[name], columns[f"{name}_std"] = _mean_and_std(
            points[name].to_numpy()[order], starts
        )
    if "base_utility_loss" in points.columns:
        columns["base_utility_loss"] = rounded_means(
            numbers(points["base_utility_loss"])[order], starts
        )
    # The first listed seed's model stands for its configuration.
    uris = (
        points["model_uri"].to_numpy()[order[starts]]
        if "model_uri" in points.columns
        else [None] * len(starts)
    )
    columns["model_uri"] = np.array(
        [None if pd.isna(uri) else str(uri) for uri in uris], dtype=object
    )
    objects = {SETTINGS: "object", "model_uri": "object"}  # pandas would make strings of them
    means = pd.DataFrame(
        {name: pd.Series(values, dtype=objects.get(name)) for name, values in columns.items()}
    )
    means.attrs = dict(points.attrs)
    return means


def column_means(points: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """Return a column's means over seeds, [m], as `configuration_means` is sorted; null is NaN."""
    order, starts = _by_configuration(points)
    return rounded_means(numbers(points[column])[order], starts)


def _by_configuration(points: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return [n] the rows' stable order by (T, b, η, settings), and [m] where each begins."""
    key = [points[name].to_numpy() for name in KEY if name in points]
    # lexsort sorts by its last key first.
    order = np.lexsort(key[::-1])
    changed = np.any([column[order[1:]] != column[order[:-1]] for column in key], axis=0)
    return order, np.concatenate([[0], np.flatnonzero(changed) + 1])


def require_hyperparameters(points: pd.DataFrame, *, scored: bool = True) -> pd.DataFrame:
    """Check a table, and check that every finished row has (b, T, η).

    Raises:
        ValueError: as `check_points`, or rows without b, T or η. The message tells how many.
    """
    points = check_points(points, scored=scored)
    nulls = int(np.any([points[name].isna() for name in HYPERPARAMETERS], axis=0).sum())
    if nulls:
        raise ValueError(
            "batch_size, num_steps and learning_rate must be given in every finished row, got "
            f"{nulls} of {len(points)} rows without. Keep the rows of methods that have them."
        )
    return points


def configurations(table: pd.DataFrame) -> list[Configuration]:
    """Return the rows of a table as configurations."""
    columns = (table[name].tolist() for name in HYPERPARAMETERS)
    own = map(Settings.parse, with_settings(table)[SETTINGS])
    return [
        Configuration(
            batch_size=int(b), num_steps=int(t), learning_rate=float(rate), settings=settings
        )
        for b, t, rate, settings in zip(*columns, own, strict=True)
    ]


def _finished(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return the finished rows, and the number of other rows by status, earlier checks included."""
    others = other_rows(table)
    if "status" not in table.columns:
        return table.copy(), others
    status = table["status"].fillna("unknown").astype(str)
    finished = status == "finished"
    # A status that is not known may be private text, so it is counted without its name.
    for name, count in (
        status[~finished].where(status.isin(_STATUSES), "unknown").value_counts().items()
    ):
        others[str(name)] = others.get(str(name), 0) + int(count)
    if not finished.any():
        counts = ", ".join(f"{count} {name}" for name, count in sorted(others.items()))
        raise ValueError(f"points must have a finished row, got {counts}. Resume the sweep.")
    return table[finished].copy(), others


def check_column(column: pd.Series) -> pd.Series:
    """Return a column as numbers, after checking the rule of its name.

    Only hyperparameters may be null.

    Raises:
        ValueError: a value violates the rule. The message names the column and the row.
    """
    name = str(column.name)
    if name == "seed" and column.dtype == np.int64:
        return column  # a seed is a label, and one of 64 bits would lose digits as a double
    values = numbers(column)
    null = column.isna().to_numpy()
    # One rule at a time, so that the message names the rule that is broken.
    rules = [("be a finite number", np.isfinite(values) | (null if name in _POSITIVE else False))]
    if name in _INTEGERS:
        rules.append(("be a whole number", null | (values == np.floor(values))))
        rules.append(
            (
                "be a whole number of at most 2^53 in size",
                null | (np.abs(values) <= _LARGEST_INTEGER),
            )
        )
    if name in _POSITIVE:
        rules.append(("be > 0", null | (values > 0)))
    if name not in _INTEGERS:
        rules.append((f"be at most {LARGEST:g} in size", null | (np.abs(values) <= LARGEST)))
    for rule, holds in rules:
        if not holds.all():
            at = int(np.argmin(holds))
            raise ValueError(
                f"{name} must {rule} in every finished row, got another value in "
                f"{place_of(column, at)}. Correct the row, or leave it out."
            )
    # Tables are checked often, so a column that is right already is not copied.
    if column.dtype == (np.int64 if name in _INTEGERS else np.float64):
        return column
    if name not in _INTEGERS:
        return pd.Series(values, index=column.index, name=name)
    return pd.Series(values, index=column.index, name=name).astype(
        "Int64" if null.any() else "int64"
    )


def largest(points: pd.DataFrame, column: str) -> float | None:
    """Return a column's largest value, such as epsilon; None if it or a value is missing."""
    # If a value is unreadable, the others bound nothing. "inf" is a number.
    values = (
        pd.to_numeric(points[column], errors="coerce")
        if column in points.columns
        else pd.Series([math.nan])
    )
    return None if values.isna().any() else float(values.max())


def _refuse_duplicates(points: pd.DataFrame, by: str | None) -> None:
    """Raise ValueError if a (configuration, seed) occurs twice in a table or in one group."""
    if by is not None and by not in points.columns:
        raise ValueError(unknown_name("by: the column", by, familiar(points)))
    identity = [*KEY, "seed", *([] if by is None else [by])]
    if by is None:  # much faster than pandas; rows without a hyperparameter are no duplicates
        rows = list(zip(*(points[name].tolist() for name in identity), strict=True))
        if len(set(rows)) == len(rows):
            return
    given = points[points[HYPERPARAMETERS].notna().all(axis=1)]
    repeated = given[given.duplicated(identity)]
    if len(repeated):
        raise ValueError(
            "points must have one row per (configuration, seed), got the one of "
            f"{place_of(repeated, 0)} more than once. Keep one method, one task and one epsilon in "
            "a table, or name the column that tells them apart (--by)."
        )


def _mean_and_std(
    values: NDArray[np.float64], starts: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return each slice's mean and std (ddof = 1). A deviation within the rounding is 0."""
    sizes, means = np.diff(starts, append=len(values)), rounded_means(values, starts)
    deviations = values - np.repeat(means, sizes)
    largest = np.maximum.reduceat(np.abs(deviations), starts)
    deviations[
        np.repeat(largest <= _ROUNDING * np.maximum.reduceat(np.abs(values), starts), sizes)
    ] = 0.0
    # Dividing by a power of two loses no digit, and keeps squares from vanishing.
    unit = np.ldexp(1.0, np.frexp(np.where(largest > 0, largest, 1.0))[1])
    squares = np.add.reduceat((deviations / np.repeat(unit, sizes)) ** 2, starts)
    return means, unit * np.sqrt(
        np.divide(squares, sizes - 1, out=np.full(len(sizes), np.nan), where=sizes > 1)
    )

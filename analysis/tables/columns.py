"""The columns of a points table: their names, and their cells as numbers and as settings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.tables.files import place_of
from raydp.search_spaces.names import cell_in_words, familiar
from raydp.search_spaces.settings import Settings

SETTINGS = "settings"
"""The column of the further fields that a configuration sets, each cell as by `Settings.text`.

In a table without the column, configurations set none.
"""
KEY = ["num_steps", "batch_size", "learning_rate", SETTINGS]
"""The columns that tell configurations apart, in the order of rows and of the first among ties."""
LARGEST = 1e100
"""Largest magnitude of losses and scores: products of larger values are no longer doubles."""


def with_settings(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose column `settings` is text in its one form.

    The column is added if there is none.

    Raises:
        ValueError: a cell is not the JSON of some fields. The message gives the place.
    """
    if SETTINGS not in table.columns:
        return table.assign(**{SETTINGS: pd.Series("", index=table.index, dtype=object)})
    cells = table[SETTINGS].tolist()
    texts = [_one_form(cell, at, table) for at, cell in enumerate(cells)]
    if texts == cells and table[SETTINGS].dtype == object:
        return table
    return table.assign(**{SETTINGS: pd.Series(texts, index=table.index, dtype=object)})


def _one_form(cell: object, at: int, table: pd.DataFrame) -> str:
    """Return a cell of the column `settings` in the form that `Settings.text` gives."""
    if (
        cell is None
        or cell == ""
        or (isinstance(cell, float) and math.isnan(cell))
        or cell is pd.NA
    ):
        return ""
    try:
        return Settings.parse(str(cell)).text
    except ValueError as error:
        raise ValueError(f"{error} It is in {place_of(table, at)}.") from error


def numbers(column: pd.Series) -> NDArray[np.float64]:
    """Return values as doubles, null as NaN.

    Single precision is converted by its shortest decimal: 0.001 stays 0.001.

    Raises:
        ValueError: a value is not a number. The message names the column and the row.
    """
    if column.dtype in (np.float64, np.int64):
        return column.to_numpy(dtype=np.float64)
    cells = list(column.array)
    values = [_number(cell) for cell in cells]
    if None in values:
        bad = values.index(None)
        # A name that is not familiar may be private text.
        name = next(iter(familiar([column.name])), "a column of numbers")
        raise ValueError(
            f"{name} must be a number, got {cell_in_words(cells[bad])} in {place_of(column, bad)}. "
            "Correct the row."
        )
    return np.array(values, dtype=np.float64)


def known(value: float) -> float | None:
    """Return a number, None for NaN."""
    return None if math.isnan(value) else value


def _number(cell: Any) -> float | None:
    """Return a cell as a double, NaN for null; None if it holds something else than a number."""
    if not pd.api.types.is_scalar(cell):
        return None
    if pd.isna(cell):
        return math.nan
    try:
        return float(str(cell))
    except ValueError:
        return None

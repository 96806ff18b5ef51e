"""Configurations as numbers: the coordinates of surfaces, regressions and importances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.tables.columns import SETTINGS, with_settings
from raydp.search_spaces.configuration import HYPERPARAMETERS
from raydp.search_spaces.settings import Settings, short_names, value_in_words

Array = NDArray[np.float64]


class _Unset:
    """The type of `UNSET`."""

    def __str__(self) -> str:
        return "not set"


UNSET = _Unset()
"""The value of a field that a configuration does not set. It is not None, which may be set."""


def varied_fields(table: pd.DataFrame) -> dict[str, list[object]]:
    """Return the further fields in which a table's configurations differ: path -> row values."""
    return {
        path: values
        for path, values in fields_of(table).items()
        if len(set(map(level_of, values))) > 1
    }


def fields_of(table: pd.DataFrame) -> dict[str, list[object]]:
    """Return the further fields that a table's configurations set: path -> each row's value."""
    rows = [Settings.parse(text) for text in with_settings(table)[SETTINGS]]
    paths = sorted({path for row in rows for path in row})
    return {path: [row.get(path, UNSET) for row in rows] for path in paths}


def is_numeric(values: Sequence[object]) -> bool:
    """Return whether all values of a field that are set are numbers."""
    given = [value for value in values if value is not UNSET]
    return bool(given) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in given
    )


def level_of(value: object) -> str:
    """Return a value of a field as text, which tells it from other values."""
    return str(UNSET) if value is UNSET else value_in_words(value)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The coordinates of one further field.

    Attributes:
        path: dotted path of the field in the spec.
        levels: the values as text, if each has a coordinate that is 1 there and 0 elsewhere; None
            for a number.
        logarithm: whether the coordinate of a number is its logarithm, because all numbers are
            positive.
        middle: the coordinate of a configuration that does not set the number; None if all set it.
            A second coordinate is then 1 where the number is set, and 0 elsewhere.
    """

    path: str
    levels: tuple[str, ...] | None = None
    logarithm: bool = False
    middle: float | None = None

    @classmethod
    def of(cls, path: str, values: Sequence[object]) -> Axis:
        """Return the axis of the values of a table."""
        if not is_numeric(values):
            return cls(path=path, levels=tuple(dict.fromkeys(sorted(map(level_of, values)))))
        given = np.array([value for value in values if value is not UNSET], dtype=np.float64)
        logarithm = bool((given > 0).all())
        own = np.log(given) if logarithm else given
        return cls(
            path=path,
            logarithm=logarithm,
            middle=float(own.mean()) if len(given) < len(values) else None,
        )

    @property
    def names(self) -> list[str]:
        """Return the names of the coordinates, such as "log method.max_grad_norm"."""
        if self.levels is not None:
            return [f"{self.path} = {level}" for level in self._own_levels]
        return [
            f"log {self.path}" if self.logarithm else self.path,
            *([] if self.middle is None else [self._set]),
        ]

    @property
    def _set(self) -> str:
        return f"{self.path} is set"

    @property
    def _own_levels(self) -> tuple[str, ...]:
        """Return the levels with a coordinate. Of two levels, the second alone tells which."""
        assert self.levels is not None
        return self.levels[1:] if len(self.levels) == 2 else self.levels

    def coordinates(self, values: Sequence[object]) -> Array:
        """Return the coordinates of values, [m, coordinates].

        Raises:
            ValueError: a value is none of the levels, or no number of this axis.
        """
        if self.levels is not None:
            found = [level_of(value) for value in values]
            if unknown := sorted(set(found) - set(self.levels)):
                raise ValueError(
                    f"{self.path} must be a value that was measured ({', '.join(self.levels)}), "
                    f"got {unknown[0]}."
                )
            return np.array([[float(one == level) for level in self._own_levels] for one in found])
        numbers = [self._number(value) for value in values]
        return np.array(numbers, dtype=np.float64).reshape(len(values), -1)

    def _number(self, value: object) -> list[float]:
        # An unset number stands at the mean, so that the coordinate "is set" has its whole effect.
        if value is UNSET and self.middle is not None:
            return [self.middle, 0.0]
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or (self.logarithm and value <= 0)
        ):
            raise ValueError(
                f"{self.path} must be a {'positive ' if self.logarithm else ''}number like the "
                f"measured ones, got {level_of(value)}."
            )
        own = float(np.log(value)) if self.logarithm else float(value)
        return [own] if self.middle is None else [own, 1.0]


def _pattern(values: Sequence[object]) -> tuple[str, ...]:
    """Return which of two levels each row has, whatever the levels are called."""
    levels = list(map(level_of, values))
    return tuple("first" if level == levels[0] else "other" for level in levels)


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """The coordinates of configurations: ln b, ln T, ln η, then those of varied further fields.

    A positive number counts by its logarithm, another number as it is, and any other value by one
    coordinate for each value, which is 1 there and 0 elsewhere.

    Attributes:
        axes: the axes of the further fields.
    """

    axes: tuple[Axis, ...] = ()

    @classmethod
    def of(cls, table: pd.DataFrame) -> Coordinates:
        """Return the coordinates that tell the configurations of a table apart, each once."""
        axes: list[Axis] = []
        marks = set[tuple[str, ...]]()
        for path, values in varied_fields(table).items():
            axis = Axis.of(path, values)
            pattern = (
                _pattern(values) if axis.levels is not None and len(axis.levels) == 2 else None
            )
            # Two fields that change together count once.
            if pattern is None or pattern not in marks:
                axes.append(axis)
            marks |= set() if pattern is None else {pattern}
        return cls(axes=tuple(axes))

    @property
    def further(self) -> list[str]:
        """Return the names of the coordinates after the first three."""
        return [name for axis in self.axes for name in axis.names]

    @property
    def size(self) -> int:
        """Return the number of coordinates."""
        return len(HYPERPARAMETERS) + len(self.further)

    def values(self, table: pd.DataFrame) -> Array:
        """Return the coordinates of a table's rows, [m, size].

        Raises:
            ValueError: a further field has a value that no configuration of the coordinates' own
                table has.
        """
        first: Array = np.log(table[HYPERPARAMETERS].to_numpy(dtype=np.float64))
        if not self.axes:
            return first
        rows: list[Mapping[str, object]] = [
            Settings.parse(text) for text in with_settings(table)[SETTINGS]
        ]
        return np.column_stack(
            [
                first,
                *(
                    axis.coordinates([row.get(axis.path, UNSET) for row in rows])
                    for axis in self.axes
                ),
            ]
        )

    def against_first(self, table: pd.DataFrame) -> dict[str, Array]:
        """Return the further coordinates that a regression with an intercept can tell apart.

        Returns:
            name -> [m] coordinates. The first of several levels has none: the others are compared
            with it. A coordinate that ln b, ln T, ln η and the coordinates before it determine has
            none either.
        """
        values = self.values(table)
        first = {
            axis.names[0] for axis in self.axes if axis.levels is not None and len(axis.names) > 1
        }
        kept = [np.ones(len(values)), *values[:, : len(HYPERPARAMETERS)].T]
        found: dict[str, Array] = {}
        for name, column in zip(self.further, values[:, len(HYPERPARAMETERS) :].T, strict=True):
            # A column that the columns before it determine would make the regression singular.
            if name not in first and _rank([*kept, column]) > _rank(kept):
                kept.append(column)
                found[name.replace("log ", "log_", 1)] = column
        return found


def _rank(columns: list[Array]) -> int:
    """Return the number of linearly independent columns, each on its own scale."""
    scaled = [column / (float(np.abs(column).max()) or 1.0) for column in columns]
    return int(np.linalg.matrix_rank(np.column_stack(scaled)))


def further_columns(table: pd.DataFrame) -> dict[str, list[str]]:
    """Return a table's further fields for people: short name -> texts, a dash where not set."""
    rows = [Settings.parse(text) for text in with_settings(table)[SETTINGS]]
    names = short_names(sorted({path for row in rows for path in row}))
    return {
        name: [value_in_words(row[path]) if path in row else "–" for row in rows]
        for path, name in names.items()
    }

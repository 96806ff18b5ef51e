"""The section on the configurations of a sweep, and which of them are run."""

from __future__ import annotations

from math import prod
from typing import Annotated

from pydantic import (
    Field,
    field_validator,
    model_validator,
)

from raydp.plugins.described import PluginField
from raydp.privacy.accounting.events import MAX_NUM_STEPS
from raydp.spec.sections.base import AtLeastOne, Positive, Section
from search_spaces.configuration import HYPERPARAMETERS

Steps = Annotated[int, Field(ge=1, le=MAX_NUM_STEPS)]
MAX_CONFIGURATIONS = 100_000
"""The largest number of combinations of a grid. Each is calibrated, named and trained."""


class SpaceSpec(Section):
    """The configurations: a named space, a list of points, or a grid of three lists; and which of them are run."""

    name: str | None = None
    """A named space, such as tofu-1; `raydp spaces list` prints the known names."""
    points: Annotated[tuple[tuple[AtLeastOne, Steps, Positive], ...], Field(min_length=1)] | None = None
    """A list of configurations [b, T, η]; each may be a mapping with the three names instead."""
    batch_size: Annotated[tuple[AtLeastOne, ...], Field(min_length=1)] | None = None
    """Grid: the expected batch sizes b, in units of privacy."""
    num_steps: Annotated[tuple[Steps, ...], Field(min_length=1)] | None = None
    """Grid: the numbers of steps T."""
    learning_rate: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = None
    """Grid: the learning rates η."""
    search: PluginField | None = None
    """A strategy that runs a part of the configurations, by name or with its parameters. By default all are run."""

    @field_validator("points", mode="before")
    @classmethod
    def _points_as_rows(cls, points: object) -> object:
        """Convert points that are mappings to rows [b, T, η]."""
        keys = tuple(HYPERPARAMETERS)
        if not isinstance(points, list | tuple):
            return points
        return [tuple(p[k] for k in keys) if isinstance(p, dict) and set(p) == set(keys) else p for p in points]

    @model_validator(mode="after")
    def _one_kind(self) -> SpaceSpec:
        grid = (self.batch_size, self.num_steps, self.learning_rate)
        kinds = [self.name is not None, self.points is not None, any(axis is not None for axis in grid)]
        missing = [name for name, axis in zip(HYPERPARAMETERS, grid, strict=True) if axis is None]
        if sum(kinds) != 1 or (kinds[2] and missing):
            lacking = f"This grid has no {' and no '.join(missing)}." if kinds[2] and missing else "Give exactly one."
            raise ValueError(
                "must be {name: ...}, {points: [[b, T, η], ...]} or the three lists batch_size, num_steps and "
                f"learning_rate. {lacking}"
            )
        size = prod(len(axis or ()) for axis in grid)
        if size > MAX_CONFIGURATIONS:
            raise ValueError(
                f"must have at most {MAX_CONFIGURATIONS:,} configurations, got {size:,} combinations of batch_size, "
                "num_steps and learning_rate. Give fewer values, or a list of points."
            )
        return self

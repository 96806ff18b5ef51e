"""The configurations, and how one of them is chosen."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    field_validator,
    model_validator,
)

from raydp.sections.base import AtLeastOne, Positive, Section


class SpaceSpec(Section):
    """The configurations: a named space, a list of points, or a grid of three lists."""

    name: str | None = None
    points: Annotated[tuple[tuple[AtLeastOne, AtLeastOne, Positive], ...], Field(min_length=1)] | None = None
    batch_size: Annotated[tuple[AtLeastOne, ...], Field(min_length=1)] | None = None
    num_steps: Annotated[tuple[AtLeastOne, ...], Field(min_length=1)] | None = None
    learning_rate: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = None

    @field_validator("points", mode="before")
    @classmethod
    def _points_as_rows(cls, points: Any) -> Any:
        """A point is [b, T, η] or a mapping with the three names."""
        keys = ("batch_size", "num_steps", "learning_rate")
        if not isinstance(points, list | tuple):
            return points
        return [tuple(p[k] for k in keys) if isinstance(p, dict) and set(p) == set(keys) else p for p in points]

    @model_validator(mode="after")
    def _one_kind(self) -> SpaceSpec:
        grid = (self.batch_size, self.num_steps, self.learning_rate)
        kinds = [self.name is not None, self.points is not None, any(axis is not None for axis in grid)]
        if sum(kinds) != 1 or (kinds[2] and any(axis is None for axis in grid)):
            raise ValueError(
                "must be {name: ...}, {points: [[b, T, η], ...]} or the three lists batch_size, num_steps and "
                "learning_rate. Give exactly one of them."
            )
        return self


class SelectSpec(Section):
    """How the configuration is chosen at the end. With privacy.tuning private_selection what is left out is the only
    choice that the guarantee covers: rule best-utility, without a constraint."""

    score: str
    rule: Literal["procedure", "best-utility", "worst-utility", "oracle"] = "procedure"
    min_utility_gain: Annotated[float, Field(ge=0, le=1)] | None = 0.9
    max_loss: Annotated[float, Field(allow_inf_nan=False)] | None = None

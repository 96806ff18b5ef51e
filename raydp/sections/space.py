"""The configurations, and how one of them is chosen."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from raydp import registries
from raydp.plugins import PluginField
from raydp.sections.base import AtLeastOne, Finite, Positive, Section


class SpaceSpec(Section):
    """The configurations: a named space, a list of points, or a grid of three lists; and which of them are run.

    Attributes:
        search: a strategy that runs a part of them, by name or with its parameters; without one all are run.
    """

    name: str | None = None
    points: Annotated[tuple[tuple[AtLeastOne, AtLeastOne, Positive], ...], Field(min_length=1)] | None = None
    batch_size: Annotated[tuple[AtLeastOne, ...], Field(min_length=1)] | None = None
    num_steps: Annotated[tuple[AtLeastOne, ...], Field(min_length=1)] | None = None
    learning_rate: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = None
    search: PluginField | None = None

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
    choice that the guarantee covers: rule best-utility, without a constraint.

    Attributes:
        score: what selection goes by.
        rule: a name of `analysis.RULES`.
        min_utility_gain, max_loss, max_score, at_most: see `analysis.selection.constraints.Constraints`.
    """

    score: str
    rule: str = "procedure"
    min_utility_gain: Annotated[float, Field(ge=0, le=1)] | None = 0.9
    max_loss: Finite | None = None
    max_score: Finite | None = None
    at_most: Annotated[dict[str, Finite], Field(default_factory=dict)]

    @field_validator("rule")
    @classmethod
    def _known_rule(cls, rule: str) -> str:
        if rule not in registries.names("rules"):
            raise ValueError(registries.unknown_name("select.rule", rule, registries.names("rules")))
        return rule

    @model_serializer(mode="wrap")
    def _without_bounds_that_are_not_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        return {k: v for k, v in values.items() if k not in ("max_score", "at_most") or v}

    def constraints(self) -> dict[str, Any]:
        """What `analysis.select` takes, without what is not given."""
        names = ("max_loss", "min_utility_gain", "max_score", "at_most")
        return {k: v for k in names if (v := getattr(self, k)) not in (None, {})}

"""The configurations, and how one of them is chosen."""

from __future__ import annotations

from math import prod
from typing import Annotated, Any

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from analysis.selection.default import DEFAULT_RULE
from raydp.plugins import registries
from raydp.plugins.described import PluginField
from raydp.privacy.accounting.events import MAX_NUM_STEPS
from raydp.spec.sections.base import AtLeastOne, Finite, Positive, Section

Steps = Annotated[int, Field(ge=1, le=MAX_NUM_STEPS)]
MAX_CONFIGURATIONS = 100_000
"""Most combinations of a grid: each is calibrated, named and trained."""


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
    """A strategy that runs a part of the configurations, by name or with its parameters; without it all are run."""

    @field_validator("points", mode="before")
    @classmethod
    def _points_as_rows(cls, points: object) -> object:
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
        size = prod(len(axis or ()) for axis in grid)
        if size > MAX_CONFIGURATIONS:
            raise ValueError(
                f"must have at most {MAX_CONFIGURATIONS:,} configurations, got {size:,} combinations of batch_size, "
                "num_steps and learning_rate. Give fewer values, or a list of points."
            )
        return self


class SelectSpec(Section):
    """How the configuration is chosen at the end. With privacy.tuning private_selection what is left out is the only
    choice that the guarantee covers: rule best-utility, without a constraint.
    """

    score: str
    """Name of the score that selection goes by; it must be one of `scores`."""
    rule: str = DEFAULT_RULE
    """Name of the rule that selects: by default Algorithm 1 of Hu et al. 2025 as long as the measured scores do not
    contradict it; others are procedure, best-utility, oracle."""
    min_utility_gain: Annotated[float, Field(ge=0, le=1)] | None = 0.9
    """Keep configurations with at least this share of the best gain over the untrained model's utility; 0.9 as in Hu et
    al. 2025."""
    max_loss: Finite | None = None
    """Keep configurations with at most this mean utility loss."""
    max_score: Finite | None = None
    """Keep configurations with at most this mean score."""
    at_most: Annotated[dict[str, Finite], Field(default_factory=dict)]
    """Upper bounds on other columns of the points table, as {column: bound}."""

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

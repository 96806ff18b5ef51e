"""The section on the selection of a configuration at the end of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypedDict

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from raydp.analysis.selection.default import DEFAULT_RULE
from raydp.plugins import registries
from raydp.spec.sections.base import Finite, Section


class Bounds(TypedDict, total=False):
    """Constraints on the selected configuration, as arguments of `raydp.analysis.select`. None is no constraint."""

    max_loss: float | None
    min_utility_gain: float | None
    base_utility_loss: float | None
    max_score: float | None
    at_most: Mapping[str, float] | None


BOUNDS: tuple[Literal["max_loss", "min_utility_gain", "base_utility_loss", "max_score", "at_most"], ...] = (
    "max_loss",
    "min_utility_gain",
    "base_utility_loss",
    "max_score",
    "at_most",
)
"""Names of all constraints."""


class SelectSpec(Section):
    """How the configuration is selected at the end. With privacy.tuning private_selection, the defaults are the only
    selection that the guarantee covers: the rule best-utility without a constraint.
    """

    score: str | None = None
    """Name of the score that the selection uses; it must be one of `scores`. Leave it out if `scores` is empty."""
    rule: str = DEFAULT_RULE
    """Name of the rule that selects. The default takes the lowest expected score, given all measured scores and their
    errors, or the most useful of configurations whose scores are known to be equivalent. Others are procedure
    (Algorithm 1 of Hu et al. 2025), best-utility and oracle. If `scores` is empty, the default is procedure, and a rule
    must be procedure, best-utility or worst-utility."""
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
    def _without_bounds_that_are_not_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        values: dict[str, object] = handler(self)
        return {k: v for k, v in values.items() if k not in ("max_score", "at_most") or v}

    def constraints(self) -> Bounds:
        """Return the constraints that are given, as arguments of `raydp.analysis.select`."""
        given: Bounds = {}
        if self.max_loss is not None:
            given["max_loss"] = self.max_loss
        if self.min_utility_gain is not None:
            given["min_utility_gain"] = self.min_utility_gain
        if self.max_score is not None:
            given["max_score"] = self.max_score
        if self.at_most:
            given["at_most"] = self.at_most
        return given

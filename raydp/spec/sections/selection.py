"""How a configuration is selected at the end of a sweep."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from analysis.selection.default import DEFAULT_RULE
from raydp.plugins import registries
from raydp.spec.sections.base import Finite, Section


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

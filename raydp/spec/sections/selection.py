"""The section on the selection of a configuration at the end of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypedDict

from pydantic import Field, field_validator, model_validator

from raydp.analysis.selection.default import DEFAULT_RULE
from raydp.analysis.tables.old_names import old_name_read
from raydp.plugins import files, registries
from raydp.spec.sections.section import LATER, Finite, Section


class Bounds(TypedDict, total=False):
    """Constraints on the selected configuration, as arguments of `raydp.analysis.select`.

    None is no constraint.
    """

    max_loss: float | None
    min_gain_share: float | None
    base_utility_loss: float | None
    max_score: float | None
    at_most: Mapping[str, float] | None


class SelectSpec(Section):
    """How the configuration is selected at the end.

    Another privacy.tuning than ignored may have other defaults, and refuse what its guarantee does
    not cover.
    """

    score: str | None = None
    """Name of the score that the selection uses; it must be one of `scores`.

    Leave it out if `scores` is empty.
    """
    rule: str = DEFAULT_RULE
    """Name of the rule that selects, or `file.py:NAME` of a rule of your own.

    The default takes the lowest expected score, given all measured scores and their errors, or the
    most useful of configurations whose scores are known to be equivalent. Others are procedure
    (Algorithm 1 of Hu et al. 2025), best-utility and oracle. If `scores` is empty, the default is
    procedure, and a rule must be procedure, best-utility or worst-utility.
    """
    min_gain_share: Annotated[float, Field(ge=0, le=1)] | None = 0.9
    """Keep configurations with at least this share of the best gain over the untrained model's
    utility; 0.9 as in Hu et al. 2025."""
    max_loss: Finite | None = None
    """Keep configurations with at most this mean utility loss."""
    max_score: Annotated[Finite | None, LATER] = None
    """Keep configurations with at most this mean score."""
    at_most: Annotated[dict[str, Finite], Field(default_factory=dict), LATER]
    """Upper bounds on other columns of the points table, as {column: bound}."""

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, written: object) -> object:
        return old_name_read(written, "select") if isinstance(written, Mapping) else written

    @field_validator("rule")
    @classmethod
    def _known_rule(cls, rule: str) -> str:
        # The rule of a file is checked where the whole spec is read.
        if files.place_of(rule) is None and rule not in registries.names("rules"):
            raise ValueError(
                registries.unknown_name("select.rule", rule, registries.names("rules"))
            )
        return rule

    @property
    def rule_name(self) -> str:
        """Return the rule's name for records: without the path, for `file.py:NAME`."""
        place = files.place_of(self.rule)
        return self.rule if place is None else place[1]

    def constraints(self) -> Bounds:
        """Return the constraints that are given, as arguments of `raydp.analysis.select`."""
        given: Bounds = {}
        if self.max_loss is not None:
            given["max_loss"] = self.max_loss
        if self.min_gain_share is not None:
            given["min_gain_share"] = self.min_gain_share
        if self.max_score is not None:
            given["max_score"] = self.max_score
        if self.at_most:
            given["at_most"] = self.at_most
        return given

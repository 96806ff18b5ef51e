"""The section on how often configurations are repeated."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from pydantic import Field, model_validator

from raydp.spec.sections.section import Positive, Section

MOST_SEEDS = 1000
"""The largest number of seeds of one configuration. Every run that may be made is planned."""


class PrecisionArguments(TypedDict, total=False):
    """The confidence and the tolerance of a decision, as arguments of `raydp.analysis.select`."""

    confidence: float
    tolerance: float


class AdaptiveSeeds(Section):
    """Seeds where they matter: after a first pass over all configurations, further seeds go only to
    those that may still be selected, until the decision is reached or the budget is used up."""

    first: Annotated[int, Field(ge=2, le=MOST_SEEDS)] = 2
    """Number of seeds of every configuration in the first pass.

    Two tell how much scores vary between seeds.
    """
    at_most: Annotated[int, Field(ge=2, le=MOST_SEEDS)] = 12
    """The largest number of seeds of one configuration."""
    until: Literal["decided"] = "decided"
    """The event that ends the further seeds before their budget does: the decision.

    There is no other choice.
    """
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Scores that differ by less than this share are equivalent, and a decision between them is not
    needed."""
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = 0.95
    """The probability that a decision needs."""
    max_cost_share: Positive = 2.0
    """Largest cost of the further runs together, in costs of the first pass (examples processed,
    b·T)."""

    @model_validator(mode="after")
    def _first_pass_is_a_part(self) -> AdaptiveSeeds:
        if self.at_most <= self.first:
            raise ValueError(
                f"at_most must be more than first {self.first}, got {self.at_most}. Raise it, or "
                "give a list of seeds."
            )
        return self

    def sentence(self) -> str:
        """Return what will be run, in a sentence."""
        return (
            f"adaptive seeds: {self.first} of every configuration, and then up to {self.at_most} "
            "of those that may still be selected, until the decision has a probability of "
            f"{100 * self.confidence:g} % or the further runs have cost {self.max_cost_share:g} "
            "times the first pass; the costs here are those of the first pass"
        )

    def precision(self) -> PrecisionArguments:
        """Return what a decision needs, as arguments of `raydp.analysis.select`."""
        return {"confidence": self.confidence, "tolerance": self.tolerance}

    @property
    def labels(self) -> tuple[int, ...]:
        """Return the labels of all seeds that may be run."""
        return tuple(range(self.at_most))

    @property
    def first_labels(self) -> tuple[int, ...]:
        """Return the labels of the seeds of the first pass."""
        return self.labels[: self.first]

"""Cautions: figures of a guarantee, or of the plan behind it, that nobody should rely on unread."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from raydp.analysis.tables.statements import rounded_up

MOST_DELTA = 1e-3
"""Largest δ without a caution: δ is a chance that no bound holds. n^-1.1 is above if n < 534."""
FEW_UNITS = 500
"""Smallest number of units without a caution.

With fewer units, the noise that a usual ε needs leaves little to learn, and n^-1.1 exceeds
`MOST_DELTA`.
"""
MOST_EPSILON = 10.0
"""Largest ε without a caution. Above 10 a guarantee is weak to none.

Source: Ponomareva et al. 2023, "How to DP-fy ML", section 5.2, tier 3.
"""


def stated(bound: float, digits: int = 4) -> str:
    """Write an upper bound, such as ε, with few digits, rounded up: no sentence claims too much."""
    return f"{rounded_up(bound, digits):.{digits}g}"


def bound_in_words(epsilon: float | None, delta: float | None) -> str | None:
    """Return a guarantee in a few words, "ε ≤ 8 (δ 0.0002)"; None without a finite one."""
    if epsilon is None or math.isinf(epsilon):
        return None
    return f"ε ≤ {stated(epsilon)}" + ("" if delta is None else f" (δ {stated(delta, 2)})")


@dataclass(frozen=True, kw_only=True)
class Caution:
    """A warning: the rule that a figure breaks, the figure, and what to do.

    Its text is "<rule>, got ...".

    Attributes:
        rule: what should hold: "privacy: delta should be at most 0.001".
        value: what holds instead.
        remedy: what to change, in sentences.
    """

    rule: str
    value: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.rule}, got {self.value}. {self.remedy}"

    @property
    def short(self) -> str:
        """Return it without reason and further remedies: "delta should be ..., got 0.01: set ..."."""
        # The section of the spec is in the remedy, the reason after the first comma.
        rule = self.rule.partition(", ")[0].rpartition(": ")[2]
        remedy = self.remedy.partition(". ")[0].removesuffix(".")
        return f"{rule}, got {self.value}: {remedy[:1].lower()}{remedy[1:]}"

    def to_json(self) -> dict[str, str]:
        """Return the caution as data for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, str]) -> Caution:
        """Read what `to_json` wrote."""
        return cls(**document)


def cautions_of(*, epsilon: float, delta: float) -> list[Caution]:
    """Return the cautions of one model's guarantee. A model without a guarantee has none."""
    # An infinite ε is stated as "no guarantee"; a caution on its size would make it look like one.
    if math.isinf(epsilon):
        return []
    found = []
    if delta > MOST_DELTA:
        found.append(
            Caution(
                rule=f"privacy: delta should be at most {MOST_DELTA:g}, because it is a chance that no bound holds",
                value=f"{delta:.3g}",
                remedy="Protect more units, or set privacy.target_delta.",
            )
        )
    return found + _of_epsilon(epsilon, "privacy: epsilon", "Lower privacy.target_epsilon.")


def cautions_of_few(num_units: int, num_examples: int) -> list[Caution]:
    """Return a caution if there are too few units; protecting examples may be its remedy."""
    if num_units >= FEW_UNITS:
        return []
    return [
        Caution(
            rule=f"task: n should be at least {FEW_UNITS}, because from fewer units a model learns little",
            value=str(num_units),
            remedy="Give more data"
            + (", or protect examples." if num_examples >= FEW_UNITS else "."),
        )
    ]


def cautions_together(
    epsilon: float | None, num_models: int, accountant: str, *, planned: bool = False
) -> list[Caution]:
    """Return the cautions of several models that are released together, by their joint ε.

    Args:
        epsilon: the joint ε; None if it is unknown.
        num_models: number of the models.
        accountant: registry name of the accountant that computed ε.
        planned: whether the models are not trained yet.
    """
    if epsilon is None or math.isinf(epsilon) or num_models < 2:
        return []
    remedy = "Release the selected model alone and delete the others, or run fewer configurations and seeds."
    models = f"{num_models} {'planned ' if planned else ''}models"
    return _of_epsilon(
        epsilon, f"privacy: the joint epsilon of all {models} by accountant {accountant}", remedy
    )


def cautions_of_model(*, epsilon: float, delta: float, together: object) -> list[Caution]:
    """Return the cautions of a model's own guarantee, and of the models that are released with it.

    Args:
        epsilon, delta: the model's own guarantee.
        together: `ReleasedTogether`, or anything else if it is not known.
    """
    own = cautions_of(epsilon=epsilon, delta=delta)
    match together:
        case {
            "epsilon": int() | float() as joint,
            "models": int() as num_models,
            "accountant": str() as accountant,
        }:
            return [*own, *cautions_together(float(joint), num_models, accountant)]
    return own


def _of_epsilon(epsilon: float, subject: str, remedy: str) -> list[Caution]:
    if epsilon <= MOST_EPSILON:
        return []
    rule = f"{subject} should be at most {MOST_EPSILON:g}, above which a guarantee is weak"
    return [Caution(rule=rule, value=stated(epsilon), remedy=remedy)]

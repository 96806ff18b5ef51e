"""The JSON documents that state guarantees. Programs of users read them, so their keys stay."""

from __future__ import annotations

from typing import NotRequired, TypedDict, final


class ProfileRow(TypedDict):
    """ε at one δ.

    Keys:
        delta: δ.
        epsilon: ε; None if the accountant has no answer.
        reason: why the accountant has no answer.
    """

    delta: float
    epsilon: float | None
    reason: NotRequired[str]


class AttackRow(TypedDict):
    """The largest true positive rate of an attacker at one false positive rate."""

    false_positive_rate: float
    bound: float


@final
class AttackBoundsSummary(TypedDict):
    """Bounds on an attacker: the advantage, and the true positive rate by false positive rate."""

    accountant: str
    advantage: float
    true_positive_rates: list[AttackRow]


@final
class NoAttackBounds(TypedDict):
    """Why the accountant has no bounds on an attacker."""

    accountant: str
    reason: str


AttackSummary = AttackBoundsSummary | NoAttackBounds


class Guarantee(TypedDict):
    """The guarantee of one run.

    Keys:
        accountant: registry name of the accountant of the profile.
        profile: ε at several δ. Infinity is a float, and the string "inf" in strict JSON.
        gdp_mu: μ of a Gaussian mechanism above the whole profile; None if there is none.
        gdp_mu_reason: why there is no μ.
        attack: bounds on an attacker.
    """

    accountant: str
    profile: list[ProfileRow]
    gdp_mu: float | None
    gdp_mu_reason: str | None
    attack: AttackSummary


class ComposedCost(TypedDict):
    """The joint cost of several releases.

    Keys:
        epsilon: ε of all releases; None if the accountant has no answer.
        delta: δ of all releases.
        accountant: registry name.
        reason: why the accountant has no answer.
    """

    epsilon: float | None
    delta: float
    accountant: str
    reason: NotRequired[str]

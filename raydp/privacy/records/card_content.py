"""The content of a privacy card: a run's record, and what is known when its model is released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from raydp.analysis.statistics.results import given
from raydp.privacy.accounting.documents import Guarantee
from raydp.privacy.records.parts import LedgerSummary
from raydp.privacy.records.record import PrivacyRecord


class Strategy(TypedDict, total=False):
    """The names and parameters of the search and of the adaptive seeds.

    A missing key means that there is none.
    """

    search: Mapping[str, object]
    adaptive_seeds: Mapping[str, object]


class Searched(Strategy):
    """The values that a sweep tuned, and how it chooses.

    Keys:
        hyperparameters: name -> the values that were tried, of those with more than one value.
        configurations: number of configurations.
        seeds: labels of their repetitions.
        rule: how one configuration is chosen.
        chosen_on: the figures that the rule looks at, with the data that they are computed on.
        elsewhere: what is fixed in the sweep and may have been tuned before.
    """

    hyperparameters: Mapping[str, Sequence[object]]
    configurations: int
    seeds: list[int]
    rule: str
    chosen_on: list[str]
    elsewhere: list[str]


class JointCost(TypedDict):
    """The joint cost of several models.

    Keys:
        epsilon: ε of all models; "inf" is infinite, and None means that the accountant has no
        answer.
        delta: δ of all models.
        accountant: registry name.
        reason: why the accountant has no answer.
        note: what ε does not cover, if results chose what ran next.
    """

    epsilon: float | str | None
    delta: float
    accountant: str
    reason: NotRequired[str]
    note: NotRequired[str]


class ReleasedTogether(JointCost):
    """The models that were released together, and their joint cost.

    Keys:
        models: number of models.
        run_ids: their runs. A card leaves them out.
    """

    models: int
    run_ids: NotRequired[list[str]]


@dataclass(frozen=True, kw_only=True)
class PrivacyCard:
    """A run's privacy record with what is known when its model is released.

    Attributes:
        record: the privacy record of the run.
        guarantee: ε at several δ and bounds on an attacker.
        searched: what the sweep tuned; None if it must not be revealed.
        ledger: the noisy steps that were executed, if they were counted.
        released_together: what all released models cost together, if it is known.
    """

    record: PrivacyRecord
    guarantee: Guarantee
    searched: Searched | None = None
    ledger: LedgerSummary | None = None
    released_together: ReleasedTogether | None = None

    def to_json(self) -> dict[str, object]:
        """Return the card's content as JSON: the fields of the record and then the other parts."""
        return {
            **self.record.to_json(),
            **given(searched=self.searched),
            "guarantee": self.guarantee,
            "ledger": self.ledger,
            **given(released_together=self.released_together),
        }

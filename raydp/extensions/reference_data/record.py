"""The part of a privacy record on training and reference data with separate weights.

It states the ε of each set.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

from pydantic import ConfigDict, Field

from raydp.extensions.reference_data.sets import DATA_SETS, WeightedSets
from raydp.plugins.registries import resolve
from raydp.privacy.accounting.accountant import Accountant, AccountantError
from raydp.privacy.accounting.events import Event, NonPrivateEvent, PoissonGaussian
from raydp.privacy.accounting.infinity import json_number
from raydp.privacy.records.card import bound, figure
from raydp.privacy.records.schema import CardPart, Number

EPSILON_IS = "the larger of the two"
"""The relation of a record's ε to the ε of both sets."""


class SetEpsilon(CardPart):
    """ε for an example of one of two data sets, added or removed."""

    model_config = ConfigDict(frozen=True)

    epsilon: float | None = Field(description="0 for a set of weight 0; null: see `reason`.")
    reason: str | None = Field(default=None, description="Why the accountant has no answer.")
    noise_multiplier: float | None = Field(description="σ of its event; null for a weight of 0.")


class DataSetsRecord(CardPart):
    """Training and reference data whose examples have different weights.

    The record's ε holds for an example of either set. See `raydp.privacy.MethodPart`.
    """

    model_config = ConfigDict(frozen=True)
    name: ClassVar[str] = "data_sets"

    reference_weight: float
    num_training: int
    num_reference: int
    relative_privacy: Number
    effective_examples: float
    epsilon_is: str | None = None
    training: SetEpsilon | None = None
    reference: SetEpsilon | None = None

    @property
    def epsilons(self) -> dict[str, SetEpsilon]:
        """Return the ε of each set; none for a run without noise."""
        own = {"training": self.training, "reference": self.reference}
        return {name: epsilon for name, epsilon in own.items() if epsilon is not None}

    def to_json(self) -> dict[str, object]:
        """Return the known values as JSON."""
        return self.model_dump(exclude_unset=True)

    def columns(self) -> dict[str, float | None]:
        """Return the ε of each set, for the plan's table."""
        return {f"epsilon_{name}": own.epsilon for name, own in self.epsilons.items()}

    def remarks(self, unit: str) -> list[str]:
        """Return what the table's ε is of, if there is one."""
        of_each = f"of a {unit} of the training and of the reference data"
        return [f"ε is {self.epsilon_is}, {of_each}."] if self.epsilon_is else []

    def rows(self) -> list[tuple[str, str]]:
        """Return the card's rows about training and reference data, with the ε of each."""
        rows = [
            ("weight of the reference data w", figure(self.reference_weight)),
            ("training and reference data", f"{self.num_training} and {self.num_reference}"),
            ("effective number of examples", figure(self.effective_examples)),
            (
                "an example of the training data moves an update",
                f"{figure(self.relative_privacy)} times as far as one of the reference data",
            ),
        ]
        for name, own in self.epsilons.items():
            reason = "" if own.reason is None else f" ({own.reason})"
            rows.append((f"ε of the {name} data", bound(own.epsilon) + reason))
        return rows


def epsilons_of_sets(
    sets: WeightedSets, event: PoissonGaussian, epsilon: float, delta: float, accountant_name: str
) -> dict[str, SetEpsilon]:
    """Return the ε of each data set, for one of its examples added or removed.

    The larger ε is the run's.

    Args:
        event: the accounted event of the run, which is the event of the set with the larger weight.
        epsilon: the accountant's ε of this event.
        accountant_name: registry name.
    """

    def of_set(own: PoissonGaussian | None) -> SetEpsilon:
        # An example of weight 0 moves no update, so nothing of its set is released.
        if own is None:
            return SetEpsilon(epsilon=0.0, noise_multiplier=None)
        sigma = own.noise_multiplier
        try:
            # The run's event is one set's; only the other set needs a further composition.
            answer = epsilon if own == event else _epsilon(own, delta, accountant_name)
        except AccountantError as error:
            return SetEpsilon(epsilon=None, reason=str(error), noise_multiplier=sigma)
        return SetEpsilon(epsilon=answer, noise_multiplier=sigma)

    return {name: of_set(sets.event_of(event, name)) for name in DATA_SETS}


def data_sets_record(
    sets: WeightedSets, event: Event, epsilon: float, delta: float, accountant_name: str
) -> DataSetsRecord:
    """Return the record's part about a run's two data sets, with the ε of each if it is private."""
    values: dict[str, object] = {
        "reference_weight": sets.weight,
        "num_training": sets.num_training,
        "num_reference": sets.num_reference,
        "relative_privacy": json_number(sets.relative_privacy),
        "effective_examples": sets.effective_examples,
    }
    if not isinstance(event, NonPrivateEvent):
        epsilons = epsilons_of_sets(sets, event, epsilon, delta, accountant_name)
        values |= {"epsilon_is": EPSILON_IS, **epsilons}
    return DataSetsRecord.model_validate(values)


@lru_cache(maxsize=4096)
def _epsilon(event: PoissonGaussian, delta: float, accountant_name: str) -> float:
    accountant: Accountant = resolve("accountants", accountant_name, field="accountant")()
    return accountant.epsilon(event, delta)

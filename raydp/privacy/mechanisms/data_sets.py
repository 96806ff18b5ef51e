"""The part of a privacy record on training and reference data with separate weights.

It states the ε of each set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from raydp.plugins.registries import resolve
from raydp.privacy.accounting.base import Accountant, AccountantError
from raydp.privacy.accounting.events import Event, NonPrivateEvent, PoissonGaussian
from raydp.privacy.accounting.infinity import from_json_number, json_number
from raydp.privacy.mechanisms.reference import DATA_SETS, DataSet, WeightedSets

EPSILON_IS = "the larger of the two"
"""The relation of a record's ε to the ε of both sets."""


@dataclass(frozen=True, kw_only=True)
class SetEpsilon:
    """The ε of one data set, for one of its examples added or removed.

    Attributes:
        epsilon: 0 for a set of weight 0; None if the accountant has no answer.
        noise_multiplier: σ of the set's event; None for a set of weight 0.
        reason: why the accountant has no answer.
    """

    epsilon: float | None
    noise_multiplier: float | None
    reason: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return the values as JSON; "reason" only if there is one."""
        why = {} if self.reason is None else {"reason": self.reason}
        return {"epsilon": self.epsilon, **why, "noise_multiplier": self.noise_multiplier}


@dataclass(frozen=True, kw_only=True)
class DataSetsRecord:
    """The two data sets of a run.

    Attributes:
        reference_weight: w.
        num_training, num_reference: N_T and N_R.
        relative_privacy: how far an example of the training data moves an update, over one of the
            reference data.
        effective_examples: effective number of examples.
        epsilons: ε of each set; None for a run without noise.
    """

    reference_weight: float
    num_training: int
    num_reference: int
    relative_privacy: float
    effective_examples: float
    epsilons: Mapping[DataSet, SetEpsilon] | None = None

    def to_json(self) -> dict[str, object]:
        """Return the values as JSON."""
        document: dict[str, object] = {
            "reference_weight": self.reference_weight,
            "num_training": self.num_training,
            "num_reference": self.num_reference,
            "relative_privacy": json_number(self.relative_privacy),
            "effective_examples": self.effective_examples,
        }
        if self.epsilons is not None:
            document["epsilon_is"] = EPSILON_IS
            document |= {name: own.to_json() for name, own in self.epsilons.items()}
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> DataSetsRecord:
        """Read the result of `to_json`."""
        has_noise = "epsilon_is" in document
        return cls(
            reference_weight=document["reference_weight"],
            num_training=document["num_training"],
            num_reference=document["num_reference"],
            relative_privacy=from_json_number(document["relative_privacy"]),
            effective_examples=document["effective_examples"],
            epsilons={name: SetEpsilon(**document[name]) for name in DATA_SETS}
            if has_noise
            else None,
        )


def epsilons_of_sets(
    sets: WeightedSets, event: PoissonGaussian, epsilon: float, delta: float, accountant_name: str
) -> dict[DataSet, SetEpsilon]:
    """Return the ε of each data set, for one of its examples added or removed.

    The larger ε is the run's.

    Args:
        event: the accounted event of the run, which is the event of the set with the larger weight.
        epsilon: the accountant's ε of this event.
        accountant_name: registry name.
    """
    results: dict[DataSet, SetEpsilon] = {}
    for name in DATA_SETS:
        own = sets.event_of(event, name)
        # An example of weight 0 moves no update, so nothing of its set is released.
        if own is None:
            results[name] = SetEpsilon(epsilon=0.0, noise_multiplier=None)
            continue
        try:
            # The run's event belongs to one of the sets; only the other set needs a further
            # composition.
            answer = epsilon if own == event else _epsilon(own, delta, accountant_name)
            results[name] = SetEpsilon(epsilon=answer, noise_multiplier=own.noise_multiplier)
        except AccountantError as error:
            results[name] = SetEpsilon(
                epsilon=None, noise_multiplier=own.noise_multiplier, reason=str(error)
            )
    return results


def data_sets_record(
    sets: WeightedSets, event: Event, epsilon: float, delta: float, accountant_name: str
) -> DataSetsRecord:
    """Return the record's part about a run's two data sets, with the ε of each if it is private."""
    epsilons = None
    if not isinstance(event, NonPrivateEvent):
        epsilons = epsilons_of_sets(sets, event, epsilon, delta, accountant_name)
    return DataSetsRecord(
        reference_weight=sets.weight,
        num_training=sets.num_training,
        num_reference=sets.num_reference,
        relative_privacy=sets.relative_privacy,
        effective_examples=sets.effective_examples,
        epsilons=epsilons,
    )


@lru_cache(maxsize=4096)
def _epsilon(event: PoissonGaussian, delta: float, accountant_name: str) -> float:
    accountant: Accountant = resolve("accountants", accountant_name, field="accountant")()
    return accountant.epsilon(event, delta)

"""DP-SGD and DP-Adam on training and reference data with different weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from raydp.extensions.reference_data.record import data_sets_record
from raydp.extensions.reference_data.sets import weighted_sets
from raydp.methods.dp import DPSGD, DPAdam
from raydp.privacy.accounting.events import Event
from raydp.privacy.records.parts import AccountedEpsilon, MethodPart
from raydp.spec.sections import LATER
from raydp.tasks.task import Task, TaskFacts
from raydp.training.gradients.weights import UnitWeights

if TYPE_CHECKING:
    from raydp.spec.document import SweepSpec


class OfTwoSets:
    """The members of a method that weighs two data sets by its `reference_weight`."""

    if TYPE_CHECKING:
        reference_weight: float | None

    def check(self, spec: SweepSpec, task: Task) -> None:
        """Raise ValueError if there is a reference weight and the task has no reference data."""
        weighted_sets(self.reference_weight, task.facts())

    def unit_weights(self, facts: TaskFacts) -> UnitWeights | None:
        """Return the weights of the task's units; None without a weight of the reference data."""
        sets = weighted_sets(self.reference_weight, facts)
        if sets is None:
            return None
        shares, counts = sets.shares, (sets.num_training, sets.num_reference)
        # Training units come first, then the reference units.
        of_unit = np.repeat(np.array([shares["training"], shares["reference"]], np.float32), counts)
        return UnitWeights(of_unit=of_unit, scale=sets.scale)

    def largest_changes(self, facts: TaskFacts) -> NDArray[np.float64]:
        """Return [n] the share of each unit's set, as the ε of this set assumes."""
        sets = weighted_sets(self.reference_weight, facts)
        if sets is None:
            return np.ones(facts.num_units)
        of_training = np.arange(facts.num_units) < sets.num_training
        return np.where(of_training, sets.shares["training"], sets.shares["reference"])

    def record_part(
        self, facts: TaskFacts, event: Event, alone: AccountedEpsilon
    ) -> MethodPart | None:
        """Return the part about the two sets; None without a weight of the reference data."""
        sets = weighted_sets(self.reference_weight, facts)
        if sets is None:
            return None
        return data_sets_record(sets, event, alone.epsilon, alone.delta, alone.accountant)


class WeightedDPSGD(OfTwoSets, DPSGD):
    """SGD on the clipped gradients of Poisson-sampled batches, with Gaussian noise on their sum
    (Abadi et al. 2016).

    Guarantee:
        Without a reference weight it is that of DP-SGD. With one, a clipped gradient is multiplied
        by (1 - w) N / N_T or w N / N_R over the larger of these two, and the noisy sum by the
        larger one. An example of the set with the larger weight has the guarantee of DP-SGD. An
        example of the other set has the guarantee of a noise multiplier that is larger by the ratio
        of the weights (`WeightedSets.event_of`). N_T and N_R count as public, like n.
    """

    reference_weight: Annotated[Annotated[float, Field(ge=0, le=1)] | None, LATER] = None
    """w of the loss (1 - w) L_T + w L_R over training and reference data (Kaplan et al. 2024,
    equation 13), for a task with both. Without it all examples have equal weight, as with w = N_R /
    N."""

    @model_validator(mode="after")
    def _the_count_weighs_alike(self) -> Self:
        # Its count weighs all examples equally.
        if self.reference_weight is not None and self.clipping == "adaptive":
            raise ValueError(
                "method.clipping must be flat or automatic with reference_weight "
                f"{self.reference_weight:g}, got 'adaptive'. Give a fixed max_grad_norm."
            )
        return self


class WeightedDPAdam(DPAdam, WeightedDPSGD):
    """DP-Adam: the privatised gradient of DP-SGD in torch's Adam (Li et al. 2022).

    See `DPAdam` for the moments, and `WeightedDPSGD` for the weights.
    """

    @model_validator(mode="after")
    def _the_correction_knows_one_scale(self) -> Self:
        # Φ = (σ c / b)² must be one number for both sets.
        if self.reference_weight is not None and self.second_moment != "plain":
            raise ValueError(
                "method.second_moment must be plain with reference_weight, got 'noise_corrected': "
                "the scale of the noise is not the same for all steps or sets. Leave one of them "
                "out."
            )
        return self

"""Banded matrix factorisation, or DP-FTRL: noise that partly cancels from step to step.

Source: Choquette-Choo et al. 2023.
"""

from __future__ import annotations

from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from raydp.extensions.matrix_factorisation.factorisation import banded_square_root
from raydp.extensions.reference_data.weighted import WeightedDPSGD
from raydp.privacy import MethodRecord, PoissonGaussian, Procedure
from raydp.search_spaces import Configuration
from raydp.training.noise.stream import KeyedStream
from raydp.training.trial_plan import TrialPlan


def cyclic_poisson_batch(
    plan: TrialPlan, key: bytes, step: int, num_groups: int
) -> NDArray[np.int64]:
    """Return one step's units: of the group whose turn it is, with probability num_groups · b/n.

    The key assigns every unit to one group for the whole run, independently of the other units. So
    one unit more or less leaves the distribution of the other units' groups unchanged.
    """
    # The group is fixed for the run, and the Poisson mask is drawn anew in each step.
    stream = KeyedStream(key=key, run_id=plan.run_id)
    groups = stream.bits(plan.num_examples, step=0, purpose="group") % np.uint64(num_groups)
    drawn = stream.poisson_mask(plan.num_examples, num_groups * plan.batch_size, step=step)
    return np.flatnonzero(drawn & (groups == step % num_groups))


class DPMF(WeightedDPSGD):
    """SGD, with or without momentum, whose noise is C^{-1} Z (matrix factorisation, the DP-FTRL
    family).

    Each step cancels a part of the noise of the steps before, so that less noise accumulates in the
    weights. C is the square root of the workload of SGD with this momentum and decoupled weight
    decay, cut to its bands, with columns of norm 1 (Kalinin and Lampert 2024). Nothing is
    optimised. One band is DP-SGD, bit for bit.

    The other arguments are those of DP-SGD, without clipping "adaptive". With a learning rate
    schedule, C stays as for the constant rate.

    Guarantee:
        The sequence of all updates costs at most as much as ceil(T / b̂) steps of the
        Poisson-subsampled Gaussian mechanism with sample rate b̂ b/n and noise multiplier σ, for
        one unit added or removed (Choquette-Choo et al. 2023, section 5, Algorithm 2 and Theorem 4;
        Denisov et al. 2022 show that gradients may depend on earlier outputs). A unit takes part in
        steps that are at least b̂ apart. So the rows of C G that it enters in one such step end
        before the next. It is drawn at most once in each block of b̂ rows, and moves the block by
        at most c.
    """

    num_bands: Annotated[int, Field(ge=1, le=1024)] = 4
    """b̂: the noise of a step depends on the noise of the b̂ - 1 steps before. The units are
    divided into b̂ groups at random, and the steps draw from the groups in turn, each unit with
    probability b̂ b/n. More bands need a larger σ, and b̂ b <= n, b̂ <= T; 1 is DP-SGD."""

    @model_validator(mode="after")
    def _the_threshold_stays(self) -> Self:
        if self.clipping == "adaptive":
            raise ValueError(
                "method.clipping must be flat or automatic with dp_mf, got adaptive: a step "
                "cancels noise of earlier steps, which had another scale if the threshold moves. "
                "Use one of them, or dp_sgd."
            )
        return self

    def event_fn(self, configuration: Configuration, num_examples: int) -> PoissonGaussian:
        """Return the event at σ = 1: one step for every block of num_bands updates.

        Raises:
            ValueError: there are fewer updates than bands, the groups are too small for the batch
                size, or a step decays weights through zero.
        """
        self._check_decay(configuration)
        batch_size, num_steps = configuration.batch_size, configuration.num_steps
        if self.num_bands > num_steps:
            raise ValueError(
                f"method.num_bands must be <= num_steps {num_steps}, got {self.num_bands}. "
                "Lower it, or train for more steps."
            )
        if self.num_bands * batch_size > num_examples:
            raise ValueError(
                f"method.num_bands must be <= num_examples / batch_size = {num_examples} / "
                f"{batch_size}, got {self.num_bands}: a step draws from one of num_bands "
                "groups. Lower it, or the batch size."
            )
        # A unit takes part at most once in num_bands updates, so a block costs as much as one step.
        return PoissonGaussian(
            sample_rate=self.num_bands * batch_size / num_examples,
            noise_multiplier=1.0,
            num_steps=-(-num_steps // self.num_bands),
        )

    def batch_indices(self, plan: TrialPlan, key: bytes, step: int) -> NDArray[np.int64]:
        return cyclic_poisson_batch(plan, key, step, self.num_bands)

    def noise_strategy(self, plan: TrialPlan) -> tuple[float, ...]:
        # Decoupled weight decay multiplies the weights by 1 - ηλ in each step.
        decay = 1 - plan.learning_rate * self._decoupled_decay
        return tuple(
            banded_square_root(self.num_bands, decay=decay, momentum=self.momentum).tolist()
        )

    def record_fields(self, plan: TrialPlan) -> MethodRecord:
        """Return how batches are drawn, and the mechanism in words."""
        event = self.event(plan, plan.noise_multiplier)
        procedure = Procedure(
            sampler="cyclic poisson",
            description=f"banded matrix factorisation with {self.num_bands} bands: {plan.num_steps} updates with "
            f"correlated noise, accounted as {event.num_steps} steps at {self.num_bands} times the "
            "rate",
        )
        return MethodRecord(procedure=procedure)

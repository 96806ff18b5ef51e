"""Banded matrix factorisation, or DP-FTRL: noise that partly cancels from step to step (Choquette-Choo et al. 2023)."""

from __future__ import annotations

from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from raydp.methods.dp import DPSGD
from raydp.privacy import MethodRecord, PoissonGaussian, Procedure
from raydp.privacy.mechanisms.factorisation import banded_square_root
from raydp.training.noise.stream import KeyedStream
from raydp.training.trial_plan import TrialPlan


def cyclic_poisson_batch(plan: TrialPlan, key: bytes, step: int, num_groups: int) -> NDArray[np.int64]:
    """Return the units of one step: those of the group whose turn it is, each with probability num_groups · b/n.

    The key assigns every unit to one group for the whole run, independently of the other units. So one unit more or
    less leaves the distribution of the other units' groups unchanged.
    """
    stream = KeyedStream(key=key, run_id=plan.run_id)
    groups = stream.bits(plan.num_examples, step=0, purpose="group") % np.uint64(num_groups)
    drawn = stream.poisson_mask(plan.num_examples, num_groups * plan.batch_size, step=step)
    return np.flatnonzero(drawn & (groups == step % num_groups))


class DPMF(DPSGD):
    """SGD, with or without momentum, whose noise is C^{-1} Z (matrix factorisation, the DP-FTRL family).

    Each step cancels a part of the noise of the steps before, so that less noise accumulates in the weights. C is the
    square root of the workload of SGD with this momentum and decoupled weight decay, cut to its bands, with columns of
    norm 1 (Kalinin and Lampert 2024). Nothing is optimised. One band is DP-SGD, bit for bit.

    The other arguments are those of DP-SGD, without clipping "adaptive". With a learning rate schedule, C stays as for
    the constant rate.

    Guarantee:
        The sequence of all updates costs at most as much as ceil(T / b̂) steps of the Poisson-subsampled Gaussian
        mechanism with sample rate b̂ b/n and noise multiplier σ, for one unit added or removed (Choquette-Choo et al.
        2023, section 5, Algorithm 2 and Theorem 4; Denisov et al. 2022 show that gradients may depend on earlier
        outputs). A unit takes part in steps that are at least b̂ apart. So the rows of C G that it enters in one such
        step end before the next. It is drawn at most once in each block of b̂ rows, and moves the block by at most c.
    """

    num_bands: Annotated[int, Field(ge=1, le=1024)] = 4
    """b̂: the noise of a step depends on the noise of the b̂ - 1 steps before. The units are divided into b̂ groups at
    random, and the steps draw from the groups in turn, each unit with probability b̂ b/n. More bands need a larger σ,
    and b̂ b <= n, b̂ <= T; 1 is DP-SGD."""

    @model_validator(mode="after")
    def _the_threshold_stays(self) -> Self:
        if self.clipping == "adaptive":
            raise ValueError(
                "method.clipping must be flat or automatic with dp_mf, got adaptive: a step cancels noise of earlier "
                "steps, which had another scale if the threshold moves. Use one of them, or dp_sgd."
            )
        return self

    def event(self, plan: TrialPlan, noise_multiplier: float) -> PoissonGaussian:
        """Return the event of the whole run: one step for every block of num_bands updates.

        Raises:
            ValueError: there are fewer updates than bands, the groups are too small for the batch size, or a step
                decays weights through zero.
        """
        self._check_decay(plan)
        if self.num_bands > plan.num_steps:
            raise ValueError(
                f"method.num_bands must be <= num_steps {plan.num_steps}, got {self.num_bands}. Lower it, or train for "
                "more steps."
            )
        if self.num_bands * plan.batch_size > plan.num_examples:
            raise ValueError(
                f"method.num_bands must be <= num_examples / batch_size = {plan.num_examples} / {plan.batch_size}, got "
                f"{self.num_bands}: a step draws from one of num_bands groups. Lower it, or the batch size."
            )
        return PoissonGaussian(
            sample_rate=self.num_bands * plan.batch_size / plan.num_examples,
            noise_multiplier=noise_multiplier,
            num_steps=-(-plan.num_steps // self.num_bands),
        )

    def batch_indices(self, plan: TrialPlan, key: bytes, step: int) -> NDArray[np.int64]:
        return cyclic_poisson_batch(plan, key, step, self.num_bands)

    def noise_strategy(self, plan: TrialPlan) -> tuple[float, ...]:
        decay = 1 - plan.learning_rate * self._decoupled_decay
        return tuple(banded_square_root(self.num_bands, decay=decay, momentum=self.momentum).tolist())

    def record_fields(self, plan: TrialPlan) -> MethodRecord:
        """Return how batches are drawn, and the mechanism in words."""
        event = self.event(plan, plan.noise_multiplier)
        procedure = Procedure(
            sampler="cyclic poisson",
            description=f"banded matrix factorisation with {self.num_bands} bands: {plan.num_steps} updates with "
            f"correlated noise, accounted as {event.num_steps} steps at {self.num_bands} times the rate",
        )
        return MethodRecord(procedure=procedure)

"""Training and reference data with different weights in one loss: privacy and utility of each set.

Source: Kaplan et al. 2024 (PoPETs 2024(2)). D_T has N_T examples and D_R has N_R. The weighted
empirical risk is (1 - w) L_T + w L_R (equation 13), so that an example of D_T weighs (1 - w) / N_T
and an example of D_R w / N_R.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from raydp.privacy.accounting.events import PoissonGaussian
from raydp.tasks.task import TaskFacts

DataSet = Literal["training", "reference"]
DATA_SETS: tuple[DataSet, DataSet] = ("training", "reference")
ROUNDING = 2.0**-12
"""Widening of a step's noise that pays for rounding, over c (raydp.training.noise.lattice).

Rounding moves the sum as far for an example of small weight as for one of full weight.
"""


@dataclass(frozen=True, kw_only=True)
class WeightedSets:
    """Two data sets in one weighted loss.

    Args:
        weight: w in [0, 1], the weight of the reference data.
        num_training: N_T >= 1.
        num_reference: N_R >= 1.

    Raises:
        ValueError: an argument is out of its range.
    """

    weight: float
    num_training: int
    num_reference: int

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise ValueError(
                f"reference_weight must be >= 0 and <= 1, got {self.weight}. It is the reference "
                "data's."
            )
        if min(self.num_training, self.num_reference) < 1:
            raise ValueError(
                f"num_training and num_reference must be >= 1, got {self.num_training} and "
                f"{self.num_reference}. Give both sets examples."
            )

    @property
    def of_examples(self) -> dict[DataSet, float]:
        """Return the weight of one example of each set, relative to equal weights.

        The weights are (1 - w) N / N_T and w N / N_R.
        """
        total = self.num_training + self.num_reference
        return {
            "training": (1 - self.weight) * total / self.num_training,
            "reference": self.weight * total / self.num_reference,
        }

    @property
    def scale(self) -> float:
        """Return the larger of the two weights, to which a private run's noise is in proportion."""
        return max(self.of_examples.values())

    @property
    def shares(self) -> dict[DataSet, float]:
        """Return the two weights over the larger one, rounded down to single precision.

        A share is how far an example of its set can move the clipped sum, in clipping norms.
        """
        return {name: _down(value / self.scale) for name, value in self.of_examples.items()}

    @property
    def relative_privacy(self) -> float:
        """Return (1 - w) / w · N_R / N_T: the largest effect of an example of D_T over one of D_R.

        Effects are on an update. The ratio is inf at w = 0. Kaplan et al. 2024, Theorem 3.1 and
        section 5.1, state it as ε_T / ε_R, the ratio of their bounds. It is
        exactly the ratio of the sensitivities, and so of the reciprocal noise multipliers. The ε
        themselves have another ratio, see `epsilons_of_sets`.
        """
        weights = self.of_examples
        return weights["training"] / weights["reference"] if weights["reference"] else math.inf

    @property
    def effective_examples(self) -> float:
        """Return N_eff = [(1 - w)² / N_T + w² / N_R]^-1 <= N, with equality at w = N_R / N.

        A weighted mean of independent losses has the variance of a plain mean over N_eff losses
        (Kaplan et al. 2024, Theorem 3.2).
        """
        return 1 / (
            (1 - self.weight) ** 2 / self.num_training + self.weight**2 / self.num_reference
        )

    def event_of(self, event: PoissonGaussian, data_set: DataSet) -> PoissonGaussian | None:
        """Return what a run releases about one set; None if its weight is 0: nothing is released.

        Args:
            event: the event of the set with the larger weight.

        Guarantee:
            Let one example of the set be added or removed, with unchanged weights. The run is then
            the returned event: Poisson samples and noise stay, and the sum changes by at most
            `shares[data_set]` clipping norms, plus the rounding that the noise is widened for
            (ROUNDING).
        """
        share = self.shares[data_set]
        if not share:
            return None
        # A smaller sensitivity at equal noise is a larger noise multiplier. Rounding is not in
        # proportion to the weight, so it is added on both sides of the ratio.
        return replace(
            event, noise_multiplier=event.noise_multiplier * ((1 + ROUNDING) / (share + ROUNDING))
        )


def weighted_sets(weight: float | None, facts: TaskFacts) -> WeightedSets | None:
    """Return the task's two sets with the weights of (1 - w) L_T + w L_R; None without w.

    Raises:
        ValueError: the task has no reference data.
    """
    if weight is None:
        return None
    if not facts.num_reference:
        raise ValueError(
            "method.reference_weight must be left out for a task without reference data, got "
            f"{weight:g}. Use the task with_reference."
        )
    return WeightedSets(
        weight=weight, num_training=facts.num_training, num_reference=facts.num_reference
    )


def excess_risk_bounds(
    sets: WeightedSets, *, vc_dimension: int, delta: float
) -> Mapping[str, float]:
    """Return bounds on the excess risk of the weighted minimiser that hold with probability 1 - δ.

    Args:
        vc_dimension: d >= 1, of the class of 0-1 losses {z -> ℓ(θ, z)}; for two classes, of the
            hypotheses.
        delta: probability that a bound fails. It is not the δ of differential privacy.

    Returns:
        "printed": 2 sqrt(d / N_eff) sqrt(γ2 + ln(N / d)) + sqrt(2 ln(2/δ) / N_eff) with γ2 =
        max(4/d, 1) (Kaplan et al. 2024, equation 18). Its proof lacks a factor: equation 52 applies
        Hoeffding's inequality to the range [0, w] instead of [-w, w]. It also uses the growth
        function of N points although 2 N take part. "proven": sqrt(8 (ln 2 + d ln(e N / d)) /
        N_eff) + sqrt(2 ln(2/δ) / N_eff). The first term is by symmetrisation and Massart's lemma
        for the 2 (e N / d)^d vectors of signed weighted losses, each of norm at most N_eff^-1/2
        (Shalev-Shwartz and Ben-David 2014, Lemmas 26.2, 26.8 and 6.10). The second term is the
        paper's. Both are above 1, and say nothing, unless N_eff is far above d. The bounds assume
        that both sets come from one distribution and that the loss is bounded (0 to 1), which
        cross-entropy is not.

    Raises:
        ValueError: d is not in 1 .. N, or δ is not in (0, 1).
    """
    total = sets.num_training + sets.num_reference
    if not 1 <= vc_dimension <= total:
        raise ValueError(
            f"vc_dimension must be >= 1 and <= N = {total}, got {vc_dimension}. Use more data."
        )
    if not 0 < delta < 1:
        raise ValueError(
            f"delta must be > 0 and < 1, got {delta}. It is the probability that the bound fails."
        )
    # The deviation term is shared. The complexity terms differ: equation 18 as printed, and a
    # proven one.
    effective, d = sets.effective_examples, vc_dimension
    deviation = math.sqrt(2 * math.log(2 / delta) / effective)
    ratio = math.log(total / d)
    return {
        "printed": 2 * math.sqrt(d / effective) * math.sqrt(max(4 / d, 1) + ratio) + deviation,
        "proven": math.sqrt(8 * (math.log(2) + d * (1 + ratio)) / effective) + deviation,
    }


def _down(value: float) -> float:
    """Round a number down to single precision."""
    # Round to nearest may round up, and a share that is too large would understate the noise
    # multiplier.
    rounded = np.float32(value)
    return float(rounded if float(rounded) <= value else np.nextafter(rounded, np.float32(0)))

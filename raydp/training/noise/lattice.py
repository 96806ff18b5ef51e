"""Gaussian noise on a lattice: what is released is an integer times a step that no record had a part in.

In floating point, sum + noise takes different low-order bits for different sums, and who sees a bit pattern that one of
two data sets cannot produce knows which one it was (Mironov 2012; for the Gaussian Jin et al. 2022; Holohan and Braghin
2021; of sums Casacuberta et al. 2022). Here sum S and noise N are each rounded to multiples of a step Δ, a power of
two, and the two integers are added:

    release = Δ (round(S / Δ) + round(N / Δ)),   N ~ N(0, std²)

As k + round(x) = round(k + x) for an integer k (but where k + x is halfway between two, which has probability 0, so
the rule for ties does not matter), this is the Gaussian mechanism on the rounded sum, then a rounding of what it
released. So the guarantee is that of the Gaussian mechanism, whichever lattice point comes out, if std is in proportion
to the sensitivity of the rounded sum. Neighbours' sums are at most c apart; rounding moves each coordinate by at most
Δ/2 in either, so the rounded ones are at most c + Δ sqrt(d) apart over d coordinates. Δ is chosen such that
Δ sqrt(d) <= c LATTICE_SHARE, and the noise is NOISE_WIDENING times as wide as σ c; what is left between the two is for
the rounding of the clipped gradients in single precision. docs/privacy.md says what remains.

Nothing of this needs N to be independent of the noise of other steps: where it leans on them, all releases together are
a rounding, coordinate by coordinate, of what the Gaussian mechanism with that covariance released of the rounded sums.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

LATTICE_SHARE = 2.0**-13
"""What rounding the sum to the lattice adds to its sensitivity, at most, over c."""
NOISE_WIDENING = 1 + 2.0**-12
"""Standard deviation of the noise over σ c, and the sensitivity that pays for, over c."""
COUNT_STEP = 2.0**-20
"""Lattice of a count of halves: rounding costs a count nothing, as it lies on the lattice."""

CACHED = 1 << 16
"""Coordinates that are added at a time on a CPU: what fits its cache, six times as fast as all at once."""


def lattice_step(max_grad_norm: float, num_coordinates: int) -> float:
    """Δ, the largest power of two with Δ sqrt(d) <= c LATTICE_SHARE.

    Args:
        max_grad_norm: c, a public number.
        num_coordinates: d of the whole sum that is released: all trained coordinates, over all parameters and shards.
    """
    assert max_grad_norm > 0
    assert num_coordinates > 0
    mantissa, exponent = math.frexp(max_grad_norm * LATTICE_SHARE / math.sqrt(num_coordinates))
    assert 0.5 <= mantissa < 1, "c is finite"
    return math.ldexp(1.0, exponent - 1)


def add_lattice_noise(gradient: torch.Tensor, noise: NDArray[np.float64], *, std: float, step: float) -> None:
    """Replace the sum, in place, by step · (round(sum / step) + round(std · noise / step)).

    Args:
        gradient: the sum, or a parameter's or shard's part of it, contiguous, of any floating type, finite.
        noise: [number of coordinates] standard normals; or noise in units of std that leans on the steps before.
        std: standard deviation of the noise: NOISE_WIDENING σ c.
        step: Δ, of `lattice_step`.

    Guarantee:
        Given noise that is Gaussian, the result is a function of the Gaussian mechanism's output on the rounded sum.
        Dividing by a power of two and rounding to an integer are exact, and adding two integers in floating point is a
        function of their exact sum, even where that passes 2^53; so is the conversion to the gradient's own type, whose
        values of this size are multiples of the step, too.
    """
    flat = gradient.view(-1)
    size = CACHED if gradient.device.type == "cpu" else max(1, len(flat))
    for part, draws in zip(flat.split(size), torch.from_numpy(noise).to(gradient.device).split(size), strict=True):
        integers = (draws * (std / step)).round_()
        integers.add_(part.double().div_(step).round_())
        part.copy_(integers.mul_(step))


def noisy_count(count: float, noise: float) -> float:
    """count + noise, a multiple of COUNT_STEP.

    Args:
        count: a multiple of 1/2.
        noise: of the count's standard deviation.
    """
    assert (2 * count).is_integer(), "a count of halves"
    return count + round(noise / COUNT_STEP) * COUNT_STEP

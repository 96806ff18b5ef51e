"""Banded matrix factorisation: noise that is correlated over steps, and what reaches the weights.

Let the rows of G be all gradients. The weights of SGD after each step are -η A G for the workload
A, a lower-triangular Toeplitz matrix. A factorisation A = B C releases C G + Z instead, where Z is
independent Gaussian noise. From this release, B (C G + Z) = A (G + C^{-1} Z) is computed: SGD on
gradients with the noise C^{-1} Z. The sensitivity is the norm of C's columns, the error is B Z.
Every Toeplitz matrix here is given by its first column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class WeightNoise:
    """Standard deviation of the noise in a weight, in units of η σ c / b; see `weight_noise`.

    Attributes:
        largest: largest standard deviation over all steps, which is after the last step: the
            largest row norm of B.
        rms: root mean square over all steps: the Frobenius norm of B over √T.
    """

    largest: float
    rms: float


def banded_square_root(
    num_bands: int, *, decay: float = 1.0, momentum: float = 0.0
) -> NDArray[np.float64]:
    """Return the strategy C: the banded square root of SGD's workload, with columns of norm 1.

    Args:
        num_bands: b̂ >= 1, the number of entries of the first column that are kept; 1 is
            independent noise.
        decay: α in [0, 1], the factor of the weights in each step; 1 without weight decay.
        momentum: β in [0, 1).

    Returns:
        [b̂] the first column of C. Before scaling its entry k is Σ_j α^(k-j) r_(k-j) r_j β^j with
        r_j = C(2j, j) / 4^j, the coefficient of x^k in ((1 - αx)(1 - βx))^(-1/2).

    Guarantee:
        No column of C is longer than 1, for any number of steps, because each is the first one,
        moved down and cut off.

    Source: Kalinin and Lampert 2024, Theorem 1 (the square root in closed form) and section 3 (cut
    to bands).
    """
    assert num_bands >= 1
    assert 0 <= decay <= 1
    assert 0 <= momentum < 1
    # The power series of (1 - x)^(-1/2), then the product of both factors.
    k = np.arange(num_bands)
    root = np.cumprod(np.concatenate([[1.0], (2 * k[1:] - 1) / (2 * k[1:])]))  # r
    column = np.convolve(decay**k * root, momentum**k * root)[:num_bands]
    scaled: NDArray[np.float64] = column / np.linalg.norm(column)
    return scaled


def workload(num_steps: int, *, decay: float = 1.0, momentum: float = 0.0) -> NDArray[np.float64]:
    """Return [T] A's first column, a gradient's effect after k more steps, Σ_j α^(k-j) β^j."""
    k = np.arange(num_steps)
    return np.convolve(decay**k, momentum**k)[:num_steps]


def weight_noise(
    strategy: NDArray[np.float64], num_steps: int, *, decay: float = 1.0, momentum: float = 0.0
) -> WeightNoise:
    """Return the noise that a strategy leaves in the weights of SGD.

    For α = 1 and β = 0 it is the error of prefix sums.

    Args:
        strategy: the first column of C.
        num_steps: T.
        decay: α of the workload.
        momentum: β of the workload.

    Source: Kalinin and Lampert 2024, section 2 (the expected error of B Z for A = B C).
    """
    from scipy.signal import lfilter

    # First column of A C^{-1}.
    column = lfilter([1.0], strategy, workload(num_steps, decay=decay, momentum=momentum))
    # Row t of a Toeplitz matrix has the first t + 1 entries of its column.
    squares = np.cumsum(np.square(column))
    return WeightNoise(largest=float(np.sqrt(squares[-1])), rms=float(np.sqrt(squares.mean())))

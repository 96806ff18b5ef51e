"""Banded matrix factorisation against dense matrices that are made by other means."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import sqrtm, toeplitz

from raydp.extensions.matrix_factorisation.factorisation import (
    banded_square_root,
    weight_noise,
    workload,
)

WORKLOADS = [(1.0, 0.0), (1.0, 0.9), (0.999, 0.0), (0.99, 0.9), (0.5, 0.8), (0.0, 0.0)]
"""Pairs of decay α and momentum β."""
ROUNDING = 1e-9
"""Of a square root of 24 x 24 in double precision."""


def matrix(column: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """The lower-triangular Toeplitz matrix with this first column."""
    return toeplitz(np.pad(column[:size], (0, max(0, size - len(column)))), np.zeros(size))


def sgd(num_steps: int, decay: float, momentum: float) -> NDArray[np.float64]:
    """A: what SGD with momentum and decoupled weight decay makes of gradients, by running it on
    unit gradients."""
    weights, velocity, rows = np.zeros(num_steps), np.zeros(num_steps), []
    for gradient in np.eye(num_steps):
        velocity = momentum * velocity + gradient
        weights = decay * weights + velocity
        rows.append(weights)
    return np.array(rows)


@pytest.mark.parametrize(("decay", "momentum"), WORKLOADS)
def test_the_workload_matrix_reproduces_sgd(decay: float, momentum: float) -> None:
    column = workload(24, decay=decay, momentum=momentum)
    np.testing.assert_allclose(matrix(column, 24), sgd(24, decay, momentum), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize(("decay", "momentum"), WORKLOADS[:5])
def test_all_bands_are_the_square_root_of_the_workload(decay: float, momentum: float) -> None:
    column = banded_square_root(24, decay=decay, momentum=momentum)
    root = matrix(column / column[0], 24)
    np.testing.assert_allclose(root @ root, sgd(24, decay, momentum), rtol=0, atol=ROUNDING)
    if (
        momentum == 0
    ):  # sqrtm loses its digits on a triangular matrix with equal eigenvalues; less so here
        np.testing.assert_allclose(root, sqrtm(sgd(24, decay, momentum)).real, rtol=0, atol=1e-6)


def test_the_coefficients_of_prefix_sums_are_the_known_ones() -> None:
    """1, 1/2, 3/8, 5/16, 35/128 (Fichtenberger, Henzinger and Upadhyay 2023), and β is added by a
    convolution."""
    column = banded_square_root(5)
    np.testing.assert_allclose(column / column[0], [1, 1 / 2, 3 / 8, 5 / 16, 35 / 128], rtol=1e-14)
    column = banded_square_root(2, decay=0.75, momentum=0.5)
    np.testing.assert_allclose(column / column[0], [1, (0.75 + 0.5) / 2], rtol=1e-14)


@pytest.mark.parametrize("num_bands", [1, 2, 5, 24])
@pytest.mark.parametrize(("decay", "momentum"), WORKLOADS)
def test_no_column_is_longer_than_1(decay: float, momentum: float, num_bands: int) -> None:
    column = banded_square_root(num_bands, decay=decay, momentum=momentum)
    strategy = matrix(column, 24)
    assert np.linalg.norm(strategy, axis=0).max() <= 1 + 4e-16
    assert np.linalg.norm(strategy, axis=0)[0] == pytest.approx(1)
    assert (strategy == np.tril(strategy)).all()
    assert (np.tril(strategy, -num_bands) == 0).all(), "banded"
    assert (np.diff(column) <= 0).all(), (
        "so that the noise recurrence is stable (Eneström and Kakeya)"
    )


@pytest.mark.parametrize("num_bands", [1, 2, 5, 24])
@pytest.mark.parametrize(("decay", "momentum"), WORKLOADS)
def test_the_noise_in_the_weights_is_that_of_dense_matrices(
    decay: float, momentum: float, num_bands: int
) -> None:
    column, a = (
        banded_square_root(num_bands, decay=decay, momentum=momentum),
        sgd(24, decay, momentum),
    )
    strategy = matrix(column, 24)
    b = a @ np.linalg.inv(strategy)
    found = weight_noise(column, 24, decay=decay, momentum=momentum)
    np.testing.assert_allclose(b @ strategy, a, rtol=0, atol=ROUNDING)
    assert found.largest == pytest.approx(np.linalg.norm(b, axis=1).max())
    assert found.rms == pytest.approx(np.linalg.norm(b) / math.sqrt(24))


@pytest.mark.parametrize("num_steps", [10, 100, 1000])
def test_prefix_sums_of_one_band_and_of_all(num_steps: int) -> None:
    """Independent noise adds up to √T; the square root to Landau's constant Σ (C(2k, k) / 4^k)²,
    which grows like (ln T + γ + ln 16) / π (Watson 1930)."""
    independent = weight_noise(banded_square_root(1), num_steps)
    assert independent.largest == pytest.approx(math.sqrt(num_steps))
    assert independent.rms == pytest.approx(math.sqrt((num_steps + 1) / 2))
    entire = weight_noise(banded_square_root(num_steps), num_steps)
    assert entire.largest == pytest.approx(
        (math.log(16 * num_steps) + np.euler_gamma) / math.pi, abs=0.1 / num_steps
    )
    assert entire.largest == pytest.approx(
        sum((math.comb(2 * k, k) / 4**k) ** 2 for k in range(num_steps)), rel=1e-9
    )


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_at_equal_sigma_more_bands_leave_less_noise(momentum: float) -> None:
    found = [
        weight_noise(banded_square_root(num_bands, momentum=momentum), 200, momentum=momentum)
        for num_bands in (1, 2, 4, 8, 16, 32)
    ]
    assert [f.rms for f in found] == sorted((f.rms for f in found), reverse=True)
    assert [f.largest for f in found] == sorted((f.largest for f in found), reverse=True)

"""The noise of all steps together is C^{-1} Z: its covariance, its rows, and that any step can be
gone on from."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import toeplitz

from raydp.extensions.matrix_factorisation.factorisation import banded_square_root
from raydp.training.noise.correlated import CorrelatedNoise
from raydp.training.noise.stream import KeyedStream
from raydp.training.sharding import Part
from tests.builders import toys

STREAM = KeyedStream(key=toys.KEY, run_id="correlated")
NUM_STEPS, DRAWS = 7, 200_000
STRATEGY = banded_square_root(3, momentum=0.5)
STANDARD_ERRORS = 5.5
"""28 different entries of a covariance: chance 1e-6."""


def whole(count: int) -> Part:
    return Part(count=count, start=0, stop=count)


def rows(strategy: NDArray[np.float64], part: Part) -> NDArray[np.float64]:
    """[step, coordinate]"""
    noise = CorrelatedNoise(strategy.tolist())
    return np.array([noise.normal(STREAM, part, step=step, name="w") for step in range(NUM_STEPS)])


def dense(strategy: NDArray[np.float64]) -> NDArray[np.float64]:
    return toeplitz(np.pad(strategy, (0, NUM_STEPS - len(strategy))), np.zeros(NUM_STEPS))


def fits(found: NDArray[np.float64], covariance: NDArray[np.float64]) -> bool:
    """Whether the empirical covariance of Gaussian rows passes for this one (variance of an entry:
    Isserlis)."""
    empirical = found @ found.T / found.shape[1]
    spread = np.sqrt(
        (np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / found.shape[1]
    )
    return bool((np.abs(empirical - covariance) <= STANDARD_ERRORS * spread).all())


def test_the_covariance_is_that_of_the_factorisation_and_no_other() -> None:
    found, inverse = rows(STRATEGY, whole(DRAWS)), np.linalg.inv(dense(STRATEGY))
    covariance = inverse @ inverse.T
    assert fits(found, covariance)
    assert not fits(found, np.eye(NUM_STEPS)), "it is not independent"
    assert not fits(found, covariance * 1.02), "2 % more variance is seen"
    assert not fits(found, inverse.T @ inverse), "nor the other way round"
    assert not fits(rows(STRATEGY / STRATEGY[0], whole(DRAWS)), covariance), (
        "columns that are too long are seen"
    )


def test_the_rows_are_those_of_the_dense_inverse() -> None:
    z = np.array(
        [STREAM.normal(50, step=step, purpose="noise", name="w") for step in range(NUM_STEPS)]
    )
    np.testing.assert_allclose(
        rows(STRATEGY, whole(50)), np.linalg.solve(dense(STRATEGY), z), rtol=0, atol=1e-13
    )


def test_one_band_is_the_stream_bit_for_bit() -> None:
    noise = CorrelatedNoise(banded_square_root(1, momentum=0.9).tolist())
    for step in (4, 0, 2):  # in any order: there is nothing to remember
        np.testing.assert_array_equal(
            noise.normal(STREAM, whole(50), step=step, name="w"),
            STREAM.normal(50, step=step, purpose="noise", name="w"),
        )


@pytest.mark.parametrize("first", [1, 2, 5])
def test_a_run_that_goes_on_has_the_same_noise_bit_for_bit(first: int) -> None:
    noise = CorrelatedNoise(STRATEGY.tolist())
    later = [
        noise.normal(STREAM, whole(50), step=step, name="w") for step in range(first, NUM_STEPS)
    ]
    np.testing.assert_array_equal(later, rows(STRATEGY, whole(50))[first:])
    with pytest.raises(AssertionError, match="earlier rows are not kept"):
        noise.normal(STREAM, whole(50), step=first - 1, name="w")


def test_parts_and_parameters_have_their_own() -> None:
    np.testing.assert_array_equal(
        rows(STRATEGY, Part(count=50, start=13, stop=31)), rows(STRATEGY, whole(50))[:, 13:31]
    )
    noise = CorrelatedNoise(STRATEGY.tolist())
    w, v = (
        [noise.normal(STREAM, whole(50), step=s, name=name) for s in range(NUM_STEPS)]
        for name in "wv"
    )
    np.testing.assert_array_equal(w, rows(STRATEGY, whole(50)))
    assert not np.isclose(w, v).any()

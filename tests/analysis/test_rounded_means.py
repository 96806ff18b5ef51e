"""Means of groups are those of exact arithmetic, rounded once."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from raydp.analysis.tables.rounded_means import rounded_means

KINDS = {
    "reals": lambda g, n: g.normal(size=n),
    "lattice": lambda g, n: g.integers(-3, 7, n) / 8,
    "many magnitudes": lambda g, n: g.normal(size=n) * 10.0 ** g.integers(-30, 30, n),
    "last places": lambda g, n: np.ldexp(1 + g.integers(0, 4, n) * 2.0**-52, g.integers(-2, 2, n)),
    "decimals": lambda g, n: g.choice([0.1, 0.2, 0.3, -0.3], n),
    "out of range": lambda g, n: g.choice([1e300, 5e-324, 0.0, -0.0, 1.5], n),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("largest", [1, 4, 90])
def test_means_are_those_of_fractions(kind: str, largest: int) -> None:
    """20,000 values in groups of 1 to 90; every kind has ties between two doubles."""
    generator = np.random.default_rng(largest)
    sizes = generator.integers(1, largest + 1, 20_000 // largest)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    values = KINDS[kind](generator, int(sizes.sum()))
    expected = [
        statistics.mean(values[s : s + k].tolist()) for s, k in zip(starts, sizes, strict=True)
    ]
    np.testing.assert_array_equal(rounded_means(values, starts), expected)


def test_order_does_not_matter() -> None:
    """A plain sum of these depends on it."""
    values = np.array([0.1, 0.2, 0.3, 0.3, 0.2, 0.1])
    first, second = rounded_means(values, np.array([0, 3]))
    assert first == second == 0.2
    assert values[:3].sum() != values[3:].sum()

"""The grid that is proposed: it fits the time, and its configurations can be compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydp.extensions.budget.costs import StepLaw
from raydp.extensions.budget.grid import DESIGNS, LARGEST_RATE, MOST_PASSES, USED, fitted
from raydp.extensions.budget.propose import _copies


def law(step_seconds: float, seconds_per_example: float) -> StepLaw:
    return StepLaw(
        step_seconds=step_seconds,
        seconds_per_example=seconds_per_example,
        r_squared=None,
        proportional_seconds_per_example=seconds_per_example,
        max_relative_deviation=0.0,
    )


@given(
    num_units=st.integers(2, 10**7),
    step_seconds=st.floats(0, 10),
    seconds_per_example=st.floats(1e-5, 10),
    score_seconds=st.floats(0, 1000),
    hours=st.floats(0.01, 1000),
    slots=st.integers(1, 64),
)
def test_a_grid_that_fits_takes_no_longer_than_it_may(
    num_units: int,
    step_seconds: float,
    seconds_per_example: float,
    score_seconds: float,
    hours: float,
    slots: int,
) -> None:
    of_step = law(step_seconds, seconds_per_example)
    grid = fitted(
        num_units=num_units, law=of_step, score_seconds=score_seconds, hours=hours, slots=slots
    )
    pairs = [(b, t) for b in grid.batch_sizes for t in grid.num_steps]
    runs = len(grid.rates) * grid.design.first * (1 + grid.design.cost_share)
    seconds = (
        runs * sum(of_step.train_seconds(b, t) + score_seconds for b, t in pairs) / slots / USED
    )
    assert grid.hours == pytest.approx(seconds / 3600)
    assert (grid.hours <= hours) == grid.fits
    assert all(b >= 1 and t >= 1 for b, t in pairs)
    assert max(grid.batch_sizes) <= max(
        LARGEST_RATE * num_units, max(4 ** (len(grid.batch_sizes) - 1), 1)
    )
    assert max(b * t for b, t in pairs) <= max(MOST_PASSES * num_units, 16)
    if not grid.fits:
        assert grid.design == DESIGNS[-1]


def test_two_configurations_have_equal_compute() -> None:
    """So that the updates heuristic can be checked on the grid."""
    grid = fitted(num_units=10_000, law=law(0.01, 0.001), score_seconds=10, hours=8, slots=2)
    (small, large), (few, many) = grid.batch_sizes, grid.num_steps
    assert small * many == large * few
    assert grid.design == DESIGNS[0]


def test_less_time_gives_a_smaller_design_and_then_says_that_none_fits() -> None:
    designs = []
    for hours in (100, 30, 20, 8, 0.1):
        grid = fitted(num_units=10_000, law=law(0.0, 0.05), score_seconds=10, hours=hours, slots=1)
        designs.append(DESIGNS.index(grid.design))
    assert designs == sorted(designs)
    assert designs[0] == 0
    assert not grid.fits


@pytest.mark.parametrize("num_rows", [160, 300, 500, 959, 960, 1920, 3840, 7680, 100_000])
def test_canaries_are_a_small_share_of_the_rows(num_rows: int) -> None:
    ((copies, pairs),) = _copies(num_rows).items()
    assert copies * pairs <= 0.1 * num_rows
    assert pairs == 24 or copies == 4, "few rows get fewer copies first"
    assert pairs >= 4

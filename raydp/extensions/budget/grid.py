"""A grid of (b, T, η) that fits a time, from the measured seconds of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from raydp.extensions.budget.costs import StepLaw

RATES = (1e-3, 3e-3, 1e-2)
"""Learning rates of DP-Adam with LoRA. Neighbours differ by about half an order of magnitude."""
FACTOR = 2
"""Ratio of neighbours among batch sizes and numbers of steps.

With it, two configurations have equal compute C = b T. The gain grows with the updates C η: with
wider steps only the largest values would keep to the threshold.
"""
MOST_PASSES = 20
"""Largest number of passes over the data, of the configuration with the most compute."""
LEAST_PASSES = 2
"""Passes of that configuration below which a smaller design is better than a shorter training."""
LARGEST_RATE = 0.25
"""Largest sampling rate q = b / n."""
LEAST_STEPS = 10
USED = 0.8
"""Share of the time that is planned: the start, waits and the selection take the rest."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """The numbers of values and seeds of a grid.

    Attributes:
        batch_sizes, num_steps, rates: numbers of values.
        first: number of seeds of every configuration in the first pass.
        at_most: largest number of seeds of a configuration; equal to `first` if no further seeds
            are run.
    """

    batch_sizes: int
    num_steps: int
    rates: int
    first: int
    at_most: int

    @property
    def configurations(self) -> int:
        return self.batch_sizes * self.num_steps * self.rates

    @property
    def cost_share(self) -> int:
        """Return the largest cost of all further seeds, as a multiple of the first pass's cost.

        The spec states the multiple as `seeds.max_cost_share`. The multiple is 0 without further seeds.
        """
        return 1 if self.at_most > self.first else 0

    @property
    def largest(self) -> int:
        """Return the largest configuration's compute over the smallest configuration's."""
        return int(FACTOR ** (self.batch_sizes + self.num_steps - 2))

    @property
    def passes(self) -> int:
        """Return the cost of all runs, in costs of one seed of every configuration."""
        return self.first * (1 + self.cost_share)

    @property
    def runs(self) -> int:
        """Return the number of runs, if further seeds have the mean cost of a run."""
        return self.configurations * self.passes


DESIGNS = (
    Design(batch_sizes=2, num_steps=2, rates=3, first=2, at_most=12),
    Design(batch_sizes=2, num_steps=2, rates=3, first=2, at_most=2),
    Design(batch_sizes=2, num_steps=2, rates=2, first=2, at_most=2),
    Design(batch_sizes=2, num_steps=1, rates=2, first=2, at_most=2),
)
"""The designs, from the most reliable selection to the lowest cost."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A grid of configurations, and the time that it takes.

    Attributes:
        hours: expected hours of all runs, at the largest cost of further seeds.
        fits: whether `hours` is within the user's time. A grid that does not fit is the cheapest
            grid that is worth running.
    """

    design: Design
    batch_sizes: tuple[int, ...]
    num_steps: tuple[int, ...]
    rates: tuple[float, ...]
    hours: float
    fits: bool


def fitted(*, num_units: int, law: StepLaw, score_seconds: float, hours: float, slots: int) -> Grid:
    """Return the grid of the best design that fits the time, or else the cheapest grid.

    Args:
        num_units: n.
        law: seconds of a private step, on one slot.
        score_seconds: seconds that the utility and the scores of one model take.
        hours: time that the whole sweep may take.
        slots: runs that are trained side by side.
    """
    for design in DESIGNS:
        # From the longest training that is of use to the shortest one.
        compute = float(MOST_PASSES * num_units)
        while compute >= LEAST_PASSES * num_units:
            grid = _grid(design, num_units, compute / design.largest, law, score_seconds, slots)
            if grid.hours <= hours:
                return grid
            compute *= 0.9
    # Even the cheapest design takes longer. It is returned as a grid that does not fit.
    return replace(grid, fits=False)


def _grid(
    design: Design, num_units: int, smallest: float, law: StepLaw, score_seconds: float, slots: int
) -> Grid:
    """Return the grid of a design whose smallest configuration has b·T of about `smallest`."""
    # The batch sizes, powers of two: large enough for the noise, small enough for subsampling and
    # for some steps.
    largest_batch = LARGEST_RATE * num_units / FACTOR ** (design.batch_sizes - 1)
    batch_size = _power_of_two(min(largest_batch, smallest / LEAST_STEPS))
    num_steps = max(1, math.floor(smallest / batch_size))
    batch_sizes = tuple(batch_size * FACTOR**k for k in range(design.batch_sizes))
    steps = tuple(num_steps * FACTOR**k for k in range(design.num_steps))
    # All (b, T) are trained for every learning rate and every seed.
    training = (
        sum(law.train_seconds(b, t) for b in batch_sizes for t in steps)
        * design.rates
        * design.passes
    )
    return Grid(
        design=design,
        batch_sizes=batch_sizes,
        num_steps=steps,
        rates=RATES[-design.rates :],
        hours=(training + design.runs * score_seconds) / slots / USED / 3600,
        fits=True,
    )


def _power_of_two(value: float) -> int:
    """Return the largest power of two that is at most the value, and at least 1."""
    return 1 << max(0, math.floor(math.log2(max(value, 1.0))))

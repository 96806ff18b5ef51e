"""The posterior of a figure: joint draws of the true values, and what is read from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LIMITS = (0.025, 0.975)
"""Quantiles that draws are limited to for expectations."""


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """The true figures of m configurations, given what was measured.

    Attributes:
        draws: [num_draws, m] joint draws, without the error that all configurations share. Compare
            configurations by them.
        common: [num_draws, 1] the shared error, from the choice of the secrets: a factor if
            `ratio`, else an addend.
        shares: [m] how far each configuration follows the factor (see `shares_of_effect`).
        ratio: whether secrets differ by factors, not by differences.
        own_mean: [m] posterior means. If logarithms were modelled, they are the means of the draws
            limited to their 95 % interval, because the whole mean is infinite if the variances are
            hardly known.
        no_leak: the figure of a model that leaks nothing; None if it is not known.
    """

    draws: Array
    common: Array
    shares: Array
    ratio: bool
    own_mean: Array
    no_leak: float | None = 0.0

    @property
    def absolute(self) -> Array:
        """Return draws with the shared error, for one configuration's intervals, [num_draws, m]."""
        return self.absolute_of(slice(None))

    def absolute_of(self, configurations: slice) -> Array:
        """Return the columns of `absolute` of some configurations."""
        draws = self.draws[:, configurations]
        if not self.ratio:
            return draws + self.common
        factors = 1 + self.shares[configurations] * (self.common - 1)
        return draws * np.maximum(factors, 0.0)  # a rate stays above 0

    def chances(
        self, pool: NDArray[np.bool_], tolerance: float, *, log_base: float | None
    ) -> tuple[Array, Array]:
        """Return each configuration's probability to be the lowest of a pool [m], and to be near it.

        Several configurations may share the lowest draw, such as zeros; each of them counts.
        """
        lowest = self.draws[:, pool].min(axis=1)
        highest = self.highest_within(lowest, tolerance, log_base=log_base)
        return (self.draws <= lowest[:, None]).mean(axis=0), (self.draws <= highest[:, None]).mean(
            axis=0
        )

    def highest_within(self, lowest: Array, tolerance: float, *, log_base: float | None) -> Array:
        """Return the highest figure within a tolerance of each lowest figure, in the same shape.

        A tolerance of 0.1 allows 10 % more above `no_leak`; of a logarithm, a difference of log 1.1.
        A share of a figure means nothing if the figure can be negative and is no logarithm. It then
        has no tolerance, like one without `no_leak`.
        """
        if log_base is not None:
            return lowest + math.log1p(tolerance) / math.log(log_base)
        if self.ratio and self.no_leak is not None:
            lowest = lowest + tolerance * np.maximum(lowest - self.no_leak, 0)
        return lowest

    @cached_property
    def limited(self) -> Array:
        """Return the draws, each limited to its configuration's 95 % interval, for expectations."""
        # The tails of hardly known variances would otherwise decide an expectation.
        low, high = np.quantile(self.draws, LIMITS, axis=0)
        return self.draws.clip(low, high)

"""The posterior of a figure: joint draws of the true values, and what is read from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LIMITS = (0.025, 0.975)
"""Quantiles that draws are limited to for expectations."""
_MOST_LOG = 200.0


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """The true figures of m configurations, given what was measured.

    Attributes:
        draws: [num_draws, m] joint draws, without the error that all configurations share. Compare
            configurations by them.
        common: [num_draws, 1] the shared error, from the choice of the secrets: a factor if
            `ratio`, else an addend.
        ratio: whether secrets differ by factors, not by differences.
        own_mean: [m] posterior means. If logarithms were modelled, they are the means of the draws
            limited to their 95 % interval, because the whole mean is infinite if the variances are
            hardly known.
        operators: smooth other values of the figure, with the weight of each.
        no_leak: the figure of a model that leaks nothing; None if it is not known.
    """

    draws: Array
    common: Array
    ratio: bool
    own_mean: Array
    operators: tuple[tuple[float, Smoother], ...]
    no_leak: float | None = 0.0

    def times(self, unit: float) -> Posterior:
        """Return the posterior in another unit. Its draws replace the old ones, for memory."""
        return replace(
            self,
            draws=np.multiply(self.draws, unit, out=self.draws),
            common=self.common if self.ratio else self.common * unit,
            own_mean=self.own_mean * unit,
            operators=tuple(
                (weight, replace(operator, unit=unit)) for weight, operator in self.operators
            ),
        )

    @property
    def absolute(self) -> Array:
        """Return draws with the shared error, for one configuration's intervals, [num_draws, m]."""
        return self.absolute_of(slice(None))

    def absolute_of(self, configurations: slice) -> Array:
        """Return the columns of `absolute` of some configurations."""
        draws = self.draws[:, configurations]
        return draws * self.common if self.ratio else draws + self.common  # a rate stays above 0

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

    def expected(self, values: Array) -> Array:
        """Return the posterior means of measured means, [..., m], also of redrawn ones, unfitted."""
        smooth: Array = np.sum(
            [weight * operator(values) for weight, operator in self.operators], axis=0
        )
        return smooth

    @cached_property
    def limited(self) -> Array:
        """Return the draws, each limited to its configuration's 95 % interval, for expectations."""
        # The tails of hardly known variances would otherwise decide an expectation.
        low, high = np.quantile(self.draws, LIMITS, axis=0)
        return self.draws.clip(low, high)


def mixed(parts: Sequence[tuple[float, Posterior]]) -> Posterior:
    """Return the average of posteriors of the same figures, by weights and shares of the draws."""
    return Posterior(
        draws=np.concatenate([part.draws for _, part in parts]),
        common=np.concatenate([part.common for _, part in parts]),
        ratio=parts[0][1].ratio,
        own_mean=np.sum([weight * part.own_mean for weight, part in parts], axis=0),
        operators=tuple(
            (weight * own, operator) for weight, part in parts for own, operator in part.operators
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Smoother:
    """A linear smoother of the modelled configurations' figures, or of their logarithms.

    Attributes:
        rows: [n] positions of the modelled configurations.
        matrix: [n, n] smoother, the mean over the draws of the hyperparameters.
        rest: [r] positions of the other configurations.
        rest_matrix, rest_share: [r, n] and [r] how far each of these follows the modelled ones, and
            its own value.
        measured, expected: [m] the measured values and their posterior means on the modelled scale.
        lowest: logarithm of a value. On the logarithmic scale, values below it are raised to it
            before the logarithm.
        logarithm: whether the modelled scale is the logarithm.
        unit: values are divided by it before smoothing, and multiplied by it afterwards.
    """

    rows: NDArray[np.intp]
    matrix: Array
    rest: NDArray[np.intp]
    rest_matrix: Array
    rest_share: Array
    measured: Array
    expected: Array
    lowest: float
    logarithm: bool
    unit: float = 1.0

    def __call__(self, values: Array) -> Array:
        """Smooth values, [..., m]."""
        given = np.asarray(values, dtype=np.float64) / self.unit
        if self.logarithm:
            # Redrawn values may be 0 or less, where there is no logarithm.
            given = np.log(np.maximum(given, math.exp(self.lowest)))
        # Linear in the changes, so that the fitted values give the posterior means exactly.
        changes = given - self.measured
        of_modelled, moved = changes[..., self.rows], np.empty_like(changes)
        moved[..., self.rows] = of_modelled @ self.matrix.T
        moved[..., self.rest] = (
            of_modelled @ self.rest_matrix.T + changes[..., self.rest] * self.rest_share
        )
        smooth: Array = self.expected + moved
        return self.unit * (bounded_exp(smooth) if self.logarithm else smooth)


def bounded_exp(logarithms: Array, most: float = _MOST_LOG) -> Array:
    """Return the exponential of logarithms limited to [-most, most]. The default can be squared."""
    exponential: Array = np.exp(np.clip(logarithms, -most, most))
    return exponential

"""Configurations that a hierarchical model leaves out: each is conditioned on the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from raydp.analysis.statistics.noise import SeedNoise


Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RemainingConfigurations:
    """r configurations beside the n modelled ones, standardised like them.

    The true figure of each is normal given the modelled means (kriging), and again given its own
    mean. What is left out are the correlations among these configurations, given the model.

    Attributes:
        rows: [r] positions of the configurations.
        inputs: [r, d] coordinates.
        values: [r] means.
        noise: the errors over seeds, None if they are unknown.
        of_secrets: [r] variances of the errors over secrets.

    Source: Rasmussen and Williams 2006, equations 2.25 and 2.26.
    """

    rows: NDArray[np.intp]
    inputs: Array
    values: Array
    noise: SeedNoise | None
    of_secrets: Array

    def seed_variances(self, rng: np.random.Generator, num_draws: int, largest: float) -> Array:
        """Draw the variances of the errors over seeds, [num_draws, r]; 0 if they are unknown.

        Args:
            largest: limit of the ratio of a drawn variance to its estimate.
        """
        if self.noise is None:
            return np.zeros((num_draws, len(self.rows)))
        variances: Array = self.noise.std_error() ** 2 * self.noise.draw_ratios(
            rng, num_draws
        ).clip(max=largest)
        return variances

    def conditioned(
        self, cross: Array, own: Array, errors: Array, inverse: Array, values: Array
    ) -> Conditioned:
        """Return the true figures' distribution, given the modelled means and their own means.

        Args:
            cross: [r, n] prior covariance with the modelled configurations.
            own: [r] prior variances.
            errors: [r] variances of the errors of the configurations' own means.
            inverse: [n, n] inverse covariance of the modelled means.
            values: [n] modelled means.
        """
        # Kriging: the prediction from the modelled means, and the variance that it leaves.
        weights = cross @ inverse
        variance = np.maximum(own - (cross * weights).sum(axis=1), 0.0)
        # Weigh the prediction against the configuration's own mean by their precision.
        share = variance / (variance + errors)
        predicted = weights @ values
        mean = predicted + share * (self.values - predicted)
        return Conditioned(mean=mean, variance=variance * (1 - share))


@dataclass(frozen=True, kw_only=True)
class Conditioned:
    """Normal distributions of r true figures.

    Attributes:
        mean, variance: [r] of each.
    """

    mean: Array
    variance: Array

    def draw(self, rng: np.random.Generator, num_draws: int) -> Array:
        """Draw true figures, [num_draws, r]."""
        drawn: Array = self.mean + np.sqrt(self.variance) * rng.standard_normal(
            (num_draws, len(self.mean))
        )
        return drawn

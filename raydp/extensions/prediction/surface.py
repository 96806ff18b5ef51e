"""A Gaussian process of a figure over the configurations' coordinates, for predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.surface.hierarchical_model import matern
from raydp.analysis.surface.hierarchy import Figure
from raydp.analysis.tables.coordinates import Coordinates
from raydp.search_spaces.configuration import HYPERPARAMETERS

Array = NDArray[np.float64]

SLOPES: dict[Figure, float] = {"score": 0.35, "utility_loss": -0.35}
"""Prior mean of each slope, in standard deviations of the figure per one of ln b, ln T or ln η.

The score is expected to rise and the loss to fall with each of them (Hu et al. 2025, Table 2 and
Fig. 5). The slopes along further fields have the prior mean 0.
"""

MOST_ROWS = 1500

_SLOPE_STD = 0.35  # so that a slope of 0 is one standard deviation away
_LEVEL_STD = 1.0
# rows used to learn a surface's hyperparameters; the cost grows with the cube of the rows
_MOST_INFORMATIVE = 250
_BURN_IN, _KEPT, _THINNED = 40, 20, 5
_JITTER = 1e-8

# Means and standard deviations of the Gaussian priors of the logarithms of a surface's
# hyperparameters, in standard deviations of the inputs and of the figure: size of the nonlinear
# part, a length scale, unknown noise.
_SIZE, _LENGTH, _NOISE = (np.log(0.5), 0.7), (np.log(1.5), 0.7), (np.log(0.2), 1.0)


@dataclass(frozen=True, kw_only=True)
class Surface:
    """A Gaussian process with linear mean: slopes with a prior sign, and a Matérn-5/2 remainder.

    Fixing its hyperparameters at their most likely values is overconfident with few points. They
    are therefore drawn from their posterior by elliptical slice sampling, and figures are averages
    over the draws.

    Attributes:
        coordinates: the d coordinates of a configuration.
        centre, spread: [d] mean and standard deviation of the inputs.
        level, unit: mean and standard deviation of the figure, which is modelled as level + unit ·
            (...).
        slopes: [d] prior means of the slopes.
        inputs: [m, d] standardised inputs.
        residuals: [m] the standardised figure minus its prior mean.
        noise: [m] known variances of the standardised figure, NaN where they are learnt.
        hyperparameters: [draws, d + 2] draws of the hyperparameters' logarithms.

    Source: Rasmussen and Williams 2006, sections 2.2, 2.7; Murray, Adams and MacKay 2010
    (elliptical slice sampling).
    """

    coordinates: Coordinates
    centre: Array
    spread: Array
    level: float
    unit: float
    slopes: Array
    inputs: Array
    residuals: Array
    noise: Array
    hyperparameters: Array

    @classmethod
    def fit(
        cls,
        table: pd.DataFrame,
        figure: Figure,
        variance: Array | None,
        *,
        coordinates: Coordinates | None = None,
        seed: int = 0,
    ) -> Surface:
        """Fit a surface.

        Args:
            table: one row per configuration with batch_size, num_steps, learning_rate and the
                figure.
            figure: "score" or "utility_loss".
            variance: [m] variances of the figures' errors over seeds. None if they are unknown;
                then one is learnt.
            coordinates: the coordinates of all configurations that the surface will be asked for.
                None: those that tell the table's own configurations apart.
            seed: seed of the draws of the hyperparameters.

        Raises:
            ValueError: the table has more than 1,500 rows. The cost grows with the cube of the
                rows.
        """
        if len(table) > MOST_ROWS:
            raise ValueError(
                f"points must have at most {MOST_ROWS} configurations for a surface through them, "
                f"got {len(table)}. Leave some out."
            )
        # Standardise inputs and figure.
        coordinates = coordinates or Coordinates.of(table)
        z, y = coordinates.values(table), table[figure].to_numpy(dtype=np.float64)
        centre, spread = z.mean(axis=0), z.std(axis=0)
        spread = np.where(spread > 0, spread, 1.0)
        level, unit = float(y.mean()), float(y.std()) or 1.0
        inputs = (z - centre) / spread
        # Only b, T and η have an expected sign.
        slopes = np.zeros(coordinates.size)
        slopes[: len(HYPERPARAMETERS)] = SLOPES[figure]
        # NaN marks a variance that is learnt.
        known = np.full(len(y), np.nan) if variance is None else variance / unit**2
        surface = cls(
            coordinates=coordinates,
            centre=centre,
            spread=spread,
            level=level,
            unit=unit,
            slopes=slopes,
            inputs=inputs,
            residuals=(y - level) / unit - inputs @ slopes,
            noise=known,
            hyperparameters=np.empty((0, coordinates.size + 2)),
        )
        # Draw the hyperparameters from their posterior, given a random part of the rows.
        rng = np.random.default_rng(seed)
        few = surface._of_rows(rng.permutation(len(y))[:_MOST_INFORMATIVE])
        mean, std = np.transpose([_SIZE, *[_LENGTH] * coordinates.size, _NOISE])
        drawn = slice_samples(few._log_likelihood, rng, mean, std)
        return replace(surface, hyperparameters=drawn)

    def predict(self, table: pd.DataFrame) -> tuple[Array, Array]:
        """Return mean and std, [k] each, of a figure's expectation over seeds at a table's rows."""
        means, stds = self.components(table)
        # The law of total variance, over the draws of the hyperparameters.
        return means.mean(axis=0), np.sqrt((stds**2).mean(axis=0) + means.var(axis=0))

    def components(self, table: pd.DataFrame) -> tuple[Array, Array]:
        """Return means and stds of `predict` by draw of the hyperparameters, each [draws, k]."""
        points = self._standard(table)
        parts = [self._posterior(h, points, full=False) for h in self.hyperparameters]
        means, variances = np.array([p[0] for p in parts]), np.array([p[1] for p in parts])
        return self.level + self.unit * means, self.unit * np.sqrt(variances)

    def log_density(self) -> float:
        """Return the sum of the figures' log densities, each given the others (leave one out)."""
        return float(
            np.logaddexp.reduce([self._left_out(h) for h in self.hyperparameters], axis=0).sum()
        ) - len(self.residuals) * float(np.log(len(self.hyperparameters) * self.unit))

    def draw(self, table: pd.DataFrame, num_draws: int, *, seed: int) -> Array:
        """Draw whole surfaces at other configurations, shape [num_draws, k]."""
        rng = np.random.default_rng(seed)
        points = self._standard(table)
        drawn = []
        # Every draw of the hyperparameters gives its share of the surfaces.
        shares = np.array_split(np.arange(num_draws), len(self.hyperparameters))
        for share, h in zip(shares, self.hyperparameters, strict=True):
            mean, covariance = self._posterior(h, points, full=True)
            drawn.append(mean + rng.standard_normal((len(share), len(mean))) @ _root(covariance).T)
        return self.level + self.unit * np.concatenate(drawn)

    def _standard(self, table: pd.DataFrame) -> Array:
        standard: Array = (self.coordinates.values(table) - self.centre) / self.spread
        return standard

    def _of_rows(self, rows: NDArray[np.intp]) -> Surface:
        return replace(
            self, inputs=self.inputs[rows], residuals=self.residuals[rows], noise=self.noise[rows]
        )

    def _noise(self, hyperparameters: Array) -> Array:
        """Return [m] variances of the noise, with the learnt one where none is known."""
        learnt = np.exp(2 * hyperparameters[-1])
        return np.where(np.isnan(self.noise), learnt, self.noise) + _JITTER

    @cached_property
    def _squared_differences(self) -> Array:
        """Return [m, m, d] squared differences of the inputs."""
        squares: Array = (self.inputs[:, None, :] - self.inputs[None, :, :]) ** 2
        return squares

    @cached_property
    def _inner_products(self) -> Array:
        """Return [m, m] inner products of the inputs."""
        products: Array = self.inputs @ self.inputs.T
        return products

    def _log_likelihood(self, hyperparameters: Array) -> float:
        # cho_solve takes 8 times as long for matrices of this size.
        from scipy.linalg.lapack import dpotrs

        covariance = _covariance(self._inner_products, self._squared_differences, hyperparameters)
        covariance.flat[:: len(covariance) + 1] += self._noise(hyperparameters)
        factor = np.linalg.cholesky(covariance)
        fit = self.residuals @ dpotrs(factor, self.residuals, lower=1)[0]
        return float(-0.5 * fit - np.log(np.diag(factor)).sum())

    def _posterior(
        self, hyperparameters: Array, points: Array, *, full: bool
    ) -> tuple[Array, Array]:
        """Return the standardised mean at some points, and variances, or a covariance if `full`."""
        from scipy.linalg import cho_factor, cho_solve, solve_triangular

        covariance = _kernel(self.inputs, self.inputs, hyperparameters)
        covariance[np.diag_indices_from(covariance)] += self._noise(hyperparameters)
        factor = cho_factor(covariance, lower=True)
        across = _kernel(self.inputs, points, hyperparameters)
        mean = points @ self.slopes + across.T @ cho_solve(factor, self.residuals)
        narrowed = solve_triangular(factor[0], across, lower=True)
        if full:
            return mean, _kernel(points, points, hyperparameters) - narrowed.T @ narrowed
        # A point is at distance 0 from itself, so its prior variance needs no kernel.
        prior = (
            np.exp(2 * hyperparameters[0]) + _LEVEL_STD**2 + _SLOPE_STD**2 * (points**2).sum(axis=1)
        )
        return mean, np.maximum(prior - (narrowed**2).sum(axis=0), 0.0)

    def _left_out(self, hyperparameters: Array) -> Array:
        """Return standardised log densities, [m] (Rasmussen and Williams 2006, 5.10 to 5.12)."""
        covariance = _kernel(self.inputs, self.inputs, hyperparameters)
        inverse = np.linalg.inv(covariance + np.diag(self._noise(hyperparameters)))
        variance = 1 / np.diag(inverse)
        residual = (inverse @ self.residuals) * variance
        density: Array = -0.5 * (np.log(2 * np.pi * variance) + residual**2 / variance)
        return density


def _kernel(a: Array, b: Array, hyperparameters: Array) -> Array:
    """Return the prior covariance of the inputs a and b."""
    return _covariance(a @ b.T, (a[:, None, :] - b[None, :, :]) ** 2, hyperparameters)


def _covariance(products: Array, squares: Array, hyperparameters: Array) -> Array:
    """Return the prior covariance: level, slopes and remainder.

    Args:
        products: [m, k] inner products of the inputs.
        squares: [m, k, d] squared differences of the inputs.
        hyperparameters: as `Surface.hyperparameters`.
    """
    remainder = np.exp(2 * hyperparameters[0]) * matern(
        squares @ np.exp(-2 * hyperparameters[1:-1])
    )
    covariance: Array = _LEVEL_STD**2 + _SLOPE_STD**2 * products + remainder
    return covariance


def slice_samples(
    log_likelihood: Callable[[Array], float], rng: np.random.Generator, mean: Array, std: Array
) -> Array:
    """Draw hyperparameters from their posterior by elliptical slice sampling, [_KEPT, size].

    Args:
        log_likelihood: returns the log likelihood of hyperparameters, [size].
        rng: generator of the draws.
        mean, std: [size] means and standard deviations of the independent Gaussian priors.

    Source: Murray, Adams and MacKay 2010.
    """
    state = np.zeros(len(mean))  # standardised, so that its prior is a standard Gaussian

    def value(standard: Array) -> float:
        return log_likelihood(mean + std * standard)

    current, kept = value(state), []
    if not np.isfinite(current):  # figures too far apart for any model
        return np.tile(mean, (_KEPT, 1))
    for iteration in range(_BURN_IN + _KEPT * _THINNED):
        other = rng.standard_normal(len(state))
        # The level of the slice, and a bracket around the whole ellipse.
        level = current + np.log(rng.uniform())
        angle = rng.uniform(0, 2 * np.pi)
        low, high = angle - 2 * np.pi, angle
        # Shrink the bracket towards the state until the proposal lies on the slice.
        while True:
            proposal = state * np.cos(angle) + other * np.sin(angle)
            current = value(proposal)
            if current > level:
                break
            low, high = (angle, high) if angle < 0 else (low, angle)
            angle = rng.uniform(low, high)
        state = proposal
        if iteration >= _BURN_IN and (iteration - _BURN_IN) % _THINNED == 0:
            kept.append(mean + std * state)
    return np.array(kept)


def _root(covariance: Array) -> Array:
    """Return a root of the covariance, with eigenvalues that rounding made negative as 0."""
    values, vectors = np.linalg.eigh(covariance)
    root: Array = vectors * np.sqrt(np.maximum(values, 0))
    return root

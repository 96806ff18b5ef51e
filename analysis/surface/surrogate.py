"""A smooth surface over (ln b, ln T, ln η) through what was measured: what other configurations would give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from search_spaces.configuration import HYPERPARAMETERS

Array = NDArray[np.float64]
Figure = Literal["score", "utility_loss"]

SLOPES: dict[Figure, float] = {"score": 0.35, "utility_loss": -0.35}
"""Prior mean of each slope, in standard deviations of the figure for one of ln b, ln T or ln η: with more of each the
score is expected to rise and the loss to fall (Hu et al. 2025, Table 2 and Fig. 5)."""

MOST_ROWS = 1500

_SLOPE_STD = 0.35  # so that a slope of the other sign is one standard deviation away
_LEVEL_STD = 1.0
_MOST_INFORMATIVE = 250  # rows that the hyperparameters of a surface are learnt from: their cost grows with the cube
_BURN_IN, _KEPT, _THINNED = 40, 20, 5
_JITTER = 1e-8

# Means and standard deviations of the Gaussian priors of the logarithms of a surface's hyperparameters, in standard
# deviations of the inputs and of the figure: size of what is not linear, three length scales, unknown noise.
_PRIOR_MEAN = np.log([0.5, 1.5, 1.5, 1.5, 0.2])
_PRIOR_STD = np.array([0.7, 0.7, 0.7, 0.7, 1.0])


class TooManyError(ValueError):
    """There are more configurations than a surface is fitted to."""


@dataclass(frozen=True, kw_only=True)
class Surface:
    """A Gaussian process with linear mean: slopes with a prior sign, and a Matérn-5/2 remainder.

    Its hyperparameters are not fixed at their likeliest values, which is too sure of itself with few points, but drawn
    from their posterior by elliptical slice sampling; figures are averages over the draws.

    Attributes:
        centre, spread: [3] of the inputs.
        level, unit: of the figure; it is modelled as level + unit · (...).
        slope: prior mean of each slope.
        inputs: [m, 3] standardised.
        residuals: [m] the standardised figure minus its prior mean.
        noise: [m] known variances of it.
        hyperparameters: [draws, 5].

    Source: Rasmussen and Williams 2006, sections 2.2, 2.7; Murray, Adams and MacKay 2010 (elliptical slice sampling).
    """

    centre: Array
    spread: Array
    level: float
    unit: float
    slope: float
    inputs: Array
    residuals: Array
    noise: Array
    hyperparameters: Array

    @classmethod
    def fit(cls, table: pd.DataFrame, figure: Figure, variance: Array | None, *, seed: int = 0) -> Surface:
        """Learn a surface.

        Args:
            table: one row per configuration with batch_size, num_steps, learning_rate and the figure.
            figure: "score" or "utility_loss".
            variance: [m] of the figures' errors over seeds; None where it is not known: it is learnt then.
            seed: of the draws of the hyperparameters.

        Raises:
            TooManyError: more than 1,500 rows: the cost grows with their cube.
        """
        if len(table) > MOST_ROWS:
            raise TooManyError(
                f"points must have at most {MOST_ROWS} configurations for a surface through them, got {len(table)}. "
                "Leave some out."
            )
        z, y = _logs(table), table[figure].to_numpy(dtype=np.float64)
        centre, spread = z.mean(axis=0), z.std(axis=0)
        spread = np.where(spread > 0, spread, 1.0)
        level, unit = float(y.mean()), float(y.std()) or 1.0
        inputs = (z - centre) / spread
        slope = SLOPES[figure]
        known = np.full(len(y), np.nan) if variance is None else variance / unit**2
        surface = cls(
            centre=centre,
            spread=spread,
            level=level,
            unit=unit,
            slope=slope,
            inputs=inputs,
            residuals=(y - level) / unit - slope * inputs.sum(axis=1),
            noise=known,
            hyperparameters=np.empty((0, 5)),
        )
        rng = np.random.default_rng(seed)
        few = surface._some(rng.permutation(len(y))[:_MOST_INFORMATIVE])
        drawn = _slice_samples(few._log_likelihood, rng)
        return replace(surface, hyperparameters=drawn)

    def predict(self, table: pd.DataFrame) -> tuple[Array, Array]:
        """[k] means and [k] standard deviations of the figure's expectation over seeds at other configurations."""
        means, stds = self.components(table)
        return means.mean(axis=0), np.sqrt((stds**2).mean(axis=0) + means.var(axis=0))

    def components(self, table: pd.DataFrame) -> tuple[Array, Array]:
        """[draws, k] means and standard deviations of the same, one Gaussian for each draw of the hyperparameters."""
        points = self._standard(table)
        parts = [self._posterior(h, points, full=False) for h in self.hyperparameters]
        means, variances = np.array([p[0] for p in parts]), np.array([p[1] for p in parts])
        return self.level + self.unit * means, self.unit * np.sqrt(variances)

    def log_density(self) -> float:
        """Sum over configurations of the log density of each measured figure given the others (leave one out)."""
        return float(np.logaddexp.reduce([self._left_out(h) for h in self.hyperparameters], axis=0).sum()) - len(
            self.residuals
        ) * float(np.log(len(self.hyperparameters) * self.unit))

    def draw(self, table: pd.DataFrame, num_draws: int, *, seed: int) -> Array:
        """[num_draws, k] whole surfaces, at other configurations."""
        rng = np.random.default_rng(seed)
        points = self._standard(table)
        drawn = []
        shares = np.array_split(np.arange(num_draws), len(self.hyperparameters))
        for share, h in zip(shares, self.hyperparameters, strict=True):
            mean, covariance = self._posterior(h, points, full=True)
            drawn.append(mean + rng.standard_normal((len(share), len(mean))) @ _root(covariance).T)
        return self.level + self.unit * np.concatenate(drawn)

    def smoothed(self, values: Array) -> Array:
        """[..., m] the surfaces through other values [..., m] of the figure at the same configurations, for the same
        hyperparameters."""
        line = self.level + self.unit * self.slope * self.inputs.sum(axis=1)
        matrix = np.mean([self._smoother(h) for h in self.hyperparameters], axis=0)
        smooth: Array = line + (values - line) @ matrix.T
        return smooth

    def _standard(self, table: pd.DataFrame) -> Array:
        standard: Array = (_logs(table) - self.centre) / self.spread
        return standard

    def _some(self, rows: NDArray[np.intp]) -> Surface:
        return replace(self, inputs=self.inputs[rows], residuals=self.residuals[rows], noise=self.noise[rows])

    def _noise(self, hyperparameters: Array) -> Array:
        learnt = np.exp(2 * hyperparameters[4])
        return np.where(np.isnan(self.noise), learnt, self.noise) + _JITTER

    def _log_likelihood(self, hyperparameters: Array) -> float:
        from scipy.linalg import cho_solve

        covariance = _kernel(self.inputs, self.inputs, hyperparameters)
        covariance[np.diag_indices_from(covariance)] += self._noise(hyperparameters)
        factor = np.linalg.cholesky(covariance)
        fit = self.residuals @ cho_solve((factor, True), self.residuals)
        return float(-0.5 * fit - np.log(np.diag(factor)).sum())

    def _posterior(self, hyperparameters: Array, points: Array, *, full: bool) -> tuple[Array, Array]:
        """Standardised mean at some points, and variances or covariance."""
        from scipy.linalg import cho_factor, cho_solve, solve_triangular

        covariance = _kernel(self.inputs, self.inputs, hyperparameters)
        covariance[np.diag_indices_from(covariance)] += self._noise(hyperparameters)
        factor = cho_factor(covariance, lower=True)
        across = _kernel(self.inputs, points, hyperparameters)
        mean = self.slope * points.sum(axis=1) + across.T @ cho_solve(factor, self.residuals)
        narrowed = solve_triangular(factor[0], across, lower=True)
        if full:
            return mean, _kernel(points, points, hyperparameters) - narrowed.T @ narrowed
        prior = np.exp(2 * hyperparameters[0]) + _LEVEL_STD**2 + _SLOPE_STD**2 * (points**2).sum(axis=1)
        return mean, np.maximum(prior - (narrowed**2).sum(axis=0), 0.0)

    def _left_out(self, hyperparameters: Array) -> Array:
        """[m] log densities, standardised (Rasmussen and Williams 2006, equations 5.10 to 5.12)."""
        covariance = _kernel(self.inputs, self.inputs, hyperparameters)
        inverse = np.linalg.inv(covariance + np.diag(self._noise(hyperparameters)))
        variance = 1 / np.diag(inverse)
        residual = (inverse @ self.residuals) * variance
        density: Array = -0.5 * (np.log(2 * np.pi * variance) + residual**2 / variance)
        return density

    def _smoother(self, hyperparameters: Array) -> Array:
        covariance = _kernel(self.inputs, self.inputs, hyperparameters)
        solved = np.linalg.solve(covariance + np.diag(self._noise(hyperparameters)), covariance)
        return np.asarray(solved.T, dtype=np.float64)


def _logs(table: pd.DataFrame) -> Array:
    logs: Array = np.log(table[HYPERPARAMETERS].to_numpy(dtype=np.float64))
    return logs


def _kernel(a: Array, b: Array, hyperparameters: Array) -> Array:
    """Prior covariance: level, slopes and remainder."""
    scaled = (a[:, None, :] - b[None, :, :]) / np.exp(hyperparameters[1:4])
    distance = np.sqrt(5 * (scaled**2).sum(axis=-1))
    remainder = np.exp(2 * hyperparameters[0]) * (1 + distance + distance**2 / 3) * np.exp(-distance)
    kernel: Array = _LEVEL_STD**2 + _SLOPE_STD**2 * a @ b.T + remainder
    return kernel


def _slice_samples(log_likelihood: Callable[[Array], float], rng: np.random.Generator) -> Array:
    """[_KEPT, 5] draws from the posterior of the hyperparameters."""
    state = np.zeros(len(_PRIOR_MEAN))  # standardised: its prior is a standard Gaussian

    def value(standard: Array) -> float:
        return log_likelihood(_PRIOR_MEAN + _PRIOR_STD * standard)

    current, kept = value(state), []
    for iteration in range(_BURN_IN + _KEPT * _THINNED):
        other = rng.standard_normal(len(state))
        level = current + np.log(rng.uniform())
        angle = rng.uniform(0, 2 * np.pi)
        low, high = angle - 2 * np.pi, angle
        while True:
            proposal = state * np.cos(angle) + other * np.sin(angle)
            current = value(proposal)
            if current > level:
                break
            low, high = (angle, high) if angle < 0 else (low, angle)
            angle = rng.uniform(low, high)
        state = proposal
        if iteration >= _BURN_IN and (iteration - _BURN_IN) % _THINNED == 0:
            kept.append(_PRIOR_MEAN + _PRIOR_STD * state)
    return np.array(kept)


def _root(covariance: Array) -> Array:
    """A matrix whose product with its transpose is the covariance, whatever rounding made of its small eigenvalues."""
    values, vectors = np.linalg.eigh(covariance)
    root: Array = vectors * np.sqrt(np.maximum(values, 0))
    return root

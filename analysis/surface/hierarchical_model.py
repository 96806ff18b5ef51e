"""The hierarchical model on one scale: a smooth surface, an effect of each configuration, and errors of its mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.statistics.noise import FARTHEST, SeedNoise, secret_covariance
from raydp.analysis.surface.posterior import LIMITS, Posterior, Smoother, bounded_exp
from raydp.analysis.surface.remaining import RemainingConfigurations
from raydp.analysis.surface.surrogate import matern, slice_samples
from raydp.analysis.tables.coordinates import Coordinates

Array = NDArray[np.float64]

_VARIANCE_DRAWS, _MANY = 5, 150  # draws of the variances for each draw of the hyperparameters; one for many rows
_MOST_INFORMATIVE = 100  # rows that the hyperparameters are learnt from
_FARTHEST_SECRET = 1e6  # in standard deviations of the figure; farther values are not of this figure
_VAGUE = 100.0  # prior variance of the level, in variances of the figure
_JITTER = 1e-10
_SAME = 2.0**-20  # of the unit
_FARTHEST_BELOW = 4.0  # units
_LARGEST_RATIO = 1e6  # of a drawn variance to its estimate, which has no upper limit with few degrees of freedom

# Means and standard deviations of the Gaussian priors of the logarithms of the hyperparameters, in standard deviations
# of the inputs and of the figure: size of the nonlinear part, a length scale, size of the slopes, effect of a
# configuration, and error of a mean, which is only used where no seeds tell it.
_SIZE, _LENGTH = (np.log(0.3), 1.0), (np.log(1.5), 0.7)
_REST = ((np.log(0.4), 1.0), (np.log(0.15), 1.0), (np.log(0.2), 1.0))
_SLOPE, _CONFIGURATION, _UNKNOWN_ERROR = -3, -2, -1


@dataclass(frozen=True, kw_only=True)
class HierarchicalModel:
    """The model on one scale, of n configurations, standardised.

    Attributes:
        rows: [n] positions of the modelled configurations.
        inputs: [n, d] standardised coordinates of the configurations.
        values: [n] standardised means.
        level, unit: mean and standard deviation of the means before; the unit is at least their typical error.
        logarithm: whether the values are logarithms.
        log_volume: the logarithm of the measured values' volume per standardised volume, to compare scales.
        noise: the errors over seeds, None if they are unknown.
        of_secrets: [n, n] covariance of the errors over secrets.
        num_secrets: number of secrets, 0 if their choice is not counted.
        remaining: the configurations that are not modelled.
        hyperparameters: [draws, d + 4] draws of the hyperparameters' logarithms.
    """

    rows: NDArray[np.intp]
    inputs: Array
    values: Array
    level: float
    unit: float
    logarithm: bool
    log_volume: float
    noise: SeedNoise | None
    of_secrets: Array
    num_secrets: int
    remaining: RemainingConfigurations
    hyperparameters: Array

    @classmethod
    def of(
        cls,
        means: pd.DataFrame,
        rows: NDArray[np.intp],
        measured: Array,
        std: Array,
        by_secret: Array | None,
        *,
        ratio: bool,
        logarithm: bool,
    ) -> HierarchicalModel:
        """Standardise the inputs, the figure and its errors.

        Args:
            means: [m] configuration means, for the configurations and the numbers of seeds.
            rows: [n] positions of the configurations that are modelled.
            measured, std: [m] means of the figure and standard deviations over seeds.
            by_secret: [m, k] means by secret, k >= 2, None if the choice of secrets is not counted.
            ratio: whether secrets differ by factors.
            logarithm: whether to model the logarithm.
        """
        num_seeds = means["num_seeds"].to_numpy()
        rest = np.setdiff1d(np.arange(len(means)), rows)
        all_values, all_std = (np.log(measured), std / measured) if logarithm else (measured, std)  # to first order
        values = all_values[rows]
        own, of_rest = None, np.zeros(len(rest))
        if by_secret is not None:
            of_all = _of_secrets(measured, by_secret, ratio=ratio, logarithm=logarithm)
            own, of_rest = of_all[rows], of_all[rest].var(axis=1) / by_secret.shape[1]
        level = float(values.mean())
        noise_of_all = SeedNoise.of(all_std, num_seeds)
        noise = None if noise_of_all is None else noise_of_all.take(rows)
        unit = _unit(values - level, noise, own)
        scale = unit or 1.0
        own = None if own is None else (own / scale).clip(-_FARTHEST_SECRET, _FARTHEST_SECRET)
        z = Coordinates.of(means).values(means)
        spread = z[rows].std(axis=0)
        z = (z - z[rows].mean(axis=0)) / np.where(spread > 0, spread, 1.0)
        return cls(
            rows=rows,
            inputs=z[rows],
            values=(values - level) / scale,
            level=level,
            unit=unit,
            logarithm=logarithm,
            log_volume=len(rows) * float(np.log(scale)) + (float(values.sum()) if logarithm else 0.0),
            noise=None if noise is None else noise.over(scale),
            of_secrets=np.zeros((len(rows), len(rows))) if own is None else secret_covariance(own),
            num_secrets=0 if own is None else own.shape[1],
            remaining=RemainingConfigurations(
                rows=rest,
                inputs=z[rest],
                values=(all_values[rest] - level) / scale,
                noise=None if noise_of_all is None else noise_of_all.take(rest).over(scale),
                of_secrets=of_rest / scale**2,
            ),
            hyperparameters=np.empty((0, z.shape[1] + 1 + len(_REST))),
        )

    def fitted(self, rng: np.random.Generator) -> HierarchicalModel:
        """Draw the hyperparameters from their posterior, given a random part of the rows."""
        few = self._some(np.sort(rng.permutation(len(self.values))[:_MOST_INFORMATIVE]))
        mean, std = np.transpose([_SIZE, *[_LENGTH] * self.inputs.shape[1], *_REST])
        return replace(self, hyperparameters=slice_samples(few._log_likelihood, rng, mean, std))

    def log_density(self) -> float:
        """Return the sum over configurations of the log density of each mean given the others (leave one out).

        Source: Rasmussen and Williams 2006, equations 5.10 to 5.12.
        """
        densities = []
        for h in self.hyperparameters:
            inverse = np.linalg.inv(self._prior(h) + self._errors(h, self._seed_variances, 1.0))
            variance = 1 / np.diag(inverse)
            residual = (inverse @ self.values) * variance
            densities.append(-0.5 * (np.log(2 * np.pi * variance) + residual**2 / variance))
        mixed = np.logaddexp.reduce(densities, axis=0) - np.log(len(densities))
        return float(mixed.sum()) - self.log_volume

    def posterior(self, measured: Array, rng: np.random.Generator, common: Array, *, ratio: bool) -> Posterior:
        """Return the posterior of all m configurations.

        Args:
            measured: [m] measured means.
            rng: generator of the draws.
            common: the error that all configurations share.
            ratio: whether the figure is a rate, which is never negative.

        Joint draws follow Matheron's rule: a draw of the prior, corrected by the difference between what was measured
        and what the draw would have given (Wilson et al. 2020, equation 9). `RemainingConfigurations` adds the rest.
        """
        from scipy.linalg import cho_factor, cho_solve

        size, times = len(self.values), len(self.hyperparameters) * self._variance_draws
        drawn = np.empty((len(common), len(measured)))
        matrix, posterior_means = np.zeros((size, size)), []
        rest = self.remaining
        rest_mean, rest_share, rest_matrix = (np.zeros((len(rest.rows), *shape)) for shape in ((), (), (size,)))
        shares = iter(np.array_split(np.arange(len(common)), times))
        for h in self.hyperparameters:
            prior = self._prior(h)
            root = np.linalg.cholesky(prior + _JITTER * float(np.diag(prior).max()) * np.eye(size))
            cross, own = self._remaining_prior(h)
            for errors, factor_of_secrets in self._drawn_errors(h, rng):
                # The mean, given these errors.
                factor = cho_factor(prior + errors, lower=True, check_finite=False)
                gain = cho_solve(factor, prior, check_finite=False)
                posterior_means.append(gain.T @ self.values)
                matrix += gain.T / times
                # Joint draws.
                share = next(shares)
                prior_draws = root @ rng.standard_normal((size, len(share)))
                error_draws = np.linalg.cholesky(errors) @ rng.standard_normal((size, len(share)))
                truth = prior_draws + gain.T @ (self.values[:, None] - prior_draws - error_draws)
                drawn[np.ix_(share, self.rows)] = self._on_own_scale(truth.T)
                # The remaining configurations, each for itself.
                if len(rest.rows):
                    own_errors = self._remaining_errors(h, factor_of_secrets, rng)
                    solve = partial(cho_solve, factor, check_finite=False)
                    given = rest.conditioned(cross, own, own_errors, solve, self.values)
                    drawn[np.ix_(share, rest.rows)] = self._on_own_scale(given.draw(rng, len(share)))
                    rest_mean += given.mean / times
                    rest_share += given.share / times
                    rest_matrix += given.weights / times
        drawn = np.maximum(drawn, 0.0) if ratio else drawn
        own_mean = self._own_mean(drawn, np.mean(posterior_means, axis=0), rest_mean, ratio=ratio)
        scale = np.log if self.logarithm else np.positive
        operator = Smoother(
            rows=self.rows,
            matrix=matrix,
            rest=rest.rows,
            rest_matrix=rest_matrix,
            rest_share=rest_share,
            measured=scale(measured),
            expected=scale(own_mean),
            lowest=self.level - _FARTHEST_BELOW * self.unit,
            logarithm=self.logarithm,
        )
        return Posterior(draws=drawn, common=common, ratio=ratio, own_mean=own_mean, operator=operator)

    def _own_mean(self, drawn: Array, of_modelled: Array, of_rest: Array, *, ratio: bool) -> Array:
        """Return the posterior means, [m].

        Args:
            drawn: [num_draws, m] draws.
            of_modelled, of_rest: standardised posterior means.
            ratio: as in `posterior`.
        """
        if self.logarithm:
            low, high = np.quantile(drawn, LIMITS, axis=0)
            means: Array = drawn.clip(low, high).mean(axis=0)
            return means
        means = np.empty(drawn.shape[1])
        means[self.rows], means[self.remaining.rows] = of_modelled, of_rest
        means = self.level + self.unit * means
        digits = (self.unit or _SAME) * _SAME  # differences that come from rounding decide nothing
        rounded: Array = np.round(np.maximum(means, 0.0) / digits if ratio else means / digits) * digits
        return rounded

    def _on_own_scale(self, standard: Array) -> Array:
        values = self.level + self.unit * standard
        return bounded_exp(values) if self.logarithm else values

    def _some(self, rows: NDArray[np.intp]) -> HierarchicalModel:
        """Return the model of some configurations."""
        return replace(
            self,
            inputs=self.inputs[rows],
            values=self.values[rows],
            noise=None if self.noise is None else self.noise.take(rows),
            of_secrets=self.of_secrets[np.ix_(rows, rows)],
        )

    @cached_property
    def _seed_variances(self) -> Array:
        return np.zeros(len(self.values)) if self.noise is None else self.noise.std_error() ** 2

    @property
    def _variance_draws(self) -> int:
        return _VARIANCE_DRAWS if len(self.values) <= _MANY else 1

    @cached_property
    def _level_variance(self) -> float:
        return _VAGUE * (1 + float(np.diag(self.of_secrets).mean()) + float(self._seed_variances.mean()))

    @cached_property
    def _products(self) -> Array:
        products: Array = self.inputs @ self.inputs.T
        return products

    @cached_property
    def _squares(self) -> Array:
        squares: Array = (self.inputs[:, None, :] - self.inputs[None, :, :]) ** 2
        return squares

    def _prior(self, h: Array) -> Array:
        """Return the prior covariance: level, slopes, remainder, and the effects of the configurations."""
        covariance: Array = np.exp(2 * h[0]) * matern(self._squares @ np.exp(-2 * h[1:_SLOPE]))
        covariance += self._level_variance + np.exp(2 * h[_SLOPE]) * self._products
        covariance.flat[:: len(covariance) + 1] += np.exp(2 * h[_CONFIGURATION])
        return covariance

    def _remaining_prior(self, h: Array) -> tuple[Array, Array]:
        """Return the prior covariance of the remaining configurations with the modelled ones, and their variances."""
        inputs = self.remaining.inputs
        squares = np.zeros((len(inputs), len(self.inputs)))
        for at, weight in enumerate(np.exp(-2 * h[1:_SLOPE])):
            squares += weight * (inputs[:, at, None] - self.inputs[None, :, at]) ** 2
        size, slope = np.exp(2 * h[0]), np.exp(2 * h[_SLOPE])
        cross: Array = size * matern(squares) + self._level_variance + slope * (inputs @ self.inputs.T)
        own: Array = size + self._level_variance + slope * (inputs**2).sum(axis=1) + np.exp(2 * h[_CONFIGURATION])
        return cross, own

    def _remaining_errors(self, h: Array, factor_of_secrets: float, rng: np.random.Generator) -> Array:
        """Draw the variances of the errors of the remaining configurations' means."""
        of_seeds, of_secrets = self.remaining.seed_variances(rng, _LARGEST_RATIO), self.remaining.of_secrets
        return of_seeds + factor_of_secrets * of_secrets + self._unknown_error(h) + _JITTER

    def _unknown_error(self, h: Array) -> float:
        """Return the variance of a mean's error where no seeds tell it, else 0."""
        return float(np.exp(2 * h[_UNKNOWN_ERROR])) if self.noise is None else 0.0

    def _errors(self, h: Array, of_seeds: Array, factor: float) -> Array:
        """Return the covariance of the means' errors."""
        covariance: Array = factor * self.of_secrets
        diagonal = covariance.flat[:: len(covariance) + 1]
        jitter = _JITTER * (1 + diagonal.max())
        covariance.flat[:: len(covariance) + 1] = diagonal + of_seeds + self._unknown_error(h) + jitter
        return covariance

    def _drawn_errors(self, h: Array, rng: np.random.Generator) -> Iterator[tuple[Array, float]]:
        """Draw the covariance of the errors, because the variances are estimates themselves.

        Each comes with the factor of the variances of the errors over secrets.
        """
        for _ in range(self._variance_draws):
            of_seeds = self._seed_variances
            if self.noise is not None:
                of_seeds = of_seeds * self.noise.draw_ratios(rng).clip(max=_LARGEST_RATIO)
            factor = 1.0
            if self.num_secrets:
                factor = min((self.num_secrets - 1) / rng.chisquare(self.num_secrets - 1), _LARGEST_RATIO)
            yield self._errors(h, of_seeds, factor), factor

    def _log_likelihood(self, h: Array) -> float:
        from scipy.linalg.lapack import dtrtrs  # solve_triangular takes 50 times as long for matrices of this size

        factor = np.linalg.cholesky(self._prior(h) + self._errors(h, self._seed_variances, 1.0))
        solved, _ = dtrtrs(factor.T, self.values, lower=0, trans=1)
        return float(-0.5 * solved @ solved - np.log(np.diag(factor)).sum())


def _unit(centred: Array, noise: SeedNoise | None, of_secrets: Array | None) -> float:
    """Return the unit of the values: their standard deviation, or their typical error if that is larger.

    Values that are closer than their errors are expressed in units of their errors. Otherwise the prior would take it
    for known that they hardly differ.
    """
    errors = [] if noise is None else [float(np.sqrt((noise.std_error() ** 2).mean()))]
    errors += [] if of_secrets is None else [float(np.sqrt((of_secrets.var(axis=1) / of_secrets.shape[1]).mean()))]
    return max(float(centred.std()), *errors, 0.0)


def _of_secrets(measured: Array, by_secret: Array, *, ratio: bool, logarithm: bool) -> Array:
    """Return the interactions of secrets and configurations on the modelled scale, [n, k]."""
    own = interactions(measured, by_secret, ratio=ratio)
    return (own / measured[:, None] if logarithm else own).clip(-FARTHEST, FARTHEST)


def interactions(measured: Array, by_secret: Array, *, ratio: bool) -> Array:
    """Return what is left of the values by secret after the secrets' common effect, [n, k]."""
    if not ratio:
        rest: Array = by_secret - by_secret.mean(axis=0)
        return rest
    # The projection takes the unit vector, because the factors of tiny means can be larger than a double.
    largest = float(np.abs(measured).max())
    direction = measured / largest if largest else measured
    direction = direction / (float(np.linalg.norm(direction)) or 1.0)
    rest = by_secret - direction[:, None] * (direction @ by_secret)
    return rest

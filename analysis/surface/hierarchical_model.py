"""Hierarchical model on one scale: smooth surface, configurations' effects, errors of means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.statistics.noise import (
    FARTHEST,
    SeedNoise,
    effect_of_secrets,
    secret_covariance,
    shares_of_effect,
)
from raydp.analysis.surface.posterior import LIMITS
from raydp.analysis.surface.remaining import Conditioned, RemainingConfigurations
from raydp.analysis.surface.sampler import posterior_draws
from raydp.analysis.surface.scale import Scale
from raydp.analysis.tables.coordinates import Coordinates

Array = NDArray[np.float64]

# limits of the draws of the hyperparameters, and of what they cost together
_FEWEST, _MOST, _WORK = (20, 1000, 2e8)
# likelihoods in each round of the sampler, and times the rows
_FEWEST_POINTS, _MOST_POINTS, _POINTS = (64, 256, 12_800)
_MOST_DENSITIES = 400  # draws of the hyperparameters that tell which scale is better
_CELLS = 500_000  # numbers of the matrices that are factorised together
# in standard deviations of the figure; farther values are not of this figure
_FARTHEST_SECRET = 1e6
_VAGUE = 100.0  # prior variance of the level, in variances of the figure
_JITTER = 1e-10
_SAME = 2.0**-20  # of the unit
_FARTHEST = 4.0  # units
# of a drawn variance to its estimate, which has no upper limit with few degrees of freedom
_LARGEST_RATIO = 1e6

# Means and standard deviations of the Gaussian priors of the logarithms of the hyperparameters, in
# standard deviations of the inputs and of the figure: size of the nonlinear part, a length scale,
# size of the slopes, effect of a configuration, and error of a mean, which is only used where no
# seeds tell it.
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
        level, unit: mean and standard deviation of the means before; the unit is at least their
            typical error.
        scale: the scale of the values.
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
    scale: Scale
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
        scale: Scale,
    ) -> HierarchicalModel:
        """Standardise the inputs, the figure and its errors.

        Args:
            means: [m] configuration means, for the configurations and the numbers of seeds.
            rows: [n] positions of the configurations that are modelled.
            measured, std: [m] means of the figure and standard deviations over seeds.
            by_secret: [m, k] means by secret, k >= 2, None if the choice of secrets is not counted.
            ratio: whether secrets differ by factors.
            scale: the scale to model.
        """
        num_seeds = means["num_seeds"].to_numpy()
        rest = np.setdiff1d(np.arange(len(means)), rows)
        slopes = scale.slope(measured)
        all_values, all_std = scale.to(measured), std * slopes
        values = all_values[rows]
        own, of_rest = None, np.zeros(len(rest))
        # Without the secrets' common effect, which cancels in every comparison.
        if by_secret is not None:
            of_all = _of_secrets(measured, by_secret, slopes, ratio=ratio)
            own, of_rest = of_all[rows], of_all[rest].var(axis=1) / by_secret.shape[1]
        level = float(values.mean())
        noise_of_all = SeedNoise.of(all_std, num_seeds)
        noise = None if noise_of_all is None else noise_of_all.take(rows)
        # Standardised over the modelled configurations, so that one prior suits every figure.
        unit = _unit(values - level, noise, own)
        size = unit or 1.0
        own = None if own is None else (own / size).clip(-_FARTHEST_SECRET, _FARTHEST_SECRET)
        z = Coordinates.of(means).values(means)
        spread = z[rows].std(axis=0)
        z = (z - z[rows].mean(axis=0)) / np.where(spread > 0, spread, 1.0)
        return cls(
            rows=rows,
            inputs=z[rows],
            values=(values - level) / size,
            level=level,
            unit=unit,
            scale=scale,
            noise=None if noise is None else noise.divided_by(size),
            of_secrets=np.zeros((len(rows), len(rows))) if own is None else secret_covariance(own),
            num_secrets=0 if own is None else own.shape[1],
            remaining=RemainingConfigurations(
                rows=rest,
                inputs=z[rest],
                values=(all_values[rest] - level) / size,
                noise=None if noise_of_all is None else noise_of_all.take(rest).divided_by(size),
                of_secrets=of_rest / size**2,
            ),
            hyperparameters=np.empty((0, z.shape[1] + 1 + len(_REST))),
        )

    def fitted(self, rng: np.random.Generator) -> HierarchicalModel:
        """Draw the hyperparameters from their posterior."""
        mean, std = np.transpose([_SIZE, *[_LENGTH] * self.inputs.shape[1], *_REST])
        # A matrix of n rows costs n³ to factorise, and about 20 for each of its covariances with
        # the remaining ones.
        n, r = len(self.values), len(self.remaining.rows)
        drawn = posterior_draws(
            self._log_likelihoods,
            rng,
            mean,
            std,
            num_draws=int(np.clip(_WORK / (n**3 + 20 * n * r), _FEWEST, _MOST)),
            per_round=2 ** int(np.log2(np.clip(_POINTS / n, _FEWEST_POINTS, _MOST_POINTS))),
        )
        return replace(self, hyperparameters=drawn)

    def log_densities(self) -> Array:
        """Return each mean's log density given the others (leave one out), on the own scale, [n].

        Source: Rasmussen and Williams 2006, equations 5.10 to 5.12.
        """
        densities = []
        for h in self._parts(self.hyperparameters[:_MOST_DENSITIES]):
            inverse = np.linalg.inv(
                self._prior(h) + self._errors(h, self._seed_variances, np.ones(len(h)))
            )
            variance = 1 / np.diagonal(inverse, axis1=1, axis2=2)
            residual = (inverse @ self.values) * variance
            densities.append(-0.5 * (np.log(2 * np.pi * variance) + residual**2 / variance))
        every = np.concatenate(densities)
        # Average the densities over the hyperparameters, not their logarithms.
        mixed: Array = np.logaddexp.reduce(every, axis=0) - np.log(len(every) * (self.unit or 1.0))
        # The density of a value is that on the scale, times the scale's slope.
        mixed += np.log(self.scale.slope(self.scale.back(self.level + self.unit * self.values)))
        return mixed

    def posterior(
        self, rng: np.random.Generator, num_draws: int, *, ratio: bool
    ) -> tuple[Array, Array]:
        """Return joint draws of all true figures, [num_draws, m], and their means, [m].

        Args:
            rng, num_draws: generator and number of the draws.
            ratio: whether the figure is a rate, which is never negative.

        Joint draws follow Matheron's rule: a draw of the prior, corrected by the difference between
        what was measured and what the draw would have given (Wilson et al. 2020, equation 9).
        `RemainingConfigurations` adds the rest.
        """
        size, times = len(self.values), len(self.hyperparameters)
        rest = self.remaining
        drawn = np.empty((num_draws, size + len(rest.rows)))
        posterior_mean, rest_mean = np.zeros(size), np.zeros(len(rest.rows))
        # Every draw of the hyperparameters makes its share of the joint draws.
        sizes = [len(part) for part in np.array_split(np.arange(num_draws), times)]
        ends = np.cumsum([0, *sizes])
        parts = map(slice, ends[:-1], ends[1:])
        for h in self._parts(self.hyperparameters):
            own = list(islice(parts, len(h)))
            prior, (errors, of_secrets) = self._prior(h), self._drawn_errors(h, rng)
            # The mean, given these errors.
            inverse = np.linalg.inv(prior + errors)
            gain = np.eye(size) - errors @ inverse  # of less rounding than prior @ inverse
            posterior_mean += (gain @ self.values).sum(axis=0) / times
            # Joint draws.
            truth = self._joint_draws(prior, errors, gain, rng, max(sizes))
            for share, of_one in zip(own, self._on_own_scale(truth), strict=True):
                drawn[share, self.rows] = of_one[:, : share.stop - share.start].T
            # The remaining configurations, each for itself.
            if len(rest.rows):
                for one, share, factor, solved in zip(h, own, of_secrets, inverse, strict=True):
                    given = self._conditioned(one, factor, solved, rng)
                    of_rest = given.draw(rng, share.stop - share.start)
                    drawn[share, rest.rows] = self._on_own_scale(of_rest)
                    rest_mean += given.mean / times
        # The model is Gaussian, so that a draw of a rate may fall below 0.
        if ratio:
            np.maximum(drawn, 0.0, out=drawn)
        return drawn, self._own_mean(drawn, posterior_mean, rest_mean, ratio=ratio)

    def _joint_draws(
        self, prior: Array, errors: Array, gain: Array, rng: np.random.Generator, num_draws: int
    ) -> Array:
        """Draw the true values by Matheron's rule (Wilson et al. 2020, eq. 9), [k, n, num_draws]."""
        diagonal = np.arange(prior.shape[1])
        # The covariance of a smooth surface is nearly singular: keep it positive definite.
        prior[:, diagonal, diagonal] *= 1 + _JITTER
        normal = rng.standard_normal((2, *prior.shape[:2], num_draws))
        prior_draws = np.linalg.cholesky(prior) @ normal[0]
        return np.asarray(
            prior_draws
            + gain @ (self.values[:, None] - prior_draws - self._root(errors) @ normal[1])
        )

    def _own_mean(self, drawn: Array, of_modelled: Array, of_rest: Array, *, ratio: bool) -> Array:
        """Return the posterior means, [m].

        Args:
            drawn: [num_draws, m] draws.
            of_modelled, of_rest: standardised posterior means.
            ratio: as in `posterior`.
        """
        if self.scale.curved:
            # If variances are hardly known, the mean of an exponential is infinite: limit it first.
            low, high = np.quantile(drawn, LIMITS, axis=0)
            means: Array = drawn.clip(low, high).mean(axis=0)
            return means
        means = np.empty(drawn.shape[1])
        means[self.rows], means[self.remaining.rows] = of_modelled, of_rest
        means = self.level + self.unit * means
        digits = (self.unit or _SAME) * _SAME  # differences that come from rounding decide nothing
        rounded: Array = (
            np.round(np.maximum(means, 0.0) / digits if ratio else means / digits) * digits
        )
        return rounded

    def _on_own_scale(self, standard: Array) -> Array:
        return self.scale.back(self.level + self.unit * standard)

    @cached_property
    def _seed_variances(self) -> Array:
        return np.zeros(len(self.values)) if self.noise is None else self.noise.std_error() ** 2

    def _parts(self, hyperparameters: Array) -> Iterator[Array]:
        """Return draws of the hyperparameters in parts whose matrices fit the memory."""
        step = max(1, _CELLS // len(self.values) ** 2)
        return (
            hyperparameters[start : start + step] for start in range(0, len(hyperparameters), step)
        )

    @cached_property
    def _level_variance(self) -> float:
        return _VAGUE * (
            1 + float(np.diag(self.of_secrets).mean()) + float(self._seed_variances.mean())
        )

    @cached_property
    def _products(self) -> Array:
        products: Array = self.inputs @ self.inputs.T
        return products

    @cached_property
    def _squares(self) -> Array:
        """Return the squared differences of the inputs, [d, n · n]."""
        squares: Array = (self.inputs.T[:, :, None] - self.inputs.T[:, None, :]) ** 2
        return squares.reshape(len(squares), -1)

    def _prior(self, h: Array) -> Array:
        """Return prior covariances, [k, n, n]: level, slopes, remainder and effects."""
        size, slope, effect = np.exp(2 * h[:, [0, _SLOPE, _CONFIGURATION]]).T[:, :, None, None]
        squares = np.exp(-2 * h[:, 1:_SLOPE]) @ self._squares
        covariance: Array = size * matern(squares.reshape(-1, *self._products.shape))
        covariance += self._level_variance + slope * self._products
        diagonal = np.arange(covariance.shape[1])
        covariance[:, diagonal, diagonal] += effect[:, 0]
        return covariance

    def _remaining_prior(self, h: Array) -> tuple[Array, Array]:
        """Return the rest's prior covariance with the modelled configurations, and variances."""
        inputs = self.remaining.inputs
        squares = np.zeros((len(inputs), len(self.inputs)))
        # One coordinate at a time: all at once would take r · n · d numbers.
        for at, weight in enumerate(np.exp(-2 * h[1:_SLOPE])):
            squares += weight * (inputs[:, at, None] - self.inputs[None, :, at]) ** 2
        size, slope = np.exp(2 * h[0]), np.exp(2 * h[_SLOPE])
        cross: Array = (
            size * matern(squares) + self._level_variance + slope * (inputs @ self.inputs.T)
        )
        own: Array = (
            size
            + self._level_variance
            + slope * (inputs**2).sum(axis=1)
            + np.exp(2 * h[_CONFIGURATION])
        )
        return cross, own

    def _conditioned(
        self, h: Array, factor_of_secrets: float, inverse: Array, rng: np.random.Generator
    ) -> Conditioned:
        """Condition the remaining configurations on the model, with drawn variances of errors."""
        rest = self.remaining
        cross, variances = self._remaining_prior(h)
        of_seeds = rest.seed_variances(rng, 1, _LARGEST_RATIO)[0]
        of_secrets = factor_of_secrets * rest.of_secrets
        errors: Array = of_seeds + of_secrets + self._unknown_error(h) + _JITTER
        return rest.conditioned(cross, variances, errors, inverse, self.values)

    def _unknown_error(self, h: Array) -> Array:
        """Return a mean's error variance where no seeds tell it, else 0, shaped as h[..., 0]."""
        return np.exp(2 * h[..., _UNKNOWN_ERROR]) if self.noise is None else np.zeros(h.shape[:-1])

    def _errors(self, h: Array, of_seeds: Array, factors: Array) -> Array:
        """Return the covariances of the means' errors, [k, n, n].

        Args:
            h: [k, d + 4] hyperparameters.
            of_seeds: [n] or [k, n] variances over seeds.
            factors: [k] factors of the covariance over secrets.
        """
        covariance: Array = factors[:, None, None] * self.of_secrets
        diagonal = np.arange(covariance.shape[1])
        largest = factors * np.diag(self.of_secrets).max(initial=0.0)
        own = self._unknown_error(h) + _JITTER * (1 + largest)
        covariance[:, diagonal, diagonal] += of_seeds + own[:, None]
        return covariance

    def _drawn_errors(self, h: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draw covariances of the errors, because the variances are estimates themselves.

        Returns:
            [k, n, n] covariances, and [k] factors of the variances of the errors over secrets.
        """
        of_seeds, factors = self._seed_variances, np.ones(len(h))
        if self.noise is not None:
            of_seeds = of_seeds * self.noise.draw_ratios(rng, len(h)).clip(max=_LARGEST_RATIO)
        if self.num_secrets:
            degrees = self.num_secrets - 1
            factors = (degrees / rng.chisquare(degrees, len(h))).clip(max=_LARGEST_RATIO)
        return self._errors(h, of_seeds, factors), factors

    def _root(self, errors: Array) -> Array:
        """Return roots of covariances of the errors, [k, n, n]."""
        if self.of_secrets.any():
            return np.asarray(np.linalg.cholesky(errors), np.float64)
        root: Array = np.sqrt(errors)  # they are diagonal
        return root

    def _log_likelihoods(self, h: Array) -> Array:
        """Return log-likelihoods of hyperparameters, [k]; -inf if rounding leaves no covariance."""
        found = []
        for part in self._parts(h):
            covariance = self._prior(part) + self._errors(
                part, self._seed_variances, np.ones(len(part))
            )
            sign, log_determinant = np.linalg.slogdet(covariance)
            solved = np.linalg.solve(
                covariance, np.broadcast_to(self.values[:, None], (*covariance.shape[:2], 1))
            )
            fit = (solved[..., 0] * self.values).sum(axis=1)
            found.append(np.where((sign > 0) & (fit >= 0), -0.5 * (fit + log_determinant), -np.inf))
        return np.concatenate(found)


def matern(squared_distance: Array) -> Array:
    """Return Matérn-5/2 at squared scaled distances (Rasmussen and Williams 2006, eq. 4.17)."""
    distance = np.sqrt(5 * squared_distance)
    # In place from here, because most of the time of a fit is spent here.
    correlation: Array = distance / 3
    correlation += 1
    correlation *= distance
    correlation += 1
    correlation *= np.exp(np.negative(distance, out=distance), out=distance)
    return correlation


def _unit(centred: Array, noise: SeedNoise | None, of_secrets: Array | None) -> float:
    """Return the unit of the values: their standard deviation, or their larger typical error.

    Values that are closer than their errors are expressed in units of their errors. Otherwise the
    prior would take it for known that they hardly differ.
    """
    errors = [] if noise is None else [float(np.sqrt((noise.std_error() ** 2).mean()))]
    errors += (
        []
        if of_secrets is None
        else [float(np.sqrt((of_secrets.var(axis=1) / of_secrets.shape[1]).mean()))]
    )
    return max(float(centred.std()), *errors, 0.0)


def _of_secrets(measured: Array, by_secret: Array, slopes: Array, *, ratio: bool) -> Array:
    """Return the interactions of secrets and configurations on the modelled scale, [n, k]."""
    own = interactions(measured, by_secret, ratio=ratio)
    return (own * slopes[:, None]).clip(-FARTHEST, FARTHEST)


def interactions(measured: Array, by_secret: Array, *, ratio: bool) -> Array:
    """Return what is left of the values by secret after the secrets' common effect, [n, k]."""
    if not ratio:
        rest: Array = by_secret - by_secret.mean(axis=0)
        return rest
    effect = measured * shares_of_effect(measured, by_secret)
    return by_secret - measured[:, None] - np.outer(effect, effect_of_secrets(measured, by_secret))

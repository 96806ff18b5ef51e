"""A hierarchical model of a figure: a smooth surface, an effect of each configuration, and the errors of its mean."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.statistics.noise import FARTHEST, SeedNoise, common_effect, secret_covariance
from analysis.surface.surrogate import Figure, matern, slice_samples
from search_spaces.configuration import HYPERPARAMETERS

Array = NDArray[np.float64]

DRAWS = 4000
MOST_MODELLED = 500
"""The largest number of configurations that are modelled. The cost grows with the cube of it."""
_FEWEST_DRAWS, _MOST_CELLS = 400, 8_000_000
_VARIANCE_DRAWS, _MANY = 5, 150  # draws of the variances for each draw of the hyperparameters; one for many rows
_MOST_INFORMATIVE = 100  # rows that the hyperparameters are learnt from
_KEPT_POSTERIORS = 4
_FARTHEST_SECRET = 1e6  # in standard deviations of the figure; farther values are not of this figure
_VAGUE = 100.0  # prior variance of the level, in variances of the figure
_JITTER = 1e-10
_SAME = 2.0**-20  # of the unit
_LIMITS = (0.025, 0.975)
_FARTHEST_BELOW = 4.0  # units
_LARGEST_RATIO = 1e6  # of a drawn variance to its estimate, which has no upper limit with few degrees of freedom
_MOST_LOG = 200.0

# Means and standard deviations of the Gaussian priors of the logarithms of the hyperparameters, in standard deviations
# of the inputs and of the figure: size of the nonlinear part, three length scales, size of the slopes, effect of a
# configuration, and error of a mean, which is only used where no seeds tell it.
_PRIOR_MEAN = np.log([0.3, 1.5, 1.5, 1.5, 0.4, 0.15, 0.2])
_PRIOR_STD = np.array([1.0, 0.7, 0.7, 0.7, 1.0, 1.0, 1.0])
_SLOPE, _CONFIGURATION, _UNKNOWN_ERROR = 4, 5, 6


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """The true figures of m configurations, given what was measured.

    Attributes:
        draws: [num_draws, m] joint draws, without the error that all configurations share. Compare configurations by
            them.
        common: [num_draws, 1] the shared error, from the choice of the secrets: a factor if `ratio`, else an addend.
        ratio: whether secrets differ by factors, not by differences.
        own_mean: [m] posterior means. If logarithms were modelled, they are the means of the draws limited to their
            95 % interval, because the whole mean is infinite if the variances are hardly known.
        operator: smooths other values of the figure.
    """

    draws: Array
    common: Array
    ratio: bool
    own_mean: Array
    operator: _Operator

    def times(self, unit: float) -> Posterior:
        """Return the posterior of the figure in another unit."""
        return replace(
            self,
            draws=self.draws * unit,
            common=self.common if self.ratio else self.common * unit,
            own_mean=self.own_mean * unit,
            operator=replace(self.operator, unit=unit),
        )

    @property
    def absolute(self) -> Array:
        """Return the draws with the shared error, for intervals of one configuration's figure. [num_draws, m]."""
        return self.draws * self.common if self.ratio else self.draws + self.common  # a rate stays above 0

    def expected(self, values: Array) -> Array:
        """Return the posterior means, [..., m].

        Args:
            values: [..., m] measured means. Others than those that were fitted, such as redrawn ones, are smoothed with
                the same hyperparameters, without fitting again.
        """
        return self.operator(values)

    @property
    def limited(self) -> Array:
        """Return the draws, each limited to the 95 % interval of its configuration, for expectations."""
        low, high = np.quantile(self.draws, _LIMITS, axis=0)
        return self.draws.clip(low, high)


@dataclass(frozen=True, kw_only=True)
class _Operator:
    """A linear smoother of the modelled configurations' figures, or of their logarithms.

    Attributes:
        rows: [n] positions of the modelled configurations.
        matrix: [n, n] smoother, the mean over the draws of the hyperparameters.
        measured, expected: [n] the measured values and their posterior means on the modelled scale.
        lowest: on a logarithmic scale, lower values are taken for this one.
        logarithm: whether the modelled scale is the logarithm.
        unit: the unit of the figure in which it was modelled.
    """

    rows: NDArray[np.intp]
    matrix: Array
    measured: Array
    expected: Array
    lowest: float
    logarithm: bool
    unit: float = 1.0

    def __call__(self, values: Array) -> Array:
        """Smooth values, [..., m]. The values of configurations that are not modelled stay."""
        smooth: Array = np.array(values, dtype=np.float64)
        some = smooth[..., self.rows] / self.unit
        if self.logarithm:
            some = np.log(np.maximum(some, math.exp(self.lowest)))
        moved = self.expected + (some - self.measured) @ self.matrix.T
        smooth[..., self.rows] = self.unit * (_exp(moved) if self.logarithm else moved)
        return smooth


def score_posterior(
    means: pd.DataFrame,
    *,
    by_secret: Array | None = None,
    logarithmic: bool = False,
    pool: NDArray[np.bool_] | None = None,
    seed: int = 0,
) -> Posterior:
    """Return the posterior of the scores.

    Args:
        means: configuration means.
        by_secret: [m, k] means by secret, to include the choice of secrets in the errors.
        logarithmic: whether the score is a logarithm, so that secrets differ by differences. Other scores that are
            nowhere negative are rates, whose secrets differ by factors.
        pool: [m] the configurations that may be selected; None for all. Of more than 500, the 500 of them with the
            lowest scores are modelled. The others keep their means, with errors over seeds.
        seed: seed of the draws.

    The model: a configuration's true score is a plane over (ln b, ln T, ln η) whose slopes have no expected sign, plus
    a smooth remainder (Matérn-5/2), plus an independent effect of the configuration. Its measured mean adds the errors
    over seeds, whose variances are those of `SeedNoise`, and the errors over secrets, whose covariance is the sample's,
    shrunk. A secret that is easier for every model moves all configurations alike; that part is `Posterior.common`.
    The hyperparameters and the variances are drawn from their posteriors. A positive rate is modelled by its logarithm
    if that predicts left-out configurations better.

    Source: Rasmussen and Williams 2006, chapter 2; Gelman et al. 2013, chapter 5 (hierarchical models).
    """
    given = _Measured.of(means, "score", by_secret, pool, logarithmic=logarithmic, seed=seed)
    return _remembered(given)


def loss_posterior(means: pd.DataFrame, *, seed: int = 0) -> Posterior:
    """Return the posterior of the utility losses by the same model, with errors over seeds.

    The held-out examples are the same for all configurations; the error of their choice is not counted.
    """
    return _remembered(_Measured.of(means, "utility_loss", None, None, logarithmic=True, seed=seed))


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """What a posterior depends on. Equal content is fitted once, since one report selects by many rules.

    Attributes:
        content: everything as bytes, which equality compares.
        rows: [n] positions of the modelled configurations.
        means, figure, by_secret, logarithmic, seed: see `score_posterior`.
    """

    content: tuple[object, ...]
    rows: NDArray[np.intp] = field(compare=False)
    means: pd.DataFrame = field(compare=False)
    figure: Figure
    by_secret: Array | None = field(compare=False)
    logarithmic: bool
    seed: int

    @classmethod
    def of(
        cls,
        means: pd.DataFrame,
        figure: Figure,
        by_secret: Array | None,
        pool: NDArray[np.bool_] | None,
        *,
        logarithmic: bool,
        seed: int,
    ) -> _Measured:
        """Gather what a posterior depends on."""
        columns = means[[*HYPERPARAMETERS, "num_seeds", figure, f"{figure}_std"]].to_numpy(dtype=np.float64)
        values = means[figure].to_numpy(dtype=np.float64)
        # The members of the pool come first, then the others, each from the lowest to the highest.
        outside = np.zeros(len(values), dtype=np.bool_) if pool is None else ~pool
        rows = np.sort(np.lexsort([values, outside])[:MOST_MODELLED])
        content = (columns.tobytes(), rows.tobytes(), None if by_secret is None else by_secret.tobytes())
        return cls(
            content=content,
            rows=rows,
            means=means,
            figure=figure,
            by_secret=by_secret,
            logarithmic=logarithmic,
            seed=seed,
        )


@lru_cache(maxsize=_KEPT_POSTERIORS)
def _remembered(given: _Measured) -> Posterior:
    """Fit the model on each scale that the figure allows, and return the posterior on the better one."""
    # All is modelled in one unit, a power of two, so that tiny and huge figures lose no digits.
    measured = given.means[given.figure].to_numpy(dtype=np.float64)
    unit = math.ldexp(1.0, max(-1000, math.frexp(float(np.abs(measured).max()))[1]))
    std = given.means[f"{given.figure}_std"].to_numpy(dtype=np.float64) / unit
    by_secret = None if given.by_secret is None or given.by_secret.shape[1] < 2 else given.by_secret / unit
    measured = measured / unit
    ratio = not given.logarithmic and bool(measured.min() >= 0)
    scales = [False, True] if ratio and measured.min() > 0 else [False]
    fitted = [
        _Model.of(given, measured, std, by_secret, ratio=ratio, logarithm=scale).fitted(
            np.random.default_rng(given.seed)
        )
        for scale in scales
    ]
    best = max(fitted, key=lambda model: model.log_density()) if len(fitted) > 1 else fitted[0]
    rng = np.random.default_rng([given.seed, 1])
    num_draws = _num_draws(len(measured))
    common = np.full((num_draws, 1), 1.0 if ratio else 0.0)
    if by_secret is not None:
        common = common_effect(measured, by_secret, ratio=ratio, rng=rng, num_draws=num_draws)
    noise = SeedNoise.of(std, given.means["num_seeds"].to_numpy())
    drawn = np.tile(measured, (num_draws, 1))
    if noise is not None and len(given.rows) < len(measured):
        drawn += noise.draw(rng, num_draws)
    return best.posterior(measured, drawn, rng, common, ratio=ratio).times(unit)


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The model on one scale, of n configurations, standardised.

    Attributes:
        rows: [n] positions of the modelled configurations.
        inputs: [n, 3] standardised logarithms of (b, T, η).
        values: [n] standardised means.
        level, unit: mean and standard deviation of the means before; the unit is at least their typical error.
        logarithm: whether the values are logarithms.
        log_volume: the logarithm of the measured values' volume per standardised volume, to compare scales.
        noise: the errors over seeds, None if they are unknown.
        of_secrets: [n, n] covariance of the errors over secrets.
        num_secrets: number of secrets, 0 if their choice is not counted.
        hyperparameters: [draws, 7] draws of the hyperparameters' logarithms.
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
    hyperparameters: Array

    @classmethod
    def of(
        cls, given: _Measured, measured: Array, std: Array, by_secret: Array | None, *, ratio: bool, logarithm: bool
    ) -> _Model:
        """Standardise the inputs, the figure and its errors.

        Args:
            given: for (b, T, η), the numbers of seeds and which configurations are modelled.
            measured, std: [m] means of the figure and standard deviations over seeds.
            by_secret: [m, k] means by secret, k >= 2, None if the choice of secrets is not counted.
            ratio: whether secrets differ by factors.
            logarithm: whether to model the logarithm.
        """
        rows = given.rows
        measured, std, some = measured[rows], std[rows], given.means.iloc[rows]
        values = measured
        own = None if by_secret is None else interactions(measured, by_secret[rows], ratio=ratio)
        if logarithm:
            values, std = np.log(measured), std / measured  # to first order
            own = None if own is None else own / measured[:, None]
        own = None if own is None else own.clip(-FARTHEST, FARTHEST)
        level = float(values.mean())
        noise = SeedNoise.of(std, some["num_seeds"].to_numpy())
        # Values that are closer than their errors are expressed in units of their errors. Otherwise the prior would
        # take it for known that they hardly differ.
        errors = [] if noise is None else [float(np.sqrt((noise.std_error() ** 2).mean()))]
        errors += [] if own is None else [float(np.sqrt((own.var(axis=1) / own.shape[1]).mean()))]
        unit = max(float((values - level).std()), *errors, 0.0)
        scale = unit or 1.0
        own = None if own is None else (own / scale).clip(-_FARTHEST_SECRET, _FARTHEST_SECRET)
        z = np.log(some[HYPERPARAMETERS].to_numpy(dtype=np.float64))
        spread = z.std(axis=0)
        return cls(
            rows=rows,
            inputs=(z - z.mean(axis=0)) / np.where(spread > 0, spread, 1.0),
            values=(values - level) / scale,
            level=level,
            unit=unit,
            logarithm=logarithm,
            log_volume=len(rows) * float(np.log(scale)) + (float(values.sum()) if logarithm else 0.0),
            noise=None if noise is None else noise.over(scale),
            of_secrets=np.zeros((len(rows), len(rows))) if own is None else secret_covariance(own),
            num_secrets=0 if own is None else own.shape[1],
            hyperparameters=np.empty((0, len(_PRIOR_MEAN))),
        )

    def fitted(self, rng: np.random.Generator) -> _Model:
        """Draw the hyperparameters from their posterior, given a random part of the rows."""
        few = self._some(np.sort(rng.permutation(len(self.values))[:_MOST_INFORMATIVE]))
        return replace(self, hyperparameters=slice_samples(few._log_likelihood, rng, _PRIOR_MEAN, _PRIOR_STD))

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

    def posterior(
        self, measured: Array, drawn: Array, rng: np.random.Generator, common: Array, *, ratio: bool
    ) -> Posterior:
        """Return the posterior of all m configurations.

        Args:
            measured: [m] measured means.
            drawn: [num_draws, m] draws of the configurations that are not modelled; the others are overwritten.
            rng: generator of the draws.
            common: the error that all configurations share.
            ratio: whether the figure is a rate, which is never negative.

        Joint draws follow Matheron's rule: a draw of the prior, corrected by the difference between what was measured
        and what the draw would have given (Wilson et al. 2020, equation 9).
        """
        from scipy.linalg import cho_factor, cho_solve

        size, times = len(self.values), len(self.hyperparameters) * self._variance_draws
        matrix, posterior_means = np.zeros((size, size)), []
        shares = iter(np.array_split(np.arange(len(common)), times))
        for h in self.hyperparameters:
            prior = self._prior(h)
            root = np.linalg.cholesky(prior + _JITTER * float(np.diag(prior).max()) * np.eye(size))
            for errors in self._drawn_errors(h, rng):
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
        drawn = np.maximum(drawn, 0.0) if ratio else drawn
        own_mean = measured.copy()
        if self.logarithm:
            low, high = np.quantile(drawn[:, self.rows], _LIMITS, axis=0)
            own_mean[self.rows] = drawn[:, self.rows].clip(low, high).mean(axis=0)
        else:
            expected = self.level + self.unit * np.mean(posterior_means, axis=0)
            digits = (self.unit or _SAME) * _SAME  # differences that come from rounding decide nothing
            own_mean[self.rows] = np.round(np.maximum(expected, 0.0) / digits if ratio else expected / digits) * digits
        scale = np.log if self.logarithm else np.positive
        operator = _Operator(
            rows=self.rows,
            matrix=matrix,
            measured=scale(measured[self.rows]),
            expected=scale(own_mean[self.rows]),
            lowest=self.level - _FARTHEST_BELOW * self.unit,
            logarithm=self.logarithm,
        )
        return Posterior(draws=drawn, common=common, ratio=ratio, own_mean=own_mean, operator=operator)

    def _on_own_scale(self, standard: Array) -> Array:
        values = self.level + self.unit * standard
        return _exp(values) if self.logarithm else values

    def _some(self, rows: NDArray[np.intp]) -> _Model:
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
        covariance: Array = np.exp(2 * h[0]) * matern(self._squares @ np.exp(-2 * h[1:4]))
        covariance += self._level_variance + np.exp(2 * h[_SLOPE]) * self._products
        covariance.flat[:: len(covariance) + 1] += np.exp(2 * h[_CONFIGURATION])
        return covariance

    def _errors(self, h: Array, of_seeds: Array, factor: float) -> Array:
        """Return the covariance of the means' errors."""
        covariance: Array = factor * self.of_secrets
        diagonal = covariance.flat[:: len(covariance) + 1]
        unknown = np.exp(2 * h[_UNKNOWN_ERROR]) if self.noise is None else 0.0
        covariance.flat[:: len(covariance) + 1] = diagonal + of_seeds + unknown + _JITTER * (1 + diagonal.max())
        return covariance

    def _drawn_errors(self, h: Array, rng: np.random.Generator) -> Iterator[Array]:
        """Draw the covariance of the errors, because the variances are estimates themselves."""
        for _ in range(self._variance_draws):
            of_seeds = self._seed_variances
            if self.noise is not None:
                of_seeds = of_seeds * self.noise.draw_ratios(rng).clip(max=_LARGEST_RATIO)
            factor = 1.0
            if self.num_secrets:
                factor = min((self.num_secrets - 1) / rng.chisquare(self.num_secrets - 1), _LARGEST_RATIO)
            yield self._errors(h, of_seeds, factor)

    def _log_likelihood(self, h: Array) -> float:
        from scipy.linalg import solve_triangular

        factor = np.linalg.cholesky(self._prior(h) + self._errors(h, self._seed_variances, 1.0))
        solved = solve_triangular(factor, self.values, lower=True, check_finite=False)
        return float(-0.5 * solved @ solved - np.log(np.diag(factor)).sum())


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


def _num_draws(size: int) -> int:
    """Return the number of draws of so many configurations. Large tables get fewer, for memory."""
    return min(DRAWS, max(_FEWEST_DRAWS, _MOST_CELLS // size))


def _exp(logarithms: Array) -> Array:
    """Return the exponential, clipped to the range of doubles that can be squared."""
    exponential: Array = np.exp(np.clip(logarithms, -_MOST_LOG, _MOST_LOG))
    return exponential

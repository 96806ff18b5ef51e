"""Errors of a configuration's mean score, from the few measured seeds and secrets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.statistics.spread import t_quantile, unit_of
from raydp.analysis.tables.columns import KEY, with_settings
from raydp.analysis.tables.per_secret import as_array, by_secret, controls_of

Array = NDArray[np.float64]

FARTHEST = 1e100
"""Larger errors are clipped to this value, whose square is still a double."""
_MIN_VARIANCES = 3  # fewer positive variances do not tell how much variances differ
# least and largest degrees of freedom of the prior; at the largest, all share a variance
_PRIOR_DEGREES = (2.0, 1000.0)
_LARGEST_LOG = 300.0


@dataclass(frozen=True, kw_only=True)
class SeedNoise:
    """Spread of the score over each configuration's seeds, with shared information.

    With two or three seeds, a configuration's own standard deviation is hardly known. The variances
    are therefore modelled as draws from one scaled inverse χ² distribution, whose two parameters
    are estimated from all of them (`_prior`). A configuration's variance is then the average of the
    prior variance and its own, weighted by degrees of freedom.

    Attributes:
        std: [m] moderated standard deviation of one run's score.
        degrees: [m] degrees of freedom of the squared std.
        num_seeds: [m] number of seeds.
        shared: whether all configurations share one estimated variance.

    Source: Smyth 2004, "Linear models and empirical Bayes methods", section 3.
    """

    std: Array
    degrees: Array
    num_seeds: NDArray[np.int64]
    shared: bool

    @classmethod
    def of(cls, std: Array, num_seeds: NDArray[np.int64]) -> SeedNoise | None:
        """Return the noise from stds over seeds (ddof = 1, NaN with one seed), None if all NaN."""
        own = num_seeds - 1
        several = own > 0
        if not several.any():
            return None
        unit = unit_of(np.append(std[several], 0.0))
        std, total = std / unit, float(own.sum())
        variances = std[several] ** 2
        prior = _prior(variances, own[several].astype(np.float64))
        # The variances differ by no more than chance, so all configurations share one.
        if prior is None:
            pooled = float((own[several] * variances).sum()) / total
            variance, degrees = np.full(len(std), pooled), np.full(len(std), total)
        else:
            scale, prior_degrees = prior
            # Smyth 2004, section 3: prior and own variance, averaged by degrees of freedom.
            degrees = prior_degrees + own
            variance = (prior_degrees * scale + own * np.where(several, std, 0.0) ** 2) / degrees
        return cls(
            std=np.sqrt(variance) * unit, degrees=degrees, num_seeds=num_seeds, shared=prior is None
        )

    def take(self, at: NDArray[np.intp]) -> SeedNoise:
        """Return the noise of the configurations at these positions."""
        std, degrees, num_seeds = self.std[at], self.degrees[at], self.num_seeds[at]
        return replace(self, std=std, degrees=degrees, num_seeds=num_seeds)

    def divided_by(self, unit: float) -> SeedNoise:
        """Return the noise of the scores divided by `unit`."""
        return replace(self, std=self.std / unit)

    def std_error(self) -> Array:
        """Return the standard error of the mean over seeds, shape [m]."""
        error: Array = self.std / np.sqrt(self.num_seeds)
        return error

    def draw_ratios(self, rng: np.random.Generator, num_draws: int) -> Array:
        """Draw ratios of true variances to their estimates, scaled inverse χ², [num_draws, m]."""
        size = (num_draws, 1 if self.shared else len(self.std))
        degrees = self.degrees[: size[1]]
        ratios: Array = degrees / rng.chisquare(degrees, size).clip(min=1 / FARTHEST)
        return np.broadcast_to(ratios, (num_draws, len(self.std)))

    def draw(self, rng: np.random.Generator, num_draws: int) -> Array:
        """Draw errors of the means, [num_draws, m], from Student's t with the noise's degrees."""
        # If the configurations' spreads disagree, one with a single seed has few degrees of
        # freedom, and a draw of its error may exceed the range of doubles.
        drawn: Array = rng.standard_t(self.degrees, (num_draws, len(self.std))).clip(
            -FARTHEST, FARTHEST
        )
        drawn *= self.std_error()
        return drawn


def _prior(variances: Array, degrees: Array) -> tuple[float, float] | None:
    """Return the most likely scale and degrees of freedom of the variances' prior.

    None if the variances differ by no more than chance, or too few of them are positive to tell.

    Given the prior, variance / scale has an F distribution, whose density is finite in everything
    but the variance at 0. So a few seeds that agree by chance say little about the prior. (The
    moments of the logarithms, which Smyth uses, would take them for a sign that all variances
    differ.) A prior with 2 degrees of freedom or fewer has no mean, and would leave each
    configuration alone with its own few seeds; the degrees are at least that.

    Source: Wright and Simon 2003, "A random variance model for detection of differential gene
    expression in small microarray experiments", section 2; Gelman et al. 2013, table A.1, for the
    mean.
    """
    from scipy.optimize import brentq, minimize_scalar
    from scipy.special import betaln

    positive = variances > 0
    # With so few positive variances, the most likely scale would be 0.
    too_few = (degrees + _PRIOR_DEGREES[0])[positive].sum() <= degrees.sum()
    if too_few or positive.sum() < max(_MIN_VARIANCES, len(variances) / 2):
        return None
    # In units of the largest variance, so that the exponentials below stay in range.
    largest = float(variances.max())
    squares = degrees * variances / largest

    def log_scale(prior: float) -> float:
        """Return the logarithm of the most likely scale, in units of the largest variance."""

        def slope(log: float) -> float:
            share = squares / (squares + prior * np.exp(log))
            return float(((degrees + prior) * share - degrees).sum())

        return float(brentq(slope, -_LARGEST_LOG, _LARGEST_LOG))

    def lost(log_prior: float) -> float:
        """Return minus the log-likelihood of the degrees, but for terms of the variances alone."""
        prior = float(np.exp(log_prior))
        log = log_scale(prior) + log_prior
        terms = (degrees + prior) / 2 * np.log1p(squares * np.exp(-log)) + degrees / 2 * log
        return float((terms + betaln(degrees / 2, prior / 2)).sum())

    bounds = np.log(_PRIOR_DEGREES)
    fitted = minimize_scalar(lost, bounds=bounds, method="bounded")
    # The bounded search never returns an end itself, so compare the ends too.
    best = min((float(fitted.x), *bounds), key=lost)
    # At the largest degrees, the prior says that all variances are equal.
    if best >= bounds[1]:
        return None
    return float(np.exp(log_scale(float(np.exp(best))))) * largest, float(np.exp(best))


def means_by_secret(points: pd.DataFrame, secrets: pd.DataFrame, name: str) -> Array:
    """Return a score's means over seeds by secret, [m, k], in the order (T, b, η).

    Raises:
        ValueError: the score has no values by secret, or a finished run lacks the value of a
            secret.
    """
    return mean_over_seeds(points, _complete(points, secrets, name))


def measured_values(points: pd.DataFrame, secrets: pd.DataFrame, name: str) -> Array:
    """Return each run's values by secret, and by control if the score subtracts any, [run, k + j].

    Without controls these are the values of the k secrets. With j controls, the score is the mean
    of one sample minus the mean of another one. A row is then scaled so that it can be treated as
    one sample of independent values: its mean is the score, and the standard error of its mean
    (ddof = 1) is sqrt(var_secrets / k + var_controls / j). The same holds for the covariance
    between two rows, because all models have the same secrets and controls. If the values of a
    control are not known for every run, the controls are left out.

    Raises:
        ValueError: as `means_by_secret`.
    """
    values = _complete(points, secrets, name)
    if not (secrets["score"] == controls_of(name)).any():
        return values
    subtracted = as_array(by_secret(points, secrets, controls_of(name))[0])
    if not np.isfinite(subtracted).all():  # an earlier version has measured some of the runs
        return values
    k, j = values.shape[1], subtracted.shape[1]
    if k < 2 or j < 2:
        return values
    n, score = k + j, values.mean(axis=1, keepdims=True)
    parts = [(values - score, k), (subtracted.mean(axis=1, keepdims=True) - subtracted, j)]
    # The factor makes the error of a row's mean sqrt(var_secrets / k + var_controls / j).
    scaled = [score + np.sqrt(n * (n - 1) / (size * (size - 1))) * part for part, size in parts]
    return np.concatenate(scaled, axis=1)


def mean_over_seeds(points: pd.DataFrame, values: Array) -> Array:
    """Return the means over seeds of runs' values, [run, n]: [m, n] in the order (T, b, η)."""
    groups = with_settings(points).groupby(KEY, sort=True).ngroup().to_numpy()
    sums = np.zeros((groups.max() + 1, values.shape[1]))
    np.add.at(sums, groups, values)
    means: Array = sums / np.bincount(groups)[:, None]
    return means


def _complete(points: pd.DataFrame, secrets: pd.DataFrame, name: str) -> Array:
    """Return each run's values by secret, [run, k]. Raise ValueError if a value is missing."""
    values = as_array(by_secret(points, secrets, name)[0])
    lacking = int((~np.isfinite(values)).any(axis=1).sum())
    if lacking:
        raise ValueError(
            f"secrets must have a finite value of {name!r} for every finished run and secret, got "
            f"{lacking} runs without. Run `raydp score SWEEP` for it again."
        )
    return values


def secret_errors(means: Array, rng: np.random.Generator, num_draws: int) -> tuple[Array, Array]:
    """Draw the errors of the mean scores that come from the choice of the secrets.

    Args:
        means: [m, k] means by secret, k >= 2.
        rng, num_draws: generator and number of the draws.

    Returns:
        [num_draws, m] errors, and the [m, m] matrix S/k, where S is the covariance over secrets
        (ddof = 1). A draw is Gaussian with covariance S/k, times a Student factor with k - 1
        degrees of freedom that all configurations share. The errors are correlated because all
        configurations were measured on the same secrets, so a secret that every model knows does
        not blur a comparison. A bootstrap of a handful of secrets has too little spread: with five
        secrets, its 95 % interval covers 81 of 100.
    """
    size = means.shape[1]
    centred = (means - means.mean(axis=1, keepdims=True)) / np.sqrt(size * (size - 1))
    student = np.sqrt((size - 1) / rng.chisquare(size - 1, (num_draws, 1))).clip(max=FARTHEST)
    errors: Array = student * (rng.standard_normal((num_draws, size)) @ centred.T)
    return errors, centred @ centred.T


def secret_covariance(by_secret: Array) -> Array:
    """Estimate the covariance of the mean scores' errors over secrets, [m, m].

    Args:
        by_secret: [m, k] means by secret, k >= 2.

    Returns:
        The sample covariance divided by k, shrunk towards a matrix with the same variances in which
        all pairs have the mean correlation. A sample covariance of more configurations than secrets
        has directions without any variance, which would be taken for differences that are known
        exactly.

    Source: Ledoit and Wolf 2004, "Honey, I shrunk the sample covariance matrix", appendix B.
    """
    m, k = by_secret.shape
    largest = float(np.abs(by_secret).max()) or 1.0  # so that fourth powers are doubles
    x = by_secret / largest
    x = x - x.mean(axis=1, keepdims=True)
    sample = x @ x.T / k
    # The target: the sample's variances, and the mean correlation for every pair.
    std = np.sqrt(np.diag(sample))
    outer = np.outer(std, std)
    correlation = np.divide(sample, outer, out=np.zeros_like(sample), where=outer > 0)
    mean_correlation = (correlation.sum() - np.trace(correlation)) / max(1, m * (m - 1))
    target = mean_correlation * outer
    np.fill_diagonal(target, std**2)
    # Estimate the best share of the target: the error of the sample against the error of the
    # target.
    # pi, rho and gamma are named as in the appendix.
    pi = (x**2 @ (x**2).T) / k - sample**2
    cubes = (x**3 @ x.T) / k
    # Covariance of the i-th variance with the (i, j)-th covariance.
    theta = cubes - (std**2)[:, None] * sample
    ratio = np.divide(std[None, :], std[:, None], out=np.zeros_like(sample), where=std[:, None] > 0)
    off = ~np.eye(m, dtype=np.bool_)
    rho = np.trace(pi) + mean_correlation * (ratio * theta)[off].sum()
    gamma = ((target - sample) ** 2).sum()
    share = min(1.0, max(0.0, (pi.sum() - rho) / gamma / k)) if gamma > 0 else 0.0
    unit = min(largest, FARTHEST)
    covariance: Array = (share * target + (1 - share) * sample) / (k - 1) * unit * unit
    return covariance


def common_effect(
    measured: Array, by_secret: Array, *, ratio: bool, rng: np.random.Generator, num_draws: int
) -> Array:
    """Draw the error that all configurations share: the secrets may be easier than others.

    Args:
        measured: [m] mean scores, of a magnitude near 1.
        by_secret: [m, k] means by secret, k >= 2.
        ratio: whether secrets differ by factors, else by differences.
        rng, num_draws: generator and number of the draws.

    Returns:
        [num_draws, 1] factors if `ratio`, else addends. A few secrets may hold most of a rate, so
        Student's t is corrected for the skewness of the sample.

    Source: Hall 1992, "On the removal of skewness by transformation", section 2.
    """
    size = by_secret.shape[1]
    if ratio:
        unit, effects = 1.0, effect_of_secrets(measured, by_secret)
    else:
        unit = float(np.abs(by_secret).max()) or 1.0  # so that third powers are doubles
        effects = (by_secret / unit).mean(axis=0)
    centred = effects - effects.mean()
    spread = float(centred.std())
    error = unit * float(centred.std(ddof=1)) / np.sqrt(size)
    skewness = float((centred**3).mean()) / spread**3 if spread else 0.0
    student = rng.standard_t(size - 1, (num_draws, 1)).clip(-FARTHEST, FARTHEST)
    c = skewness / (3 * np.sqrt(size))
    # Hall's cubic transformation, inverted. Without skewness it is Student's t.
    if abs(c) > 1e-6:
        student = (np.cbrt(1 + 3 * c * (student - skewness / (6 * np.sqrt(size)))) - 1) / c
    drawn: Array = -error * student
    # A factor below 0 would change a score's sign.
    return np.maximum(1 + drawn, 0.0) if ratio else drawn


def effect_of_secrets(measured: Array, by_secret: Array) -> Array:
    """Return how much easier each secret is for all models, relative to the mean secret, [k].

    Args:
        measured: [m] mean scores, of a magnitude near 1 and nowhere negative.
        by_secret: [m, k] means by secret.
    """
    effects = measured @ (by_secret / (float(np.abs(by_secret).max()) or 1.0))
    relative: Array = effects / (effects.mean() or 1.0) - 1
    return relative


def shares_of_effect(measured: Array, by_secret: Array) -> Array:
    """Return how far each configuration's score follows the secrets' common effect, [m].

    The share is 1 where secrets differ by factors, and falls with the score where easy secrets are
    found out by every model already. It is a line in the score, fitted by least squares. So equal
    scores have equal shares, and their difference holds no common effect.

    Args:
        measured, by_secret: as of `effect_of_secrets`.
    """
    effect = effect_of_secrets(measured, by_secret)
    centred = by_secret - measured[:, None]
    variance = float(effect @ effect) or 1.0
    follows = centred @ effect / variance
    # Weighted by the precision of what each follows.
    rest = (centred - np.outer(follows, effect)).std(axis=1)
    weights = 1 / np.maximum(rest, 0.01 * (rest.max() or 1.0))
    relative = measured / (measured.max() or 1.0)
    basis = np.stack([measured, measured * relative], axis=1)
    intercept, slope = np.linalg.lstsq(basis * weights[:, None], follows * weights, rcond=1e-6)[0]
    shares: Array = np.maximum(intercept + slope * relative, 0.0)
    return shares


def combined_degrees(first: Array, degrees: Array, second: Array, degrees_of_second: int) -> Array:
    """Return the degrees of freedom of the root sum of squares of two independent standard errors.

    An error of zero does not count.

    Source: Welch 1947, equation 28 (Satterthwaite 1946).
    """
    both = np.hypot(first, second)
    share = np.divide(second, both, out=np.zeros_like(both), where=both > 0) ** 2
    degrees_of_both: Array = 1 / np.maximum(
        share**2 / degrees_of_second + (1 - share) ** 2 / degrees, 1e-12
    )
    return degrees_of_both


def upper_limit(
    points: pd.DataFrame, means: pd.DataFrame, by_secret: tuple[pd.DataFrame, str] | None
) -> tuple[Array, str]:
    """Return one-sided 95 % upper limits of the mean scores, [m], and a description of the limits.

    Args:
        points: a checked points table.
        means: its configuration means.
        by_secret: the content of the sweep's secrets.parquet and the score's name; None if the
            choice of secrets is not counted.

    The errors over seeds are Student's t with the moderated variances. The errors over secrets are
    Student's t with one degree of freedom less than the number of secrets. Both are combined after
    Welch and Satterthwaite. Without seeds and secrets, the limit is the mean itself.
    """
    score = means["score"].to_numpy(dtype=np.float64)
    noise = SeedNoise.of(means["score_std"].to_numpy(), means["num_seeds"].to_numpy())
    error, degrees, levels = np.zeros(len(score)), np.full(len(score), np.inf), []
    if noise is not None:
        error, degrees = noise.std_error(), noise.degrees
        levels.append("seeds")
    if by_secret is not None:
        of_secrets = mean_over_seeds(points, measured_values(points, *by_secret))
        # One secret does not tell how far others may differ.
        if (size := of_secrets.shape[1]) > 1:
            own = of_secrets.std(axis=1, ddof=1) / np.sqrt(size)
            error, degrees = np.hypot(error, own), combined_degrees(error, degrees, own, size - 1)
            levels.append("secrets")
    if not levels:
        return score, "a mean score"
    limit: Array = score + t_quantile(degrees, 0.95) * error
    return limit, f"a 95 % upper limit of the mean score over {' and '.join(levels)}"

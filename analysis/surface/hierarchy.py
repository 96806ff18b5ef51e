"""Configurations' true figures, given measured ones: a hierarchical model on the better scale."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from raydp.analysis.statistics.noise import common_effect, shares_of_effect
from raydp.analysis.surface.hierarchical_model import HierarchicalModel
from raydp.analysis.surface.posterior import Posterior
from raydp.analysis.surface.scale import LOGARITHM, OWN, log_odds
from raydp.analysis.tables.columns import SETTINGS, with_settings
from raydp.analysis.tables.thinning import evenly
from raydp.search_spaces.configuration import HYPERPARAMETERS

Array = NDArray[np.float64]
Figure = Literal["score", "utility_loss"]

DRAWS = 8000
MOST_MODELLED = 150
"""The largest number of configurations that are modelled jointly. The cost grows with its cube.

On tables of 500 configurations, the estimates' errors are as small as if all 500 were modelled.
"""
_FEWEST_DRAWS, _FEWER_DRAWS = 400, 4000
_MANY_CELLS, _MOST_CELLS = 1_000_000, 4_000_000  # draws times configurations: more need fewer draws
_BOOTSTRAP, _NEGLIGIBLE = 1000, 0.01
_KEPT_POSTERIORS = 4
_ONE_FIT = threading.Lock()


def score_posterior(
    means: pd.DataFrame,
    *,
    by_secret: Array | None = None,
    log_base: float | None = None,
    pool: NDArray[np.bool_] | None = None,
    seed: int = 0,
) -> Posterior:
    """Return the posterior of the scores.

    Args:
        means: configuration means.
        by_secret: [m, k] means by secret, to include the choice of secrets in the errors.
        log_base: the base if the score is a logarithm. Secrets then differ by differences. Other
            scores that are nowhere negative are rates, whose secrets differ by factors.
        pool: [m] the configurations that may be selected; None for all. Of more than 150
            configurations, 150 are modelled jointly: 75 of those with the lowest scores, and 75
            evenly among the others by their scores. Each of the rest is conditioned on them and on
            its own mean (see `Remaining`).
        seed: seed of the draws.

    The model: a configuration's true score is a plane over its coordinates, plus a smooth remainder
    (Matérn-5/2), plus an independent effect of the configuration. The coordinates are ln b, ln T,
    ln η and the coordinates of further fields (see `Coordinates`). The slopes of the plane have no
    expected sign. The configuration's measured mean adds the errors over seeds, whose variances are
    from `SeedNoise`, and the errors over secrets, whose covariance is the sample's, shrunk. A
    secret that is easier for every model moves all configurations alike; that part is
    `Posterior.common`. The hyperparameters and the variances are drawn from their posteriors. A
    positive rate is modelled on its own scale and by its log-odds, or by its logarithm if a score is
    1 or more. Both scales count as far as they predict left-out configurations.

    Source: Rasmussen and Williams 2006, chapter 2; Gelman et al. 2013, chapter 5 (hierarchical
    models).
    """
    given = _Measured.of(means, "score", by_secret, pool, log_base=log_base, seed=seed)
    return _remembered(given)


def loss_posterior(means: pd.DataFrame, *, seed: int = 0) -> Posterior:
    """Return the posterior of the utility losses by the same model, with errors over seeds.

    The held-out examples are the same for all configurations; the error of their choice is not
    counted.
    """
    return _remembered(_Measured.of(means, "utility_loss", None, None, log_base=math.e, seed=seed))


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """The inputs that a posterior depends on.

    Equal content is fitted once, since one report selects by many rules.

    Attributes:
        content: everything as bytes, which equality compares.
        rows: [n] positions of the modelled configurations.
        means, figure, by_secret, log_base, seed: see `score_posterior`.
    """

    content: tuple[object, ...]
    rows: NDArray[np.intp] = field(compare=False)
    means: pd.DataFrame = field(compare=False)
    figure: Figure
    by_secret: Array | None = field(compare=False)
    log_base: float | None
    seed: int

    @classmethod
    def of(
        cls,
        means: pd.DataFrame,
        figure: Figure,
        by_secret: Array | None,
        pool: NDArray[np.bool_] | None,
        *,
        log_base: float | None,
        seed: int,
    ) -> _Measured:
        """Gather what a posterior depends on."""
        columns = means[[*HYPERPARAMETERS, "num_seeds", figure, f"{figure}_std"]].to_numpy(
            dtype=np.float64
        )
        settings = tuple(with_settings(means)[SETTINGS])
        values = means[figure].to_numpy(dtype=np.float64)
        # The members of the pool come first, then the others, each from the lowest to the highest.
        outside = np.zeros(len(values), dtype=np.bool_) if pool is None else ~pool
        order = np.lexsort([values, outside])
        lowest, others = order[: MOST_MODELLED // 2], order[MOST_MODELLED // 2 :]
        # The lowest figures may be selected. As many others, evenly spread, show the whole surface.
        rows = np.sort(
            np.append(
                lowest, others[evenly(len(others), MOST_MODELLED // 2)] if len(others) else others
            )
        )
        # Bytes compare exactly and fast: equal content has an equal posterior.
        content = (
            settings,
            columns.tobytes(),
            rows.tobytes(),
            None if by_secret is None else by_secret.tobytes(),
        )
        return cls(
            content=content,
            rows=rows,
            means=means,
            figure=figure,
            by_secret=by_secret,
            log_base=log_base,
            seed=seed,
        )


@lru_cache(maxsize=_KEPT_POSTERIORS)
def _remembered(given: _Measured) -> Posterior:
    """Fit the model on each scale that the figure allows, and average the posteriors.

    The matrices are small and many. Threads would wait for each other, which takes three times as
    long on busy cores. The limit is the whole process's, so only one fit at a time sets it and
    takes it back.
    """
    with _ONE_FIT, threadpool_limits(1, user_api="blas"):
        return _fitted(given)


def _fitted(given: _Measured) -> Posterior:
    # All is modelled in one unit, a power of two, so that tiny and huge figures lose no digits.
    measured = given.means[given.figure].to_numpy(dtype=np.float64)
    unit = math.ldexp(1.0, max(-1000, math.frexp(float(np.abs(measured).max()))[1]))
    std = given.means[f"{given.figure}_std"].to_numpy(dtype=np.float64) / unit
    by_secret = (
        None if given.by_secret is None or given.by_secret.shape[1] < 2 else given.by_secret / unit
    )
    measured = measured / unit
    ratio = given.log_base is None and bool(measured.min() >= 0)
    # Only a rate without zeros has log-odds or a logarithm. A logarithmic score is one already.
    scales = [OWN]
    if ratio and measured.min() > 0:
        scales.append(log_odds(1 / unit) if measured.max() * unit < 1 else LOGARITHM)
    fitted = [
        HierarchicalModel.of(
            given.means, given.rows, measured, std, by_secret, ratio=ratio, scale=scale
        ).fitted(np.random.default_rng(given.seed))
        for scale in scales
    ]
    rng = np.random.default_rng([given.seed, 1])
    num_draws = _num_draws(len(measured))
    # The error that all configurations share, because the secrets may be easier than others.
    common = np.full((num_draws, 1), 1.0 if ratio else 0.0)
    shares = np.ones(len(measured))
    if by_secret is not None:
        shares = shares_of_effect(measured, by_secret) if ratio else shares
        common = common_effect(measured, by_secret, ratio=ratio, rng=rng, num_draws=num_draws)
    # Average over the scales. Each gets its share of the draws.
    weights = scale_weights(np.array([model.log_densities() for model in fitted]))
    counts = np.diff(np.rint(num_draws * weights.cumsum()).astype(int), prepend=0)
    parts = [
        (weight, *model.posterior(rng, count, ratio=ratio))
        for weight, model, count in zip(weights, fitted, counts, strict=True)
        if weight > 0
    ]
    drawn = np.concatenate([of_scale for _, of_scale, _ in parts])
    return Posterior(
        draws=np.multiply(drawn, unit, out=drawn),
        common=common if ratio else common * unit,
        shares=shares,
        ratio=ratio,
        own_mean=unit * np.sum([weight * mean for weight, _, mean in parts], axis=0),
    )


def scale_weights(densities: Array) -> Array:
    """Return the weights of models of the same figures, [k]. A weight below 1 % is 0.

    Args:
        densities: [k, n] log densities of each figure given the others, by each model.

    The weights are pseudo-BMA+: the share of each model's density, averaged over a Bayesian
    bootstrap of the figures. So models that predict equally well all count, and a small change of
    a density changes little.

    Source: Yao, Vehtari, Simpson and Gelman 2018, "Using stacking to average Bayesian predictive
    distributions", section 3.4.
    """
    from scipy.special import softmax

    size = densities.shape[1]
    shares = size * np.random.default_rng(0).dirichlet(np.ones(size), _BOOTSTRAP)
    weights: Array = softmax(shares @ densities.T, axis=1).mean(axis=0)
    weights[weights < _NEGLIGIBLE] = 0.0
    weights /= weights.sum()
    return weights


def _num_draws(size: int) -> int:
    """Return the number of draws of so many configurations. Large tables get fewer, for memory."""
    return max(
        _FEWEST_DRAWS, min(DRAWS, max(_FEWER_DRAWS, _MANY_CELLS // size), _MOST_CELLS // size)
    )

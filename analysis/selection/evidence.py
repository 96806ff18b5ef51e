"""The evidence of a selection: means, models of the figures, leakage, certainty of the utility."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.selection.constraints import Constraints
from raydp.analysis.selection.equivalents import Precision
from raydp.analysis.selection.leakage import Leakage, measured_leakage
from raydp.analysis.selection.rules import Layout
from raydp.analysis.statistics.noise import mean_over_seeds, measured_values
from raydp.analysis.surface.posterior import Posterior
from raydp.analysis.tables.per_secret import base_of
from raydp.analysis.tables.utility_filter import base_loss, rounding, within

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence of a selection about m configurations.

    Attributes:
        means: configuration means in the order (T, b, η).
        of_secrets: [m, k] means of `measured_values`, None if the table of secrets is not given.
        log_base: the base of the logarithm that the score is; None if it is none.
        leakage: each configuration's leakage beyond the untrained model's, None if it cannot be
            tested.
        layout: the layout that the rules see.
    """

    means: pd.DataFrame
    of_secrets: Array | None
    log_base: float | None
    leakage: Leakage | None
    layout: Layout

    @classmethod
    def of(
        cls,
        points: pd.DataFrame,
        means: pd.DataFrame,
        constraints: Constraints,
        pool: NDArray[np.bool_],
        by_secret: tuple[pd.DataFrame, str] | None = None,
        log_base: float | None = None,
        no_leak: float | None = 0.0,
        precision: Precision | None = None,
    ) -> Evidence:
        """Gather the evidence of a checked points table; for the arguments see `select`.

        Args:
            pool: [m] the configurations that keep to the constraints.
            precision: what makes scores equivalent, by default `Precision()`.
        """
        # Means by secret let the choice of the secrets count as an error.
        of_secrets = (
            None
            if by_secret is None
            else mean_over_seeds(points, measured_values(points, *by_secret))
        )
        log_base = base_of(None if by_secret is None else by_secret[1], log_base)
        # If nothing leaks measurably, the utility decides and not the scores.
        leakage = measured_leakage(points, means, by_secret, log_base=log_base)
        layout = Layout.of(
            means,
            by_secret=of_secrets,
            log_base=log_base,
            pool=pool,
            leaks=None if leakage is None else leakage.leaks,
            precision=precision or Precision(),
        )
        models, certainty = replace(layout.models, no_leak=no_leak), None
        # Without two seeds of a configuration, the errors of the losses are not known.
        if constraints.bounds_utility and means["num_seeds"].max() > 1:
            certainty = utility_certainty(layout.models.losses, means, constraints)
        return cls(
            means=means,
            of_secrets=of_secrets,
            log_base=log_base,
            leakage=leakage,
            layout=replace(layout, models=models, certainty=certainty),
        )


def utility_certainty(losses: Posterior, means: pd.DataFrame, constraints: Constraints) -> Array:
    """Return the probability that each configuration keeps to the utility threshold, [m]."""
    certainty: Array = keep_utility(losses, means, constraints).mean(axis=0)
    return certainty


def keep_utility(
    losses: Posterior, means: pd.DataFrame, constraints: Constraints
) -> NDArray[np.bool_]:
    """Return which configurations keep to the utility threshold in each draw, [num_draws, m].

    A threshold that is a share of the best gain moves with the best configuration's true loss.
    """
    if constraints.max_loss is not None:
        # Forgive rounding as `within` does, so that draws and measured losses are judged alike.
        limit = np.array(constraints.max_loss)
        return np.asarray(losses.draws <= limit + rounding(limit))
    base = np.array([float(b) for b in base_loss(means, constraints.base_utility_loss)])
    gain = base - losses.draws
    least = constraints.least_gain(gain.max(axis=1, keepdims=True))
    return within(-gain, -least)


def certainty_at(losses: Posterior, thresholds: Array) -> Array:
    """Return the probability that each true loss is at most each threshold, [thresholds, m]."""
    certainty = np.empty((len(thresholds), losses.draws.shape[1]))
    for at, draws in enumerate(np.sort(losses.draws, axis=0).T):
        limits = thresholds + rounding(thresholds)
        certainty[:, at] = np.searchsorted(draws, limits, side="right") / len(draws)
    return certainty

"""How certain scores would be with more seeds or secrets, if the means stayed as they are."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.statistics.noise import SeedNoise, mean_over_seeds, measured_values
from raydp.analysis.surface.hierarchical_model import interactions
from raydp.analysis.surface.hierarchy import score_posterior
from raydp.analysis.surface.posterior import Posterior
from raydp.analysis.tables.columns import KEY, with_settings
from raydp.analysis.tables.points import configuration_means

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class MeasuredScores:
    """The measured scores of m configurations.

    Attributes:
        means: configuration means.
        of_secrets: [m, k] means of `measured_values`, None if the values by secret are not known.
        over_seeds: [m] variance of the value of one secret in one run, beyond what the run and the
            secret explain. NaN for a configuration with one seed.
        log_base, no_leak: as for `select`.
    """

    means: pd.DataFrame
    of_secrets: Array | None
    over_seeds: Array
    log_base: float | None
    no_leak: float | None = 0.0

    @classmethod
    def of(
        cls,
        points: pd.DataFrame,
        secrets: tuple[pd.DataFrame, str] | None,
        *,
        log_base: float | None,
    ) -> MeasuredScores:
        """Gather the figures of a points table; `secrets` as for `select`."""
        means = configuration_means(points)
        unknown = np.full(len(means), np.nan)
        if secrets is None:
            return cls(means=means, of_secrets=None, over_seeds=unknown, log_base=log_base)
        values = measured_values(points, *secrets)
        of_secrets = mean_over_seeds(points, values)
        groups = with_settings(points).groupby(KEY, sort=True).ngroup().to_numpy()
        # A two-way layout: what neither the run nor the secret explains.
        rest = values - of_secrets[groups]
        rest = rest - rest.mean(axis=1, keepdims=True)
        squares = np.bincount(groups, (rest**2).sum(axis=1))
        degrees = (np.bincount(groups) - 1) * (values.shape[1] - 1)
        over_seeds = np.divide(squares, degrees, out=unknown, where=degrees > 0)
        return cls(means=means, of_secrets=of_secrets, over_seeds=over_seeds, log_base=log_base)

    def posterior(self, *, num_seeds: int = 0, times_secrets: int = 1) -> Posterior:
        """Return the posterior of the scores if there were more measurements with the same means.

        Args:
            num_seeds: least number of seeds of every configuration. What the secrets' values vary
                by from seed to seed shrinks too.
            times_secrets: how many times as many secrets.
        """
        seeds, std = self.means["num_seeds"].to_numpy(), self.means["score_std"].to_numpy()
        more = np.maximum(seeds, num_seeds)
        # A configuration with one seed has no spread of its own. Its further seeds have the spread
        # that it borrows now.
        if (noise := SeedNoise.of(std, seeds)) is not None:
            std = np.where(np.isnan(std) & (more > seeds), noise.std, std)
        of_secrets = self.of_secrets
        if of_secrets is not None and of_secrets.shape[1] > 1:
            of_secrets = np.tile(self._settled(of_secrets, more), times_secrets)
        means = self.means.assign(num_seeds=more, score_std=std)
        scores = score_posterior(means, by_secret=of_secrets, log_base=self.log_base)
        return replace(scores, no_leak=self.no_leak)

    def _settled(self, of_secrets: Array, more: NDArray[np.int64]) -> Array:
        """Return the means by secret with as much less noise as more seeds would leave."""
        seeds = self.means["num_seeds"].to_numpy()
        known = np.isfinite(self.over_seeds)
        score = self.means["score"].to_numpy()
        own = interactions(
            score, of_secrets, ratio=self.log_base is None and bool(score.min() >= 0)
        )
        # The interactions include the noise that more seeds would remove.
        size = float((own[known] ** 2).mean(axis=1).sum())
        gone = float((self.over_seeds * (1 / seeds - 1 / more))[known].sum())
        kept = np.sqrt(max(0.0, 1 - gone / size)) if size > 0 else 1.0
        settled: Array = of_secrets - (1 - kept) * own
        return settled

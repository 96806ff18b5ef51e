"""A smooth surface through the measured score or utility, from which predictions are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.statistics.noise import SeedNoise
from raydp.analysis.surface.hierarchy import Figure
from raydp.analysis.surface.scale import bounded_exp
from raydp.analysis.tables.coordinates import Coordinates
from raydp.extensions.prediction.surface import Surface

Array = NDArray[np.float64]

FEWEST = 4
_DRAWS = 4000
_MOST_LOG = 700.0


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A fitted surface of a figure or of its logarithm.

    Attributes:
        surface: the fitted surface.
        logarithm: whether the surface models the logarithm of the figure.
        run_std: typical standard deviation of one run's figure over seeds, on the surface's scale;
            None if no configuration has two seeds.
    """

    surface: Surface
    logarithm: bool
    run_std: float | None

    @classmethod
    def to(
        cls,
        means: pd.DataFrame,
        figure: Figure,
        *,
        coordinates: Coordinates | None = None,
        seed: int = 0,
    ) -> Fitted:
        """Fit a figure.

        A positive score is fitted as logarithm if that predicts left-out configurations better.

        Scores that are probabilities spread over orders of magnitude, so the logarithm often fits
        better.
        """
        given = partial(cls._of, means, figure, coordinates=coordinates, seed=seed)
        plain = given(logarithm=False)
        values = means[figure].to_numpy(dtype=np.float64)
        if figure != "score" or values.min() <= 0:
            return plain
        logarithmic = given(logarithm=True)
        # The density of a score is the density of its logarithm divided by the score.
        density = logarithmic.surface.log_density() - float(np.log(values).sum())
        return logarithmic if density > plain.surface.log_density() else plain

    @classmethod
    def _of(
        cls,
        means: pd.DataFrame,
        figure: Figure,
        *,
        coordinates: Coordinates | None,
        logarithm: bool,
        seed: int,
    ) -> Fitted:
        values, std = (means[name].to_numpy(dtype=np.float64) for name in (figure, f"{figure}_std"))
        if logarithm:
            # the standard deviation of the logarithm, to first order
            values, std = (np.log(values), std / values)
        noise = SeedNoise.of(std, means["num_seeds"].to_numpy())
        table = means.assign(**{figure: values})
        variance = None if noise is None else noise.std_error() ** 2
        surface = Surface.fit(table, figure, variance, coordinates=coordinates, seed=seed)
        return cls(
            surface=surface,
            logarithm=logarithm,
            run_std=None if noise is None else float(np.sqrt((noise.std**2).mean())),
        )

    def draw(self, candidates: pd.DataFrame, num_draws: int, *, seed: int) -> Array:
        """Draw whole surfaces at the candidates, on the figure's own scale, [num_draws, k]."""
        drawn = self.surface.draw(candidates, num_draws, seed=seed)
        return bounded_exp(drawn, _MOST_LOG) if self.logarithm else drawn

    def marginals(self, candidates: pd.DataFrame, *, seed: int) -> tuple[Array, Array | None]:
        """Draw each candidate's expectation, and one run's figure, independently, [draws, k]."""
        means, stds = self.surface.components(candidates)
        rng = np.random.default_rng(seed)
        times = _DRAWS // len(means)
        expected = (means + stds * rng.standard_normal((times, *means.shape))).reshape(
            -1, means.shape[1]
        )
        runs = (
            None
            if self.run_std is None
            else expected + self.run_std * rng.standard_normal(expected.shape)
        )
        if not self.logarithm:
            return expected, runs
        return bounded_exp(expected, _MOST_LOG), None if runs is None else bounded_exp(
            runs, _MOST_LOG
        )

"""Predicted score and utility, with intervals, of configurations that have not been run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import NotRequired

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.statistics.noise import SeedNoise
from raydp.analysis.statistics.results import Reason
from raydp.analysis.surface.posterior import bounded_exp
from raydp.analysis.surface.surrogate import Figure, Surface
from raydp.analysis.tables.coordinates import Coordinates, fields_of, is_numeric, level_of
from raydp.analysis.tables.points import SETTINGS, configuration_means, configurations
from raydp.search_spaces.configuration import HYPERPARAMETERS, Configuration, Hyperparameters

Array = NDArray[np.float64]

FEWEST = 4
_QUANTILES = (0.025, 0.975)
_DRAWS = 4000
_MOST_LOG = 700.0


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A fitted surface of a figure or of its logarithm.

    Attributes:
        surface: the fitted surface.
        logarithm: whether the surface models the logarithm of the figure.
        run_std: typical standard deviation of one run's figure over seeds, on the surface's scale; None if no
            configuration has two seeds.
    """

    surface: Surface
    logarithm: bool
    run_std: float | None

    @classmethod
    def to(
        cls, means: pd.DataFrame, figure: Figure, *, coordinates: Coordinates | None = None, seed: int = 0
    ) -> Fitted:
        """Fit a figure. A positive score is fitted as logarithm if that predicts left-out configurations better.

        Scores that are probabilities spread over orders of magnitude, so the logarithm often fits better.
        """
        given = partial(cls._of, means, figure, coordinates=coordinates, seed=seed)
        plain = given(logarithm=False)
        values = means[figure].to_numpy(dtype=np.float64)
        if figure != "score" or values.min() <= 0:
            return plain
        logarithmic = given(logarithm=True)
        density = logarithmic.surface.log_density() - float(np.log(values).sum())
        return logarithmic if density > plain.surface.log_density() else plain

    @classmethod
    def _of(
        cls, means: pd.DataFrame, figure: Figure, *, coordinates: Coordinates | None, logarithm: bool, seed: int
    ) -> Fitted:
        values, std = (means[name].to_numpy(dtype=np.float64) for name in (figure, f"{figure}_std"))
        if logarithm:
            values, std = np.log(values), std / values  # the standard deviation of the logarithm, to first order
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
        """Draw whole surfaces at the candidates, on the figure's own scale. Shape [num_draws, k]."""
        drawn = self.surface.draw(candidates, num_draws, seed=seed)
        return bounded_exp(drawn, _MOST_LOG) if self.logarithm else drawn

    def marginals(self, candidates: pd.DataFrame, *, seed: int) -> tuple[Array, Array | None]:
        """Draw each candidate's expectation over seeds, and one run's figure, independently. Shapes [draws, k]."""
        means, stds = self.surface.components(candidates)
        rng = np.random.default_rng(seed)
        times = _DRAWS // len(means)
        expected = (means + stds * rng.standard_normal((times, *means.shape))).reshape(-1, means.shape[1])
        runs = None if self.run_std is None else expected + self.run_std * rng.standard_normal(expected.shape)
        if not self.logarithm:
            return expected, runs
        return bounded_exp(expected, _MOST_LOG), None if runs is None else bounded_exp(runs, _MOST_LOG)


class Prediction(Hyperparameters, Reason):
    """The prediction for one configuration (`predict` explains the figures)."""

    score: float
    score_interval: list[float]
    score_run_interval: list[float] | None
    utility_loss: float
    utility_interval: list[float]
    utility_run_interval: list[float] | None
    compute: int
    beyond: list[str]
    within: NotRequired[float]


def predict(
    points: pd.DataFrame,
    candidates: Sequence[Configuration] | None = None,
    *,
    max_loss: float | None = None,
    seed: int = 0,
) -> list[Prediction]:
    """Predict configurations that have not been run, by a smooth surface through the measured ones.

    Args:
        points: a points table with at least 4 configurations.
        candidates: configurations to predict. The default is every combination of the table's values of b, T and η
            that the table lacks, within each stratum of further fields. There may be none.
        max_loss: a utility threshold, to predict the probability that a candidate keeps to it.
        seed: seed of the draws.

    Returns:
        Sorted by (T, b, η, settings), one row each. "batch_size", "num_steps", "learning_rate", "settings" if there are
        any. "score" and "utility_loss": medians. "score_interval" and "utility_interval": 95 % of the expectation over
        seeds. "score_run_interval" and "utility_run_interval": 95 % of one run's figure, None if no configuration has
        two seeds. "compute": C = b·T. "beyond": the hyperparameters and numeric fields outside the measured range, for
        which the row is an extrapolation. With max_loss also "within": the probability that the expected loss is at
        most max_loss.

    Beyond the measured values, the surface continues as a plane with growing uncertainty. It cannot predict that a run
    diverges.

    Raises:
        ValueError: fewer than 4 configurations, a candidate with a further field that no measured configuration sets or
            with an unknown value of a field that is no number, or as `configuration_means`.
    """
    if max_loss is not None and not math.isfinite(max_loss):
        raise ValueError(f"max_loss must be finite, got {max_loss}. Leave it out to ask for no probability.")
    means = configuration_means(points)
    if len(means) < FEWEST:
        raise ValueError(
            f"points must have at least {FEWEST} configurations to predict from, got {len(means)}. Run more."
        )
    # Select the candidates.
    chosen = _missing(means) if candidates is None else list(dict.fromkeys(candidates))
    if not chosen:
        return []
    chosen = sorted(chosen, key=lambda c: c.key)
    table = pd.DataFrame([asdict(c) for c in chosen])
    measured = fields_of(means)
    _check_fields(chosen, measured)
    # Fit both figures, and draw from their distribution at each candidate.
    score, score_of_runs = Fitted.to(means, "score", seed=seed).marginals(table, seed=seed)
    loss, loss_of_runs = Fitted.to(means, "utility_loss", seed=seed).marginals(table, seed=seed)
    # Summarise the draws by medians and quantiles.
    rows: list[Prediction] = []
    for at, configuration in enumerate(chosen):
        row: Prediction = {
            "batch_size": configuration.batch_size,
            "num_steps": configuration.num_steps,
            "learning_rate": configuration.learning_rate,
            "score": float(np.median(score[:, at])),
            "score_interval": _interval(score[:, at]),
            "score_run_interval": None if score_of_runs is None else _interval(score_of_runs[:, at]),
            "utility_loss": float(np.median(loss[:, at])),
            "utility_interval": _interval(loss[:, at]),
            "utility_run_interval": None if loss_of_runs is None else _interval(loss_of_runs[:, at]),
            "compute": configuration.compute,
            "beyond": [
                *(name for name in HYPERPARAMETERS if not _between(means[name], getattr(configuration, name))),
                *(path for path, values in measured.items() if _beyond(values, configuration.fields.get(path))),
            ],
        }
        if configuration.settings:
            row["settings"] = configuration.fields
        if max_loss is not None:
            row["within"] = float((loss[:, at] <= max_loss).mean())
        if row["score_run_interval"] is None or row["utility_run_interval"] is None:
            row["reason"] = "no configuration has two seeds, so how much runs differ is not known"
        rows.append(row)
    return rows


def _interval(draws: Array) -> list[float]:
    """Return the 95 % interval of some draws."""
    low, high = np.quantile(draws, _QUANTILES)
    return [float(low), float(high)]


def _check_fields(chosen: Sequence[Configuration], measured: dict[str, list[object]]) -> None:
    """Refuse a configuration with a field that no measured one sets, or with an unknown value of a field of words."""
    for configuration in chosen:
        for path, value in configuration.fields.items():
            if path not in measured:
                known = ", ".join(measured) or "none"
                raise ValueError(
                    f"candidates must set fields that the measured configurations set ({known}), got {path}. Leave it "
                    "out, or correct the path."
                )
            levels = dict.fromkeys(map(level_of, measured[path]))
            if not is_numeric(measured[path]) and level_of(value) not in levels:
                raise ValueError(
                    f"{path} must be a value that was measured ({', '.join(levels)}), got {level_of(value)}. Choose "
                    "one of them."
                )


def _beyond(measured: list[object], value: object) -> bool:
    """Return whether a number of a further field lies outside the measured numbers."""
    if value is None or not is_numeric(measured):
        return False
    numbers = [one for one in measured if isinstance(one, int | float)]
    return isinstance(value, int | float) and not min(numbers) <= value <= max(numbers)


def _between(measured: pd.Series, value: float) -> bool:
    return bool(measured.min() <= value <= measured.max())


def _missing(means: pd.DataFrame) -> list[Configuration]:
    """Return every combination of a table's values that the table lacks."""
    known, every = set(configurations(means)), list[Configuration]()
    for settings, stratum in means.groupby(SETTINGS):  # values of another stratum may not be possible in this one
        values = (sorted(stratum[name].unique().tolist()) for name in HYPERPARAMETERS)
        every += [
            Configuration(batch_size=int(b), num_steps=int(t), learning_rate=float(rate), settings=str(settings))
            for b, t, rate in product(*values)
        ]
    return [c for c in every if c not in known]

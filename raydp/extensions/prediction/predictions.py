"""Predicted score and utility, with intervals, of configurations that have not been run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NotRequired

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.statistics.results import Reason
from raydp.analysis.tables.columns import SETTINGS
from raydp.analysis.tables.coordinates import fields_of, is_numeric, level_of
from raydp.analysis.tables.points import configuration_means, configurations
from raydp.extensions.prediction.fitted_surface import FEWEST, Fitted
from raydp.search_spaces.configuration import HYPERPARAMETERS, Configuration, Hyperparameters
from raydp.search_spaces.settings import Settings

Array = NDArray[np.float64]

_QUANTILES = (0.025, 0.975)


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
        candidates: configurations to predict. The default is every combination of the table's
            values of b, T and η that the table lacks, within each stratum of further fields. There
            may be none.
        max_loss: a utility threshold, to predict the probability that a candidate keeps to it.
        seed: seed of the draws.

    Returns:
        Sorted by (T, b, η, settings), one row each. "batch_size", "num_steps", "learning_rate",
        "settings" if there are any. "score" and "utility_loss": medians. "score_interval" and
        "utility_interval": 95 % of the expectation over seeds. "score_run_interval" and
        "utility_run_interval": 95 % of one run's figure, None if no configuration has two seeds.
        "compute": C = b·T. "beyond": the hyperparameters and numeric fields outside the measured
        range, for which the row is an extrapolation. With max_loss also "within": the probability
        that the expected loss is at most max_loss.

    Beyond the measured values, the surface continues as a plane with growing uncertainty. It cannot
    predict that a run diverges.

    Raises:
        ValueError: fewer than 4 configurations, a candidate with a further field that no measured
            configuration sets or with an unknown value of a field that is no number, or as
            `configuration_means`.
    """
    if max_loss is not None and not math.isfinite(max_loss):
        raise ValueError(
            f"max_loss must be finite, got {max_loss}. Leave it out to ask for no probability."
        )
    means = configuration_means(points)
    if len(means) < FEWEST:
        raise ValueError(
            f"points must have at least {FEWEST} configurations to predict from, got {len(means)}. "
            "Run more."
        )
    # Select the candidates.
    chosen = sorted(_missing(means) if candidates is None else set(candidates), key=lambda c: c.key)
    if not chosen:
        return []
    table = pd.DataFrame([c.to_row() for c in chosen])
    # A surface knows nothing of a field or a word that no measured configuration has.
    measured = fields_of(means)
    _check_fields(chosen, measured)
    # Fit both figures, and draw from their distribution at each candidate.
    score = Fitted.to(means, "score", seed=seed).marginals(table, seed=seed)
    loss = Fitted.to(means, "utility_loss", seed=seed).marginals(table, seed=seed)
    return [
        _row(c, at, score, loss, _beyond_measured(c, means, measured), max_loss)
        for at, c in enumerate(chosen)
    ]


Draws = tuple[Array, Array | None]
"""Draws of an expectation and of one run's figure, [draws, candidates] each."""


def _row(
    configuration: Configuration,
    at: int,
    score: Draws,
    loss: Draws,
    beyond: list[str],
    max_loss: float | None,
) -> Prediction:
    """Summarise one candidate's draws by quantiles: a mean would follow an exponential's tail."""
    row: Prediction = {
        "batch_size": configuration.batch_size,
        "num_steps": configuration.num_steps,
        "learning_rate": configuration.learning_rate,
        "score": float(np.median(score[0][:, at])),
        "score_interval": _interval(score[0][:, at]),
        "score_run_interval": None if score[1] is None else _interval(score[1][:, at]),
        "utility_loss": float(np.median(loss[0][:, at])),
        "utility_interval": _interval(loss[0][:, at]),
        "utility_run_interval": None if loss[1] is None else _interval(loss[1][:, at]),
        "compute": configuration.compute,
        "beyond": beyond,
    }
    if configuration.settings:
        row["settings"] = configuration.fields
    if max_loss is not None:
        row["within"] = float((loss[0][:, at] <= max_loss).mean())
    if score[1] is None or loss[1] is None:
        row["reason"] = "no configuration has two seeds, so how much runs differ is not known"
    return row


def _beyond_measured(
    configuration: Configuration, means: pd.DataFrame, measured: Mapping[str, list[object]]
) -> list[str]:
    """Return what lies outside the measured range, where the row is an extrapolation."""
    beyond = [
        name
        for name in HYPERPARAMETERS
        if not means[name].min() <= getattr(configuration, name) <= means[name].max()
    ]
    settings = configuration.settings
    return beyond + [path for path, all_ in measured.items() if _beyond(all_, settings.get(path))]


def _interval(draws: Array) -> list[float]:
    """Return the 95 % interval of some draws."""
    ends: list[float] = np.quantile(draws, _QUANTILES).tolist()
    return ends


def _check_fields(chosen: Sequence[Configuration], measured: dict[str, list[object]]) -> None:
    """Refuse a field that no measured configuration sets, or an unknown word of a field."""
    for configuration in chosen:
        for path, value in configuration.settings.items():
            if path not in measured:
                known = ", ".join(measured) or "none"
                raise ValueError(
                    f"candidates must set fields that the measured configurations set ({known}), "
                    f"got {path}. Leave it out, or correct the path."
                )
            levels = dict.fromkeys(map(level_of, measured[path]))
            if not is_numeric(measured[path]) and level_of(value) not in levels:
                raise ValueError(
                    f"{path} must be a value that was measured ({', '.join(levels)}), got "
                    f"{level_of(value)}. Choose one of them."
                )


def _beyond(measured: list[object], value: object) -> bool:
    """Return whether a number of a further field lies outside the measured numbers."""
    if value is None or not is_numeric(measured):
        return False
    numbers = [one for one in measured if isinstance(one, int | float)]
    return isinstance(value, int | float) and not min(numbers) <= value <= max(numbers)


def _missing(means: pd.DataFrame) -> list[Configuration]:
    """Return every combination of a table's values that the table lacks."""
    known, every = set(configurations(means)), list[Configuration]()
    # Values of another stratum may not be possible in this one.
    for settings, stratum in means.groupby(SETTINGS):
        values = (sorted(stratum[name].unique().tolist()) for name in HYPERPARAMETERS)
        every += [
            Configuration(
                batch_size=int(b),
                num_steps=int(t),
                learning_rate=float(rate),
                settings=Settings.parse(str(settings)),
            )
            for b, t, rate in product(*values)
        ]
    return [c for c in every if c not in known]

"""Importance of each hyperparameter for score and utility: functional analysis of variance."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from raydp.analysis.statistics.results import Reason
from raydp.analysis.tables.coordinates import is_numeric, level_of, varied_fields
from raydp.analysis.tables.points import configuration_means
from raydp.analysis.tables.thinning import evenly
from raydp.search_spaces.configuration import HYPERPARAMETERS

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_MOST_CONFIGURATIONS = 1000
_FEWEST_CONFIGURATIONS = 4


Shares = dict[str, float]
"""Hyperparameter, or path of a further field -> its share of the variance. They sum to 1."""


class Importance(Reason):
    """The importance of the hyperparameters for the two figures."""

    score: Shares | None
    utility_loss: Shares | None


def hyperparameter_importance(points: pd.DataFrame) -> Importance:
    """Return the importance of b, T, η and varied further fields for mean score and mean loss.

    A random forest of optuna is fitted to the configurations' means, over the logarithms of the
    hyperparameters and the values of the further fields. The importance is the share of the
    forest's variance that one hyperparameter explains alone. Interactions are left out.

    Args:
        points: a points table. Of more than 1000 configurations, 1000 are taken evenly.

    Returns:
        The shares; None, with a reason, if there are fewer than 4 configurations. A figure that is
        the same for all configurations has None.

    Raises:
        ValueError: as `configuration_means`.

    Source: Hutter, Hoos and Leyton-Brown 2014.
    """
    means = configuration_means(points)
    if len(means) < _FEWEST_CONFIGURATIONS:
        reason = (
            f"there are {len(means)} configurations, and it takes at least {_FEWEST_CONFIGURATIONS}"
        )
        return {"score": None, "utility_loss": None, "reason": reason}
    means = means.iloc[evenly(len(means), _MOST_CONFIGURATIONS)]
    return {"score": _shares(means, "score"), "utility_loss": _shares(means, "utility_loss")}


def _shares(means: pd.DataFrame, figure: str) -> Shares | None:
    """Return the shares for one figure; None if it does not vary."""
    from optuna import create_study, logging
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances
    from optuna.trial import create_trial

    # The forest splits nothing if the values differ by less than its own tolerance, so they are put
    # on one scale.
    values = means[figure].to_numpy(dtype=np.float64)
    values = values / (np.abs(values).max() or 1.0)
    values = values - values.mean()
    largest = np.abs(values).max()
    varied = [name for name in HYPERPARAMETERS if means[name].nunique() > 1]
    fields = varied_fields(means)
    if largest == 0 or not (varied or fields):
        return None
    # A single one explains everything, and a forest of its values takes long.
    if len(varied) + len(fields) == 1:
        return {
            name: float(name in varied or name in fields) for name in (*HYPERPARAMETERS, *fields)
        }
    values = values / largest
    # A forest can split only what varies.
    inputs: dict[str, list[object]] = {
        **{name: list(means[name].astype(float)) for name in varied},
        **fields,
    }
    ranges = {name: _range(column) for name, column in inputs.items()}
    # optuna's log would bury the caller's own output.
    level = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        # The evaluator reads finished trials of a study, so the runs become such trials.
        study = create_study()
        study.add_trials(
            [
                create_trial(
                    params={
                        name: level_of(column[at])
                        if hasattr(ranges[name], "choices")
                        else column[at]
                        for name, column in inputs.items()
                    },
                    distributions=ranges,
                    value=float(value),
                )
                for at, value in enumerate(values)
            ]
        )
        with warnings.catch_warnings():
            # optuna calls single functions of its importance module experimental.
            warnings.simplefilter("ignore")
            found = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    finally:
        logging.set_verbosity(level)
    return {name: float(found.get(name, 0.0)) for name in (*HYPERPARAMETERS, *fields)}


def _range(values: list[object]) -> BaseDistribution:
    """Return the range of a hyperparameter or field: an interval of numbers, or the values."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if is_numeric(values) and len(numbers) == len(values):
        return FloatDistribution(min(numbers), max(numbers), log=min(numbers) > 0)
    return CategoricalDistribution(sorted(set(map(level_of, values))))

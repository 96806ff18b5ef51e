"""Importance of the hyperparameters, and the training curves of runs."""

from __future__ import annotations

import warnings
from itertools import product

import numpy as np
import optuna
import pandas as pd
import pytest

from raydp.analysis.figures import MOST_CURVES, Curve, importance_bars, training_curves
from raydp.extensions.hyperparameters.importance import hyperparameter_importance
from tests.marks import slow_after

GRID = list(product([16, 32, 64, 128], [10, 20, 40], [0.005, 0.01, 0.02]))


def table(score, grid=GRID) -> pd.DataFrame:
    rows = [[b, t, rate, 0, 3.0 - np.log(t), score(b, t, rate)] for b, t, rate in grid]
    columns = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
    return pd.DataFrame(rows, columns=columns)


def test_shares_are_those_of_an_exact_analysis_of_variance() -> None:
    """On a full grid the mean over the other hyperparameters gives the main effects exactly."""
    points = table(lambda b, t, rate: 0.2 * np.log(b) + 0.15 * np.log(t) - 0.1 * np.log(rate))
    shares = hyperparameter_importance(points)["score"]
    assert shares is not None
    assert sum(shares.values()) == pytest.approx(1)
    for name, share in shares.items():
        effect = points.groupby(name)["score"].transform("mean").var(ddof=0) / points["score"].var(
            ddof=0
        )
        assert share == pytest.approx(effect, abs=0.1)


def test_a_hyperparameter_that_changes_nothing_has_no_importance() -> None:
    importance = hyperparameter_importance(table(lambda b, t, rate: 0.1 * b))
    assert importance["score"]["batch_size"] > 0.99
    assert importance["utility_loss"]["num_steps"] > 0.99
    assert hyperparameter_importance(table(lambda b, t, rate: 0.1 * b)) == importance, (
        "the forest has a fixed seed"
    )


@pytest.mark.parametrize("scale", slow_after(1, [2.0**-300, 2.0**-40, 2.0**300]))
def test_the_unit_of_the_score_changes_nothing(scale: float) -> None:
    """A power of two leaves every digit as it is.

    The last values are those of models that leak nothing.
    """
    points = table(lambda b, t, rate: 0.2 * np.log(b) + 0.1 * np.log(t))
    scaled = points.assign(score=scale * points["score"])
    expected = hyperparameter_importance(points)["score"]
    assert hyperparameter_importance(scaled)["score"] == pytest.approx(expected, abs=1e-12)
    near = points.assign(score=6.66e-5 + 1e-9 * points["score"])
    assert hyperparameter_importance(near)["score"] == pytest.approx(expected, abs=0.02)


def test_edges() -> None:
    few = hyperparameter_importance(table(lambda b, t, rate: b, grid=GRID[:3]))
    assert (few["score"], few["utility_loss"]) == (None, None)
    assert few["reason"] == "there are 3 configurations, and it takes at least 4"
    assert hyperparameter_importance(table(lambda b, t, rate: 0.5))["score"] is None
    fixed = table(lambda b, t, rate: b * t, grid=[row for row in GRID if row[2] == 0.01])
    assert hyperparameter_importance(fixed)["score"]["learning_rate"] == 0
    alone = table(lambda b, t, rate: b, grid=[row for row in GRID if row[1:] == (20, 0.01)])
    shares = {"batch_size": 1.0, "num_steps": 0.0, "learning_rate": 0.0}
    assert hyperparameter_importance(alone) == {"score": shares, "utility_loss": None}
    for points in (table(lambda b, t, rate: b, grid=GRID[:3]), fixed):
        assert [bar.name for bar in importance_bars(points).data] == ["Utility loss", "Score"]


def test_optuna_stays_as_the_user_set_it() -> None:
    before = optuna.logging.get_verbosity()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hyperparameter_importance(table(lambda b, t, rate: 0.1 * b))
    assert optuna.logging.get_verbosity() == before


def test_curves_are_sorted_by_score_smoothed_and_thinned() -> None:
    rng = np.random.default_rng(1)
    losses = 2 + 0.3 * rng.standard_normal(1000)
    curves = [
        Curve(f"run {k}", float(-k), list(range(1000)), losses.tolist())
        for k in range(MOST_CURVES + 9)
    ]
    figure = training_curves([*curves, Curve("not trained", 9.0, [], [])])
    assert len(figure.data) == MOST_CURVES
    assert "run 68" in figure.data[0].hovertemplate
    assert "run 0," in figure.data[-1].hovertemplate
    x, y = np.array(figure.data[0].x), np.array(figure.data[0].y)
    assert (len(x), x[0], x[-1]) == (60, 0, 999)
    assert y[0] == pytest.approx(losses[0], abs=1e-3)
    assert np.abs(y[20:] - 2).max() < 0.15, "the mean of about 70 losses"
    assert len(training_curves([Curve("one", 0.0, [0], [1.5])]).data) == 1
    line, dots = training_curves([Curve("one", 0.0, [0, 1], [1.5, 1.4], [(2, 1.45)])]).data
    assert (dots.mode, list(dots.x), list(dots.y)) == ("markers", [2], [1.45])
    assert dots.marker.color == line.line.color
    assert len(training_curves([]).data) == 0

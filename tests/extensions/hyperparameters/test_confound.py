"""The score adjusted for utility: what is left, and pairs of equal utility."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from raydp.analysis import configuration_means, utility_adjusted
from raydp.search_spaces import grid

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
CONFIGURATIONS = grid([64, 128, 256, 512], [60, 120, 240], ["5e-3", "1e-2", "2e-2"])


def table(rng, score_fn, *, seeds=2, noise=0.0):
    """Losses fall with compute; score_fn(loss, configuration) is the score."""
    rows = []
    for c in CONFIGURATIONS:
        loss = 3 - 0.1 * np.log(c.compute) + 0.02 * rng.standard_normal()
        for seed in range(seeds):
            score = score_fn(loss, c) + noise * rng.standard_normal()
            rows.append(
                (
                    c.batch_size,
                    c.num_steps,
                    c.learning_rate,
                    seed,
                    loss + 1e-4 * rng.standard_normal(),
                    score,
                )
            )
    return pd.DataFrame(rows, columns=COLUMNS)


@pytest.mark.slow
def test_a_score_that_is_a_smooth_function_of_utility_leaves_nothing():
    found = utility_adjusted(table(np.random.default_rng(0), lambda loss, c: 2 - loss))
    assert found["share_remaining"] < 1e-4
    bent = utility_adjusted(
        table(np.random.default_rng(0), lambda loss, c: np.exp(-2 * (loss - 2)))
    )
    assert bent["share_remaining"] < 0.02


def test_a_score_that_has_nothing_to_do_with_utility_remains():
    """30 tables: the share that remains is 1 on average, without bias from the spline's terms (3
    standard errors)."""
    rng = np.random.default_rng(1)
    shares = [
        utility_adjusted(
            table(rng, lambda loss, c: rng.standard_normal(), seeds=1), num_resamples=20
        )["share_remaining"]
        for _ in range(30)
    ]
    assert np.mean(shares) == pytest.approx(1, abs=3 * np.std(shares, ddof=1) / np.sqrt(30))


def test_an_effect_of_a_hyperparameter_beside_utility_is_found():
    """The learning rate moves the score and not the loss: std of its effect 0.41, in 36
    configurations."""
    found = utility_adjusted(
        table(
            np.random.default_rng(2),
            lambda loss, c: 2 - loss + 0.5 * np.log2(c.learning_rate),
            noise=0.01,
        )
    )
    effect = np.std([0.5 * np.log2(c.learning_rate) for c in CONFIGURATIONS], ddof=1)
    assert found["adjusted_std"] == pytest.approx(effect, rel=0.05)
    assert found["interval"][0] < effect < found["interval"][1]
    assert found["noise_std"] == pytest.approx(0.01 / np.sqrt(2), rel=0.3)
    by_rate = {
        rate: [r["adjusted"] for r in found["rows"] if r["learning_rate"] == rate]
        for rate in (0.005, 0.02)
    }
    assert np.mean(by_rate[0.02]) - np.mean(by_rate[0.005]) == pytest.approx(1.0, abs=0.05)


def test_matched_pairs_are_all_pairs_within_the_tolerance():
    rng = np.random.default_rng(3)
    points = table(rng, lambda loss, c: rng.uniform())
    found, means = utility_adjusted(points, num_resamples=20)["pairs"], configuration_means(points)
    loss, score = means["utility_loss"].to_numpy(), means["score"].to_numpy()
    near = [
        (i, j)
        for i, j in combinations(range(len(means)), 2)
        if abs(loss[i] - loss[j]) <= found["tolerance"]
    ]
    apart = sorted((abs(score[i] - score[j]) for i, j in near), reverse=True)
    assert found["count"] == len(near)
    assert found["mean_difference"] == pytest.approx(np.mean(apart))
    assert [p["higher"]["score"] - p["lower"]["score"] for p in found["widest"]] == pytest.approx(
        apart[:20]
    )


def test_blocks_change_nothing(monkeypatch):
    points = table(np.random.default_rng(4), lambda loss, c: float(c.learning_rate))
    whole = utility_adjusted(points, num_resamples=20)
    monkeypatch.setattr("raydp.extensions.hyperparameters.matched_pairs._CELLS_AT_ONCE", 5)
    assert utility_adjusted(points, num_resamples=20) == whole


def test_too_few_or_equal_figures_say_so():
    points = table(np.random.default_rng(5), lambda loss, c: 0.5)
    assert "the same everywhere" in utility_adjusted(points)["reason"]
    two = points.assign(
        utility_loss=1.0 + (points["num_steps"] > 60), score=points["learning_rate"]
    )
    assert "no more than 3 different losses" in utility_adjusted(two)["reason"]
    few = points[points["num_steps"] == 60].iloc[:10]
    assert "too few" in utility_adjusted(few)["reason"]
    assert utility_adjusted(few.iloc[:1])["pairs"]["count"] == 0


def test_of_many_configurations_some_are_paired_evenly():
    """6,000 configurations: pairs of a sample, with the same mean difference (of two normals
    2/sqrt(pi))."""
    rng = np.random.default_rng(0)
    rates = np.geomspace(1e-5, 1, 6000).round(9)
    table = pd.DataFrame({"batch_size": 8, "num_steps": 2, "learning_rate": rates, "seed": 0})
    table["utility_loss"], table["score"] = rng.permutation(6000) / 6000, rng.normal(size=6000)
    pairs = utility_adjusted(table, num_resamples=2)["pairs"]
    assert pairs["paired"] == 5000
    assert pairs["mean_difference"] == pytest.approx(2 / np.sqrt(np.pi), rel=0.03)
    assert len(pairs["widest"]) == 20
    apart = [abs(one["higher"]["score"] - one["lower"]["score"]) for one in pairs["widest"]]
    assert apart == sorted(apart, reverse=True)
    assert apart[0] == pairs["largest_difference"]


def test_no_pairs_are_explained():
    """Losses that are farther apart than their errors."""
    rows = [
        (8, 2, rate, seed, loss + 1e-9 * seed, loss)
        for rate, loss in ((0.1, 1.0), (0.2, 2.0))
        for seed in (0, 1)
    ]
    columns = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
    pairs = utility_adjusted(pd.DataFrame(rows, columns=columns))["pairs"]
    assert (pairs["count"], pairs["mean_difference"]) == (0, None)
    assert pairs["reason"] == "no two configurations have equal utility"


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 27])
def test_the_interval_of_the_residual_effect_holds_the_true_effect(size):
    """300 tables each: at a coverage of 0.95 fewer than 0.91 has a probability of 0.2 %."""
    rng = np.random.default_rng(size)
    held = []
    for _ in range(300):
        rows = [
            (8, 2, (k + 1) / 100, 0, loss, loss + 0.3 * rng.normal())
            for k, loss in enumerate(rng.uniform(size=size))
        ]
        columns = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
        low, high = utility_adjusted(pd.DataFrame(rows, columns=columns), num_resamples=2)[
            "interval"
        ]
        held.append(low <= 0.3 <= high)
    assert np.mean(held) > 0.91

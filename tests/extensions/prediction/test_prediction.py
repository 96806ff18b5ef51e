"""Predictions of configurations that have not run."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from raydp.analysis import configuration_means, predict
from raydp.extensions.prediction.command import show_predictions
from raydp.extensions.prediction.fitted_surface import Fitted
from raydp.search_spaces import Configuration, grid
from tests.marks import slow_after

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
SPACE = grid([64, 128, 256], [60, 120, 240], ["5e-3", "1e-2", "2e-2"])


def sweep(rng, *, logarithmic=False, noise=0.1, seeds=3):
    slopes = (
        np.array([0.13, 0.37, 0.51])
        * np.exp(0.3 * rng.standard_normal(3))
        * (6 if logarithmic else 1)
    )
    rows = []
    for c in SPACE:
        z = slopes @ np.log([c.batch_size, c.num_steps, c.learning_rate])
        for seed in range(seeds):
            score = z + noise * rng.standard_normal()
            loss = 3 - 0.1 * np.log(c.compute) + 0.01 * rng.standard_normal()
            rows.append(
                (
                    c.batch_size,
                    c.num_steps,
                    c.learning_rate,
                    seed,
                    loss,
                    np.exp(score) if logarithmic else score,
                )
            )
    return pd.DataFrame(rows, columns=COLUMNS)


def without(table, some):
    keys = {(c.batch_size, c.num_steps, c.learning_rate) for c in some}
    kept = [key not in keys for key in zip(*(table[name] for name in COLUMNS[:3]), strict=True)]
    return table[kept], table[[not k for k in kept]]


@pytest.mark.slow
@pytest.mark.parametrize("logarithmic", slow_after(1, [False, True]))
def test_intervals_of_one_run_hold_as_often_as_they_say(logarithmic):
    """15 sweeps, 9 of 27 configurations left out, their 27 runs: 95 % intervals hold 95 %, at least
    90 % with the errors that the runs of a sweep share (a standard error of some 1.5 %)."""
    rng = np.random.default_rng(7 + logarithmic)
    held = []
    for _ in range(15):
        table = sweep(rng, logarithmic=logarithmic)
        chosen = [SPACE[i] for i in rng.permutation(len(SPACE))[:9]]
        ran, left = without(table, chosen)
        rows = {
            (r["batch_size"], r["num_steps"], r["learning_rate"]): r for r in predict(ran, chosen)
        }
        for row in left.itertuples():
            found = rows[row.batch_size, row.num_steps, row.learning_rate]
            for value, interval in (
                (row.score, "score_run_interval"),
                (row.utility_loss, "utility_run_interval"),
            ):
                held.append(found[interval][0] <= value <= found[interval][1])
    assert np.mean(held) >= 0.9


@pytest.mark.slow
def test_scores_that_span_orders_of_magnitude_are_predicted_by_their_logarithm():
    """Six tables of each kind.

    By its density, one table of additive scores in twelve looks like the other kind.
    """
    plain = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        means = configuration_means(sweep(rng, logarithmic=True))
        assert Fitted.to(means, "score").logarithm
        plain.append(not Fitted.to(configuration_means(sweep(rng)), "score").logarithm)
    assert sum(plain) >= 5
    assert not Fitted.to(means.assign(score=means["score"] - 1e-9), "utility_loss").logarithm
    (row,) = predict(
        sweep(rng, logarithmic=True),
        [Configuration(batch_size=32, num_steps=30, learning_rate=0.001)],
    )
    assert 0 < row["score_interval"][0] < row["score"] < row["score_interval"][1], (
        "a positive score stays positive"
    )


def test_configurations_that_the_table_lacks_are_predicted_by_default():
    table = sweep(np.random.default_rng(1))
    ran, _ = without(table, [SPACE[3], SPACE[20]])
    rows = predict(ran, max_loss=2.3)
    assert [(r["batch_size"], r["num_steps"], r["learning_rate"]) for r in rows] == sorted(
        [(c.batch_size, c.num_steps, c.learning_rate) for c in (SPACE[3], SPACE[20])],
        key=lambda c: (c[1], c[0], c[2]),
    )
    assert all(0 <= r["within"] <= 1 for r in rows)
    assert predict(ran) == [{k: v for k, v in r.items() if k != "within"} for r in rows], (
        "the draws are the same"
    )
    assert predict(table) == [], "a complete grid leaves nothing to predict"


def test_one_seed_says_nothing_of_one_run():
    rows = predict(
        sweep(np.random.default_rng(2), seeds=1),
        [Configuration(batch_size=90, num_steps=90, learning_rate=0.01)],
    )
    assert rows[0]["score_run_interval"] is None
    assert rows[0]["score_interval"][0] < rows[0]["score"]


def test_too_few_to_predict_from():
    with pytest.raises(ValueError, match="at least 4 configurations"):
        predict(sweep(np.random.default_rng(3)).iloc[:9])


def test_the_command_prints_rows(raydp, tmp_path):
    sweep(np.random.default_rng(4)).to_csv(tmp_path / "p.csv", index=False)
    answer = raydp(
        "predict",
        tmp_path / "p.csv",
        "--configuration",
        "96,90,0.007",
        "--max-loss",
        "2.3",
        "--json",
    )
    assert answer.code == 0
    (row,) = answer.json()
    assert (row["batch_size"], row["num_steps"], row["learning_rate"], row["compute"]) == (
        96,
        90,
        0.007,
        96 * 90,
    )
    assert raydp("predict", tmp_path / "p.csv", "--configuration", "96,90").code == 2
    assert "0.007" in raydp("predict", tmp_path / "p.csv", "--configuration", "96,90,0.007").out


def test_a_complete_grid_leaves_nothing_to_predict(raydp, tmp_path):
    """That is an outcome and no mistake: a sentence for people, an empty list for programs."""
    sweep(np.random.default_rng(4)).to_csv(tmp_path / "grid.csv", index=False)
    answer = raydp("predict", tmp_path / "grid.csv", "--json")
    assert (answer.code, answer.json()) == (0, [])
    shown = raydp("predict", tmp_path / "grid.csv")
    assert shown.code == 0
    assert "Every combination of the table's values has run" in " ".join(shown.err.split())
    assert raydp("predict", tmp_path / "grid.csv", "--configuration", "96,90,0.007").code == 0


def test_configurations_beyond_the_measured_values_are_named():
    rows = [
        (b, t, rate, 0, 3 - 0.1 * b, 0.1 * b) for b in (2, 4) for t in (1, 2) for rate in (0.1, 0.2)
    ]
    table = pd.DataFrame(
        rows, columns=["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
    )
    inside = Configuration(batch_size=3, num_steps=2, learning_rate=0.1)
    outside = Configuration(batch_size=8, num_steps=2, learning_rate=0.05)
    found = {row["batch_size"]: row["beyond"] for row in predict(table, [inside, outside])}
    assert found == {3: [], 8: ["batch_size", "learning_rate"]}
    with pytest.raises(ValueError, match="max_loss must be finite, got nan"):
        predict(table, [inside], max_loss=float("nan"))


def test_predictions_warn_of_extrapolation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {
        "batch_size": 8,
        "score_interval": [0.25, 0.5],
        "score_run_interval": [0.125, 0.75],
        "beyond": [],
    }
    show_predictions([row])
    out = capsys.readouterr().out
    assert [line.split("  ") for line in out.splitlines()[1:]][-1][-1].strip() == "none"
    assert "0.25 to 0.5" in out
    assert "0.125 to 0.75" in out
    assert "extrapolations" not in out
    show_predictions([row | {"beyond": ["batch_size"]}])
    assert "extrapolations" in capsys.readouterr().out

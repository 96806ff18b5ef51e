"""Intervals of scores, their correlations, and subsets of secrets: against what is known of the
inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from raydp.analysis import (
    heuristic_accuracy,
    load_points,
    save_points,
    score_correlations,
    score_intervals,
    secret_subsets,
    with_score,
    with_worst_case,
)
from raydp.analysis.statistics.correlations import _correlation
from tests.conftest import Answer
from tests.marks import slow_after

CONFIGURATIONS = [(64, 10, 0.1), (64, 20, 0.1), (128, 10, 0.2), (128, 20, 0.2)]


def sweep_of(
    values: np.ndarray, *, name: str = "vmr", counts: list[int] | None = None
) -> tuple[Any, Any]:
    """Tables of a sweep with [configuration, seed, secret] values of one score."""
    rows, secrets = [], []
    for c, of_configuration in enumerate(values):
        b, t, lr = CONFIGURATIONS[c]
        for seed, of_secrets in enumerate(of_configuration):
            run_id = f"run{c}{seed}"
            rows.append(
                {"batch_size": b, "num_steps": t, "learning_rate": lr, "seed": seed, "utility_loss": 1.0 + c + seed / 9,
                 "score": 0.0, "run_id": run_id, "status": "finished", f"score.{name}": of_secrets.mean()}
            )  # fmt: skip
            for k, value in enumerate(of_secrets):
                secrets.append(
                    {"run_id": run_id, "score": name, "secret_id": f"secret-{k:03d}", "value": value, "num_samples": 1,
                     "count": None if counts is None else counts[k]}
                )  # fmt: skip
    return pd.DataFrame(rows), pd.DataFrame(secrets)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda secrets: secrets.assign(value="x"), "numbers in the column value"),
        (
            lambda secrets: pd.concat([secrets, secrets.head(1)]),
            "one value of a score for each run and secret",
        ),
    ],
)
def test_spoilt_values_by_secret_are_refused(spoil: Any, message: str) -> None:
    points, secrets = sweep_of(np.random.default_rng(0).random((4, 2, 3)))
    for ask in (score_intervals, lambda *tables: secret_subsets(*tables, score="vmr")):
        with pytest.raises(ValueError, match=message):
            ask(points, spoil(secrets))


def test_the_figures_of_a_configuration_are_those_of_its_values() -> None:
    values = np.random.default_rng(0).random((4, 3, 7))
    found = score_intervals(*sweep_of(values), num_resamples=200)["scores"]["vmr"]
    for row, of_configuration in zip(
        found["configurations"], values[[0, 2, 1, 3]], strict=True
    ):  # sorted by (T, b, η)
        assert row["mean"] == pytest.approx(of_configuration.mean())
        assert row["max"] == pytest.approx(of_configuration.max(axis=1).mean())
        assert row["quantiles"]["0.9"] == pytest.approx(
            np.quantile(of_configuration, 0.9, axis=1).mean()
        )
        assert row["interval"][0] < row["mean"] < row["interval"][1]
        assert row["levels"] == ["seeds", "secrets"]
        assert row["max_interval"][0] >= of_configuration.max(axis=1).min() - 1e-12
    means = values.mean(axis=(1, 2))
    assert found["score_std"] == pytest.approx(means.std(ddof=1))
    assert found["worst_case_std"] == pytest.approx(values.max(axis=2).mean(axis=1).std(ddof=1))


def test_the_intervals_are_those_of_a_plain_bootstrap_of_seeds_and_secrets() -> None:
    values = np.random.default_rng(1).random((1, 5, 30))
    (row,) = score_intervals(*sweep_of(values), num_resamples=20_000)["scores"]["vmr"][
        "configurations"
    ]
    rng = np.random.default_rng(2)
    means = [
        values[0][np.ix_(rng.integers(5, size=5), rng.integers(30, size=30))].mean()
        for _ in range(20_000)
    ]  # the same two levels, drawn by index
    # The 2.5 % quantile of 20,000 draws has an error of sqrt(.025 * .975 / 20,000) / .058 = 1.9 %
    # of the std; 5 of it.
    assert row["interval"] == pytest.approx(
        np.quantile(means, [0.025, 0.975]), abs=0.1 * np.std(means)
    )


@pytest.mark.parametrize("coverage_of", slow_after(1, ["secrets", "seeds"]))
def test_the_intervals_cover_the_truth_as_often_as_they_say(coverage_of: str) -> None:
    """Values = a secret's own level + a seed's own level: with many of one, the other's spread is
    what counts."""
    rng, covered = np.random.default_rng(3), 0
    for _ in range(100):
        secret, seed = (1.0, 0.0) if coverage_of == "secrets" else (0.0, 1.0)
        values = secret * rng.normal(size=(1, 1, 20)) + seed * rng.normal(size=(1, 20, 1))
        (row,) = score_intervals(*sweep_of(values), num_resamples=200)["scores"]["vmr"][
            "configurations"
        ]
        low, high = row["interval"]
        covered += low <= 0 <= high
    # A percentile bootstrap of a mean of 20 normal values covers 93 %; over 100 trials the std is
    # 2.6: 4 of it are 10.
    assert 83 <= covered <= 99


def test_with_one_seed_the_interval_is_over_secrets_alone_and_the_worst_case_has_none() -> None:
    (row, *_) = score_intervals(*sweep_of(np.random.default_rng(0).random((2, 1, 5))))["scores"][
        "vmr"
    ]["configurations"]
    assert row["levels"] == ["secrets"]
    assert row["max_interval"] is None


def test_a_score_without_values_by_secret_has_means_over_seeds() -> None:
    points, secrets = sweep_of(np.random.default_rng(0).random((2, 3, 4)))
    points["score.distance"] = np.arange(6.0)
    (row, *_) = score_intervals(points, secrets)["scores"]["distance"]["configurations"]
    assert row["mean"] == pytest.approx(1.0)
    assert row["levels"] == ["seeds"]
    assert (row["num_secrets"], row["max"]) == (None, None)


def test_the_worst_case_takes_the_place_of_the_score() -> None:
    values = np.random.default_rng(0).random((2, 2, 4))
    points, secrets = sweep_of(values)
    assert (
        with_worst_case(points, secrets, "vmr")["score"].tolist()
        == values.max(axis=2).ravel().tolist()
    )
    assert with_score(points, "vmr")["score"].to_numpy() == pytest.approx(
        values.mean(axis=2).ravel()
    )
    with pytest.raises(ValueError, match="Did you mean 'vmr'"):
        with_score(points, "vrm")
    points.loc[1, "score.vmr"] = np.nan
    with pytest.raises(
        ValueError, match=r"must be measured for every finished row, got 1 of 4 without"
    ):
        with_score(points, "vmr")
    with pytest.raises(ValueError, match=r"got 1 of 4 without"):
        with_worst_case(points, secrets[secrets["run_id"] != "run00"], "vmr")


def test_correlations_are_scipys_and_a_resample_is_the_correlation_of_the_repeated_values() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 5, 40).astype(float), rng.normal(size=40)  # with ties, and without
    weights = rng.multinomial(40, np.full(40, 1 / 40), 20).astype(float)
    for ranked, reference in ((True, stats.spearmanr), (False, stats.pearsonr)):
        found = _correlation(one, other, weights, ranked)
        expected = [
            reference(*(np.repeat(v, w.astype(int)) for v in (one, other))).statistic
            for w in weights
        ]
        assert found == pytest.approx(expected, abs=1e-12)  # rounding of sums of 40


def test_correlations_name_every_pair_with_intervals() -> None:
    points, _ = sweep_of(np.random.default_rng(0).random((4, 5, 6)))
    points["score.same"] = points["score.vmr"] * 2 + 1
    points["score.opposite"] = -(points["score.vmr"] ** 3)
    points["score.flat"] = 1.0
    found = {(p["a"], p["b"]): p for p in score_correlations(points, num_resamples=300)["pairs"]}
    assert found["vmr", "same"]["spearman"] == pytest.approx(1)
    assert found["vmr", "same"]["pearson_interval"] == pytest.approx([1, 1])
    assert found["vmr", "opposite"]["spearman"] == pytest.approx(-1)
    assert found["vmr", "flat"]["spearman"] is None
    assert "the same in every model" in found["vmr", "flat"]["reason"]
    low, high = found["vmr", "utility_loss"]["spearman_interval"]
    assert low < found["vmr", "utility_loss"]["spearman"] < high


def test_seeds_of_a_configuration_are_drawn_together() -> None:
    """Copies of a model are no news: the interval of 4 configurations stays as wide with 50 equal
    seeds each."""
    few, many = (
        np.tile(np.array([0.1, 0.4, 0.2, 0.9])[:, None, None], (1, seeds, 1)) for seeds in (1, 50)
    )
    widths = []
    for values in (few, many):
        points, _ = sweep_of(values)
        points["utility_loss"] = (
            points["num_steps"].map({10: 1.0, 20: 2.0}) + points["batch_size"] / 100
        )
        pair = score_correlations(points, num_resamples=2000)["pairs"][0]
        widths.append(np.subtract(*pair["pearson_interval"][::-1]))
    assert widths[1] == pytest.approx(
        widths[0], abs=0.05
    )  # 2,000 draws over 35 distinct resamples of 4


def test_subsets_have_the_spread_of_their_own_secrets() -> None:
    values = np.random.default_rng(0).random((4, 2, 6))
    points, secrets = sweep_of(values, counts=[1, 1, 5, 5, 20, 20])
    given = ["secret-000", "secret-005"]
    found = {
        s["subset"]: s for s in secret_subsets(points, secrets, score="vmr", given=given)["subsets"]
    }
    assert list(found) == [
        "all",
        "given",
        "half 0",
        "half 1",
        "half 2",
        "count 1",
        "count 5",
        "count 20",
    ]
    for name, chosen in (("all", range(6)), ("given", [0, 5]), ("count 5", [2, 3])):
        means = values[:, :, list(chosen)].mean(axis=2)
        assert found[name]["score_std"] == pytest.approx(means.mean(axis=1).std(ddof=1))
        assert found[name]["seed_std"] == pytest.approx(means.std(axis=1, ddof=1).mean())
        assert found[name]["secrets"] == len(list(chosen))
    assert found["count 20"]["counts"] == [20, 20]
    assert found["half 0"]["secrets"] == 3
    with pytest.raises(ValueError, match="secret-001"):
        secret_subsets(points, secrets, score="vmr", given=["secret-01"])


def test_many_counts_are_terciles_and_no_counts_are_no_subsets() -> None:
    values = np.random.default_rng(0).random((3, 1, 9))
    found = secret_subsets(*sweep_of(values, counts=list(range(1, 10))), score="vmr", num_random=0)[
        "subsets"
    ]
    assert [(s["subset"], s["counts"]) for s in found] == [
        ("all", [1, 9]), ("count low", [1, 3]), ("count middle", [4, 6]), ("count high", [7, 9]),
    ]  # fmt: skip
    assert [
        s["subset"] for s in secret_subsets(*sweep_of(values), score="vmr", num_random=0)["subsets"]
    ] == ["all"]


def test_subsets_are_written_as_points_tables_that_select_and_heuristics_read(
    raydp: Callable[..., Answer], tmp_path: Path
) -> None:
    values = np.random.default_rng(0).random((4, 2, 6))
    points, secrets = sweep_of(values, counts=[1, 1, 5, 5, 20, 20])
    save_points(points, tmp_path / "points.csv")
    controls = secrets.assign(score="vmr.controls")
    pd.concat([secrets, controls]).to_parquet(tmp_path / "secrets.parquet")
    out = tmp_path / "subsets"
    asked = ("analyze", "subsets", tmp_path / "points.csv", "--score", "vmr", "-o", out)
    assert raydp(*asked).code == 0
    written = out / "count-5" / "points.csv"
    assert load_points(written)["score"].to_numpy() == pytest.approx(
        values[:, :, [2, 3]].mean(axis=2).ravel()
    )
    kept = pd.read_parquet(written.parent / "secrets.parquet")
    own = kept[kept["score"] == "vmr"]
    assert set(own["secret_id"]) == {"secret-002", "secret-003"}
    assert len(kept) - len(own) == len(controls), "every control is of every subset"
    assert {path.stat().st_mode & 0o077 for path in out.rglob("*.*")} == {0}, "counts are private"
    answer = raydp("analyze", "heuristics", written, "--json")
    assert answer.json() == heuristic_accuracy(load_points(written))
    assert raydp("select", written, "--score", "vmr", "--json").code == 0

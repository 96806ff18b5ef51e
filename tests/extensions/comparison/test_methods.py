"""Methods compared in pairs, against textbook formulas and planted differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats
from sklearn import metrics

from raydp.analysis import compare_methods, save_points
from raydp.extensions.comparison.agreement import agreement
from raydp.extensions.comparison.comparable import check_comparable
from raydp.search_spaces.settings import Settings
from raydp.sweep.api import source_of
from tests.builders.specs import small_spec
from tests.conftest import Answer


def sweep(
    rng: np.random.Generator, shift: float = 0.0, noise: float = 0.01, count: int = 12
) -> pd.DataFrame:
    """Two seeds of configurations whose score depends on T; utility falls with it."""
    rows = []
    for k in range(count):
        for seed in (0, 1):
            level = 0.1 + 0.05 * k
            rows.append(
                {
                    "batch_size": 64, "num_steps": 10 * (k + 1), "learning_rate": 0.1, "seed": seed,
                    "utility_loss": 3 - level + noise * rng.normal(), "score": level + shift + noise * rng.normal(),
                    "score.vmr": level / 2 + noise * rng.normal(),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def by_figure(answer: dict[str, list[dict[str, object]]]) -> dict[str, dict[str, object]]:
    return {row["figure"]: row for row in answer["comparisons"]}


def test_statistics_are_those_of_the_textbook() -> None:
    rng = np.random.default_rng(0)
    a, b = sweep(rng, shift=0.02), sweep(rng)
    rows = by_figure(compare_methods({"a": a, "b": b}))
    assert list(rows) == ["utility_loss", "perplexity", "score", "score.vmr"]
    for figure, row in rows.items():
        sides = [
            t.groupby("num_steps")[figure if figure in t else "utility_loss"].mean() for t in (a, b)
        ]
        one, other = (np.exp(s) if figure == "perplexity" else s for s in sides)
        test = stats.ttest_rel(one, other)
        assert (row["t"], row["p"]) == (
            pytest.approx(test.statistic, rel=1e-9),
            pytest.approx(test.pvalue, rel=1e-9),
        )
        interval = test.confidence_interval(0.95)
        assert row["interval"] == [
            pytest.approx(interval.low, rel=1e-9),
            pytest.approx(interval.high, rel=1e-9),
        ]
        ranked = stats.wilcoxon(one, other)
        assert (row["wilcoxon"], row["wilcoxon_p"]) == (
            ranked.statistic,
            pytest.approx(ranked.pvalue, rel=1e-12),
        )
        assert row["rmse"] == pytest.approx(math.sqrt(np.mean((one - other) ** 2)), rel=1e-9)
        pearson = stats.pearsonr(one, other)
        assert row["pearson"] == pytest.approx(pearson.statistic, rel=1e-9)
        fisher = pearson.confidence_interval(0.95)
        assert row["pearson_interval"] == [
            pytest.approx(fisher.low, rel=1e-9),
            pytest.approx(fisher.high, rel=1e-9),
        ]
        assert row["configurations"] == 12


def test_the_agreement_of_two_methods_equals_that_of_scikit_learn() -> None:
    """Each figure against scikit-learn's or scipy's, with a for the truth."""
    rng = np.random.default_rng(1)
    one, other = rng.uniform(0.5, 2, 28), rng.uniform(0.5, 2, 28)
    found, reasons = agreement(one, other)
    expected = {
        "mae": metrics.mean_absolute_error(one, other),
        "mse": metrics.mean_squared_error(one, other),
        "median_error": metrics.median_absolute_error(one, other),
        "r2": metrics.r2_score(one, other),
        "mape": metrics.mean_absolute_percentage_error(one, other),
        "variation_a": stats.variation(one, ddof=1),
        "variation_b": stats.variation(other, ddof=1),
    }
    assert found == {name: pytest.approx(value, rel=1e-12) for name, value in expected.items()}
    assert reasons == []


@pytest.mark.parametrize(
    ("mean", "std", "mse", "r2", "variation"),
    [
        (32.62, 15.91, 156.363, 0.359, 0.488),
        (32.62, 15.91, 725.739, -1.974, 0.488),
        (41.46, 20.20, 1341.057, -2.409, 0.487),
    ],
)
def test_agreement_follows_the_conventions_of_the_printed_tables(
    mean: float, std: float, mse: float, r2: float, variation: float
) -> None:
    """Zagardo 2024, perplexity of members after one epoch: mean and standard deviation of Table 2
    over 28 ε, MSE, R² and coefficient of variation of Table 3.

    The tolerances are half a unit of the printed digits of Table 2, carried to R² and the ratio.
    """
    rng = np.random.default_rng(0)
    one, error = rng.normal(size=28), rng.normal(size=28)
    one = mean + std * (one - one.mean()) / one.std(ddof=1)
    other = one + error * math.sqrt(mse / np.mean(error**2))
    found, _ = agreement(one, other)
    assert found["mse"] == pytest.approx(mse)
    assert found["r2"] == pytest.approx(r2, abs=2 * (1 - r2) * 0.005 / std + 0.0005)
    assert found["variation_a"] == pytest.approx(variation, abs=0.0006)


def test_agreement_without_a_meaning_has_a_reason() -> None:
    found, reasons = agreement(np.array([0.0, 0.0]), np.array([1.0, -1.0]))
    assert (found["mae"], found["mse"], found["median_error"]) == (1, 1, 1)
    assert [found[key] for key in ("r2", "mape", "variation_a", "variation_b")] == [None] * 4  # type: ignore[literal-required]
    assert [reason.split()[0] for reason in reasons] == ["R²", "a", "a"]


@pytest.mark.slow
def test_a_planted_difference_is_found_and_none_is_not_in_95_of_100() -> None:
    """Power and level of the adjusted test over 4 figures: a shift of 3 std of a mean, and no
    shift."""
    found = {0.0: 0, 0.03: 0}
    for shift in found:
        for seed in range(100):
            rng = np.random.default_rng(seed)
            rows = compare_methods({"a": sweep(rng, shift=shift), "b": sweep(rng)})["comparisons"]
            found[shift] += any(row["p_holm"] < 0.05 for row in rows)
    assert found[0.0] <= 11, "5 expected; 11 is the 99.6 % quantile of 100 draws at 5 %"
    assert found[0.03] >= 95


def test_every_two_methods_are_compared_and_corrected_together() -> None:
    rng = np.random.default_rng(0)
    rows = compare_methods({name: sweep(rng) for name in "abc"})["comparisons"]
    assert [(r["a"], r["b"]) for r in rows[::4]] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert all(r["p_holm"] >= r["p"] for r in rows)
    assert min(r["p_holm"] for r in rows) == pytest.approx(min(1, 12 * min(r["p"] for r in rows)))


def test_only_configurations_that_both_have_count() -> None:
    rng = np.random.default_rng(0)
    a, b = sweep(rng), sweep(rng)
    rows = compare_methods({"a": a[a["num_steps"] <= 60], "b": b[b["num_steps"] >= 40]})[
        "comparisons"
    ]
    assert {row["configurations"] for row in rows} == {3}
    with pytest.raises(ValueError, match="b must share a configuration with a, got none"):
        compare_methods({"a": a[a["num_steps"] <= 60], "b": b[b["num_steps"] > 60]})
    with pytest.raises(ValueError, match="methods must be at least two, got 1"):
        compare_methods({"a": a})


def test_undefined_figures_have_a_reason() -> None:
    table = sweep(np.random.default_rng(0))
    same = by_figure(compare_methods({"a": table, "b": table}))["score"]
    assert (same["mean_difference"], same["rmse"], same["p"], same["p_holm"]) == (0, 0, None, None)
    assert "the difference is the same everywhere" in same["reason"]
    one = table[table["num_steps"] == 10]
    alone = by_figure(compare_methods({"a": one, "b": one.assign(score=0.5)}))["score"]
    assert "a test needs two configurations" in alone["reason"]
    lacking = by_figure(compare_methods({"a": table, "b": table.assign(**{"score.vmr": None})}))[
        "score.vmr"
    ]
    assert (lacking["configurations"], lacking["reason"]) == (0, "no configuration has both")


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        ([0.1, 0.2, 0.3], [0.0, 0.1, 0.2], "the difference is the same everywhere"),
        (
            [0.1, 0.2, 0.3, 0.4, 0.5],
            [0.2, 0.3, 0.4, 0.5, 0.6],
            "the difference is the same everywhere",
        ),
        (
            [0.1 + 0.2, 0.3, 0.3, 0.3],
            [1.0, 2.0, 3.0, 4.0],
            "a correlation needs three configurations that differ",
        ),
    ],
)
def test_rounding_is_no_evidence(one: list[float], other: list[float], reason: str) -> None:
    tables = [
        pd.DataFrame({"batch_size": 8, "num_steps": range(1, len(side) + 1), "learning_rate": 0.1, "seed": 0,
                      "utility_loss": 1.0, "score": 0.5, "score.vmr": side})
        for side in (one, other)
    ]  # fmt: skip
    row = by_figure(compare_methods({"a": tables[0], "b": tables[1]}))["score.vmr"]
    assert reason in str(row["reason"])


def test_tied_differences_share_a_rank_whatever_the_counts_are_divided_by() -> None:
    """Error rates are k / n; equal differences of them differ in the last bits."""
    counts = [[116, 69, 20, 87, 116, 57, 104, 24, 26], [111, 70, 19, 88, 113, 57, 103, 19, 22]]
    found = set()
    for total in (1, 100, 257, 359, 360, 1000):
        tables = [
            pd.DataFrame({"batch_size": 8, "num_steps": range(1, 10), "learning_rate": 0.1, "seed": 0,
                          "utility_loss": np.array(side) / total, "score": 0.5})
            for side in counts
        ]  # fmt: skip
        row = by_figure(compare_methods({"a": tables[0], "b": tables[1]}, with_perplexity=False))[
            "utility_loss"
        ]
        found.add((row["wilcoxon"], round(row["wilcoxon_p"], 12)))
    assert len(found) == 1
    expected = stats.wilcoxon(np.subtract(*counts))
    assert found == {(expected.statistic, round(expected.pvalue, 12))}


def test_no_hypothesis_is_tested_twice() -> None:
    rng = np.random.default_rng(0)
    tables = {name: sweep(rng).assign(**{"score.air": lambda t: t["score"]}) for name in "ab"}
    figures = [
        row["figure"] for row in compare_methods(tables, with_perplexity=False)["comparisons"]
    ]
    assert figures == ["utility_loss", "score.vmr", "score.air"]


def test_a_correlation_has_no_unit() -> None:
    losses = [[200.0, 2.0, 3.0, 2.5], [2.0, 2.1, 2.9, 2.4]]
    tables = [
        pd.DataFrame({"batch_size": 8, "num_steps": [1, 2, 3, 4], "learning_rate": 0.1, "seed": 0,
                      "utility_loss": side, "score": 0.5})
        for side in losses
    ]  # fmt: skip
    row = by_figure(compare_methods({"a": tables[0], "b": tables[1]}))["perplexity"]
    expected = stats.pearsonr(np.exp(losses[0]) / np.exp(200), np.exp(losses[1])).statistic
    assert row["pearson"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("columns", "code", "message"),
    [
        (
            {"task_hash": "other"},
            2,
            "data or secrets (task_hash), got two: a.csv has same, b.csv has other.",
        ),
        ({"epsilon": float("inf")}, 0, "warning: Not the same epsilon"),
        ({"delta": 1e-6}, 0, "a.csv has 1e-05, b.csv has 1e-06"),
        (
            {"task_hash": None},
            0,
            "Whether the data or secrets (task_hash) are the same is not known: b.csv",
        ),
    ],
)
def test_the_command_names_differences_between_methods(
    raydp: Callable[..., Answer], tmp_path: Path, columns: dict[str, Any], code: int, message: str
) -> None:
    """Other data make it no comparison of methods: an error.

    A run without privacy is a baseline: a warning.
    """
    shared = {"task_hash": "same", "epsilon": 8.0, "delta": 1e-5}
    for name, own in (("a", shared), ("b", shared | columns)):
        save_points(sweep(np.random.default_rng(0)).assign(**own), tmp_path / f"{name}.csv")
    answer = raydp("analyze", "methods", "a.csv", "b.csv")
    assert answer.code == code
    assert message in " ".join((answer.out + answer.err).split())
    if code:
        allowed = raydp("analyze", "methods", "a.csv", "b.csv", "--any-data", "--json").json()
        assert "a.csv has same, b.csv has other" in allowed["warnings"][0]


def test_sweeps_from_other_base_models_are_no_comparison_of_methods(tmp_path: Path) -> None:
    tables = {name: sweep(np.random.default_rng(0)) for name in ("a", "b")}
    for name, model in (("a", "tiny"), ("b", "another")):
        content = small_spec(tmp_path, name=name)
        (tmp_path / name).mkdir()
        (tmp_path / name / "spec.yaml").write_text(
            yaml.safe_dump(content | {"model": content["model"] | {"name": model}})
        )
    folders = {name: source_of(name, str(tmp_path)).folder for name in tables}
    with pytest.raises(
        ValueError,
        match=r"one base model, got two: a has tiny in float32, b has another in float32\.",
    ):
        check_comparable(tables, folders)
    assert any(
        "Not the same base model" in one for one in check_comparable(tables, folders, any_data=True)
    )


def test_the_command_compares_tables(raydp: Callable[..., Answer], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, shift in (("a", 0.1), ("b", 0.0)):
        save_points(sweep(rng, shift=shift), tmp_path / f"{name}.csv")
    rows = raydp("analyze", "methods", "a.csv", "b.csv", "--json").json()["comparisons"]
    assert rows[2]["mean_difference"] == pytest.approx(0.1, abs=0.02)
    shown = raydp("analyze", "methods", "a.csv", "b.csv")
    assert "a: a.csv, b: b.csv" in shown.out
    assert "score.vmr" in shown.out


def test_the_methods_of_a_study_are_paired_over_its_other_axes(
    raydp: Callable[..., Answer], tmp_path: Path
) -> None:
    """One table has two methods at three ε: pairs have one configuration and one ε."""
    parts = []
    for name, shift in (("dp_sgd", 0.1), ("dp_weights", 0.0)):
        for epsilon in (1, 8, 16):
            settings = Settings({"method": name, "privacy.target_epsilon": epsilon})
            part = sweep(np.random.default_rng(epsilon), shift=shift)
            parts.append(part.assign(method=name, settings=settings.text))
    save_points(pd.concat(parts, ignore_index=True), tmp_path / "points.csv")
    rows = raydp("analyze", "methods", "points.csv", "--by", "method", "--json").json()
    score = by_figure(rows)["score"]
    assert (score["a"], score["b"], score["configurations"]) == ("dp_sgd", "dp_weights", 36)
    assert score["mean_difference"] == pytest.approx(0.1)
    assert score["mae"] == pytest.approx(0.1)

"""Spread across groups."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from raydp.analysis import load_points, split_by, variance_trends
from raydp.extensions.comparison.trends import std_ratio

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]


def group(rng, spread, count=16, first=1):
    rows = [
        (64, first + k, 0.1, 0, 2.0 + 0.1 * k, 1 + spread * rng.standard_normal())
        for k in range(count)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def test_a_larger_spread_is_found_and_an_equal_one_is_not():
    rng = np.random.default_rng(0)
    found = variance_trends({"1": group(rng, 0.1), "2": group(rng, 0.1), "8": group(rng, 0.5)})
    by_pair = {(c["a"], c["b"]): c for c in found["comparisons"]}
    assert by_pair["1", "8"]["ratio"] == pytest.approx(5, rel=0.5)
    assert by_pair["1", "8"]["p_holm"] < 0.01
    assert by_pair["1", "2"]["p_holm"] > 0.05
    assert all(c["paired"] for c in found["comparisons"]), "the same configurations"
    assert [g["group"] for g in found["groups"]] == ["1", "2", "8"]
    other = variance_trends({"a": group(rng, 0.1), "b": group(rng, 0.1, first=100)})
    assert not other["comparisons"][0]["paired"]


def test_a_table_with_several_epsilons_is_split(tmp_path):
    rng = np.random.default_rng(1)
    both = pd.concat([group(rng, 0.1).assign(epsilon=1.0), group(rng, 0.5).assign(epsilon=8.0)])
    both.to_csv(tmp_path / "both.csv", index=False)
    with pytest.raises(ValueError, match="more than once"):
        load_points(tmp_path / "both.csv")
    parts = split_by(load_points(tmp_path / "both.csv", by="epsilon"), "epsilon")
    assert list(parts) == ["1", "8"]
    assert variance_trends(parts)["comparisons"][0]["ratio"] > 2
    with pytest.raises(ValueError, match="Did you mean 'epsilon'"):
        load_points(tmp_path / "both.csv", by="epsilo")


def test_the_utility_filter_is_of_each_group():
    rng = np.random.default_rng(2)
    found = variance_trends({"a": group(rng, 0.1), "b": group(rng, 0.1, count=20)}, max_loss=2.75)
    assert [g["configurations"] for g in found["groups"]] == [8, 8]
    with pytest.raises(ValueError, match="group 'a': max_loss must be at least"):
        variance_trends({"a": group(rng, 0.1), "b": group(rng, 0.1)}, max_loss=1.0)
    with pytest.raises(ValueError, match="at least 2, got 1"):
        variance_trends({"a": group(rng, 0.1)})


def test_two_spreads_are_compared_and_pairs_know_more():
    rng = np.random.default_rng(4)
    one = rng.normal(size=20)
    other = 1.6 * one + 0.1 * rng.normal(size=20)
    paired, apart = (std_ratio(one, other, paired=flag) for flag in (True, False))
    assert paired["ratio"] == apart["ratio"] == pytest.approx(other.std(ddof=1) / one.std(ddof=1))
    assert paired["interval"][0] > 1.3
    assert apart["interval"][1] - apart["interval"][0] > 2 * (
        paired["interval"][1] - paired["interval"][0]
    )
    assert paired["p"] < 1e-6
    assert std_ratio(one, one, paired=True) == {"ratio": 1.0, "interval": [1.0, 1.0], "p": 1.0}
    assert std_ratio(one[:3], other, paired=False)["ratio"] is None


def test_equal_spreads_are_called_different_in_5_percent():
    """600 pairs of Gaussian samples: 5 %, up to 3.5 standard errors of 0.9 %."""
    rng = np.random.default_rng(5)
    p = [std_ratio(*rng.normal(size=(2, 20)), paired=False)["p"] for _ in range(600)]
    assert np.mean(np.array(p) < 0.05) < 0.05 + 3.5 * 0.009

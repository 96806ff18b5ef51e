"""Privacy risk against loops over thresholds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from point_tables import NAIVE_RULES, naive_means, naive_select, tables

from raydp.analysis import configuration_means, privacy_risk
from raydp.analysis.selection.risk import _resampled
from raydp.analysis.selection.rules import rule_names
from raydp.search_spaces import exact, load_space

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]


def naive_risk(means, rule):
    """(relative or None, absolute), one threshold per point, the threshold included."""
    absolute, relative = [], []
    for threshold, _ in means.values():
        pool = {p: figures for p, figures in means.items() if figures[0] <= threshold}
        oracle = min(score for _, score in pool.values())
        excess = means[naive_select(rule, pool)][1] - oracle
        absolute.append(excess)
        relative.append(excess / oracle if oracle > 0 else None)
    defined = None not in relative
    return (np.mean(relative) if defined else None), np.mean(absolute)


def assert_equal(found, expected):
    relative, absolute = expected
    # Sums of at most 14 or 75 terms of order 1, taken in another order: far below 1e-12.
    assert found["absolute"] == pytest.approx(absolute, rel=1e-12, abs=1e-12)
    if relative is None:
        assert found["relative"] is None
        assert "0 or below" in found["reason"]
    else:
        assert found["relative"] == pytest.approx(relative, rel=1e-12, abs=1e-12)
        assert "reason" not in found


@pytest.mark.slow
@settings(max_examples=60)
@given(table=tables())
def test_mean_layout_is_the_loop_over_thresholds(table):
    risk = privacy_risk(table)
    means = naive_means(table)
    assert (risk["thresholds"], risk["layout"]) == (len(means), "mean")
    assert set(risk["rules"]) == set(rule_names())
    for rule in NAIVE_RULES:
        assert_equal(risk["rules"][rule], naive_risk(means, rule))


@pytest.mark.slow
@settings(max_examples=30)
@given(table=tables(min_score=1))
def test_relative_risk_is_defined_on_positive_scores(table):
    assert all(figures["relative"] >= 0 for figures in privacy_risk(table)["rules"].values())
    assert privacy_risk(table)["rules"]["oracle"] == {"relative": 0.0, "absolute": 0.0}


@settings(max_examples=15)
@given(table=tables(min_seeds=2))
def test_resampled_layouts_are_the_mean_layout_of_every_draw(table):
    means = configuration_means(table)
    utility, score = _resampled(means, 5, 1)
    keys = list(
        zip(
            means["batch_size"], means["num_steps"], map(exact, means["learning_rate"]), strict=True
        )
    )
    risk = privacy_risk(table, layout="resample", num_layouts=5, seed=1)
    assert (risk["layouts"], risk["seed"]) == (5, 1)
    for rule in NAIVE_RULES:
        figures = risk["rules"][rule]
        draws = [
            dict(zip(keys, zip(u, s, strict=True), strict=True))
            for u, s in zip(utility, score, strict=True)
        ]
        each = [naive_risk(draw, rule) for draw in draws]
        relative = None if any(r is None for r, _ in each) else np.mean([r for r, _ in each])
        assert_equal(figures, (relative, np.mean([a for _, a in each])))


@pytest.mark.parametrize(
    ("scale", "accepted"), [(1.0, True), (1.05, False), (0.5, False), (1.5**0.5, False)]
)
def test_draws_have_the_spread_of_the_seeds(scale, accepted):
    """std over 20,000 draws errs by 1/sqrt(2 n) = 0.5 %: five of these tell the right scale from 5
    % off."""
    table = pd.DataFrame([(1, 1, 0.1, s, 2 + s, 0.2 * s) for s in range(3)], columns=COLUMNS)
    utility, score = _resampled(configuration_means(table), 20_000, 0)
    tolerance = 5 / np.sqrt(2 * 20_000)
    assert (abs(utility.std() / (1.0 * scale) - 1) < tolerance) == accepted
    assert (abs(score.std() / (0.2 * scale) - 1) < tolerance) == accepted
    assert abs(utility.mean() - 3) < 5 / np.sqrt(20_000)
    assert abs(np.corrcoef(utility[:, 0], score[:, 0])[0, 1]) < 5 / np.sqrt(20_000)


def test_bad_layouts_are_refused():
    table = pd.DataFrame([(1, 1, 0.1, 0, 2.0, 0.2)], columns=COLUMNS)
    with pytest.raises(ValueError, match="got 1 of 1 configurations with one"):
        privacy_risk(table, layout="resample")
    with pytest.raises(ValueError, match="layout must be"):
        privacy_risk(table, layout="median")
    twice = pd.concat([table, table.assign(seed=1)])
    with pytest.raises(ValueError, match="num_layouts must be >= 1"):
        privacy_risk(twice, layout="resample", num_layouts=0)


def test_chunks_of_layouts_change_nothing(monkeypatch):
    """A named space, in one part and in parts of seven layouts."""
    generator = np.random.default_rng(0)
    table = pd.DataFrame(
        [
            (c.batch_size, c.num_steps, c.learning_rate, seed, *generator.uniform(1, 2, 2))
            for c in load_space("tofu-4").configurations
            for seed in range(2)
        ],
        columns=COLUMNS,
    )
    whole = privacy_risk(table, layout="resample", num_layouts=50)
    monkeypatch.setattr("raydp.analysis.selection.thresholds._LAYOUT_CELLS", 7 * 75)
    assert privacy_risk(table, layout="resample", num_layouts=50) == whole

"""What a rule selects as the pool grows, in one pass, against the same rule on every pool by
itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydp.analysis import configuration_means
from raydp.analysis.entry_points import entries
from raydp.analysis.selection.rules import Layout, choose, rule_names
from raydp.analysis.selection.thresholds import GROWING_POOLS, select_at_thresholds
from raydp.extensions.growing_pools.knee import knees_of_growing_pools, nearest_to_both_ends
from tests.analysis.point_tables import tables

MANY = "raydp.extensions.growing_pools.procedure._MANY"


def assert_one_pass_selects_what_every_pool_does(layout, rule):
    stacked = replace(layout, utility_loss=layout.utility_loss[None], score=layout.score[None])
    pools = layout.utility_loss <= layout.utility_loss[:, None]
    assert select_at_thresholds(rule, stacked)[0].tolist() == choose(rule, layout, pools).tolist()


@pytest.mark.slow
@settings(max_examples=100)
@given(table=tables(), rule=st.sampled_from(sorted(rule_names())))
def test_one_pass_over_the_thresholds(table, rule):
    assert_one_pass_selects_what_every_pool_does(Layout.of(configuration_means(table)), rule)


@settings(max_examples=20)
@given(table=tables(), rule=st.sampled_from(sorted(rule_names())))
def test_a_rule_without_a_quick_way_evaluates_every_pool(table, rule):
    with pytest.MonkeyPatch.context() as patch:
        for name in list(entries(GROWING_POOLS)):
            patch.delitem(entries(GROWING_POOLS), name)
        assert_one_pass_selects_what_every_pool_does(Layout.of(configuration_means(table)), rule)


def random_table(rng):
    """Up to 40 configurations: full of equal C and U, of equal losses and scores, of fronts that
    are lines but for rounding, of values that differ in the last digit, or so small that a quotient
    loses its digits."""
    size = int(rng.integers(1, 40))
    powers = rng.integers(0, 6, (2, size))
    batch_size, num_steps = (2**powers) if rng.random() < 0.3 else powers + 1
    rate = rng.choice([0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2, 1.6], size)
    table = pd.DataFrame(
        {"batch_size": batch_size, "num_steps": num_steps, "learning_rate": rate}
    ).drop_duplicates()
    size, levels = len(table), int(rng.choice([2, 5, 1000]))
    loss, score = (rng.integers(0, levels, size) / rng.choice([8, 3, 7]) for _ in range(2))
    if rng.random() < 0.3:
        loss = 3 - np.log(
            (table["batch_size"] * table["num_steps"] * table["learning_rate"]).to_numpy()
        )
    kind = rng.integers(0, 5)
    if kind <= 1:
        score = 1 - 0.3 * loss
    if kind == 1:
        loss, score = (
            figure + rng.integers(-2, 3, size) * np.spacing(np.abs(figure))
            for figure in (loss, score)
        )
    elif kind == 2:
        score = 1 / (5 + loss)
    elif kind == 3:
        score = score * float(rng.choice([1e-320, 1e97, -1e97, 1e-10]))
        loss = loss * float(rng.choice([1e-310, 1e5, 1e97]))
    return table.assign(seed=0, utility_loss=loss, score=score)


@pytest.mark.daily
def test_one_pass_on_hundreds_of_tables(monkeypatch):
    """Both ways of following the procedure: all layouts together, and (many = 0) each by itself."""
    rng = np.random.default_rng(0)
    for _ in range(400):
        layout = Layout.of(configuration_means(random_table(rng)))
        for rule, many in (("pareto-knee", 2000), ("procedure", 2000), ("procedure", 0)):
            monkeypatch.setattr(MANY, many)
            assert_one_pass_selects_what_every_pool_does(layout, rule)


@pytest.mark.daily
def test_one_pass_of_the_informed_rule():
    rng = np.random.default_rng(0)
    for _ in range(50):
        layout = Layout.of(configuration_means(random_table(rng)))
        some = replace(layout, leaks=rng.random(layout.score.shape[-1]) < 0.2)
        for known in (layout, some):
            assert_one_pass_selects_what_every_pool_does(known, "informed")


def test_members_on_one_line_tie_whatever_their_rounding():
    """As doubles the sums of the two distances are 1 or 1 - 1e-16; exactly they are 1, and the
    lower score decides."""
    loss = np.arange(50) / 8 + 1
    score = (100 - np.arange(50)) / 8
    assert knees_of_growing_pools(loss, score).tolist() == list(range(50))
    pools = np.tri(50, dtype=np.bool_)
    assert nearest_to_both_ends(loss, score, pools).tolist() == pools.tolist()


def test_widths_that_no_double_holds():
    """The differences overflow; the middle is exactly a third of the way below the line."""
    loss = np.array([-1.5e308, 0.0, 1.5e308])
    score = np.array([1.5e308, -1.0e308, -1.5e308])
    assert nearest_to_both_ends(loss, score, np.ones(3, dtype=np.bool_)).tolist() == [
        False,
        True,
        False,
    ]
    assert knees_of_growing_pools(loss, score).tolist() == [0, 1, 1]


def test_a_large_table_is_followed_through_fronts_that_hold_everything():
    """20,000 configurations, all on the front, a circle: the knee of a prefix lies where the
    tangent is parallel to the line between its ends, in the middle of the arc."""
    angle = np.linspace(0, np.pi / 2, 20_001)
    knees = knees_of_growing_pools(1 - np.cos(angle), 1 - np.sin(angle))
    assert np.abs(knees - np.arange(20_001) / 2).max() <= 1

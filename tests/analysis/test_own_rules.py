"""Rules that are given as functions or as tuples of steps."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from point_tables import tables

from raydp.analysis import RULES, configuration_means, select, selections_by_threshold, write_report
from raydp.analysis.selection.own_rules import named_rule, own_rule
from raydp.analysis.selection.rules import Extreme, Layout, RuleStep, choose

POINTS = pd.DataFrame(
    [(b, 1, 0.1, s, b / 8, 1 / b + s / 50) for b in (1, 2, 4, 8) for s in (0, 1)],
    columns=["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"],
)


def safest(layout, pool):
    """Keep the lowest score.

    This function is written for one pool.
    """
    return pool & (layout.score == layout.score[pool].min())


STEPS = (
    RuleStep(name="even", text="drop nothing", keep=lambda layout, pool: pool),
    RuleStep(name="low", text="keep the lowest score", keep=Extreme("score", "lowest")),
)


OWN = [safest, STEPS, Extreme("score", "lowest")]


@pytest.mark.parametrize("rule", OWN)
@settings(max_examples=25)
@given(table=tables())
def test_functions_and_steps_select_as_the_same_rule_by_name_from_every_pool(rule, table):
    layout = Layout.of(configuration_means(table))
    pools = layout.utility_loss <= layout.utility_loss[:, None]
    # Draws have axes of their own before those of the pools.
    draws = replace(layout, score=np.stack([layout.score, -layout.score])[:, None])
    own = named_rule(rule)
    for each in (layout, draws):
        assert np.array_equal(choose(own, each, pools), choose("oracle", each, pools))


@pytest.mark.parametrize("rule", OWN)
def test_rule_object_selects_as_the_rule_of_that_name(rule):
    by_name, own = (select(POINTS, rule=one, max_loss=0.75) for one in ("oracle", rule))
    assert (own.configuration, own.changes) == (by_name.configuration, by_name.changes)
    along = selections_by_threshold(POINTS, further_rules=[named_rule(rule)])
    assert np.array_equal([*along.selected.values()][-1], along.selected["oracle"])


def test_records_have_the_name_and_the_first_line_of_a_function():
    selection = select(POINTS, rule=safest, max_loss=0.75)
    assert json.loads(json.dumps(selection.to_dict()))["rule"] == "safest"
    assert (selection.steps[-1].name, selection.steps[-1].rule) == (
        "safest",
        "keep the lowest score",
    )
    assert select(POINTS, rule=STEPS).rule == "even, low"


def test_steps_of_a_built_in_rule_keep_its_name():
    assert {name: named_rule(steps) for name, steps in RULES.items()} == {n: n for n in RULES}


def test_the_report_shows_the_rule_beside_the_others(tmp_path):
    selection = select(POINTS, rule=safest, max_loss=0.75)
    write_report(POINTS, selection, tmp_path / "page.html", title="own")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Steps of the rule safest" in text
    assert '"rule":"safest"' in text.replace(" ", "")
    assert re.search(r'<tr[^>]* data-rule="safest"', text)


def oracle(layout, pool):
    return pool


def of_points(points):
    return points


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (of_points, r"rule must be a name, a function of \(layout, pool\) or .*, got 'of_points'"),
        (3, "rule must be a name, .*, got 'int'"),
        ((), "rule must be a name, .*, got 'tuple'"),
        (Extreme, "rule must be a name, .*, got 'Extreme'"),
        (oracle, "rule must have a name that no registered rule has, got 'oracle'. Rename it"),
    ],
)
def test_select_refuses_objects_that_are_no_rules(rule, message):
    with pytest.raises(ValueError, match=message):
        select(POINTS, rule=rule)


def fails(layout, pool):
    return layout.leakage


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda layout, pool: pool & False, "got none of them"),
        (lambda layout, pool: ~pool | pool, "got a configuration that is not in the pool"),
        (lambda layout, pool: int(layout.score.argmin()), r"got int64 of shape \(\)"),
        (lambda layout, pool: layout.score, r"got float64 of shape \(4,\)"),
        (lambda layout, pool: pool[:2], r"got bool of shape \(2,\)"),
        (lambda layout, pool: None, r"got object of shape \(\)"),
        (fails, "must select from every pool, got AttributeError: 'Layout' object has no"),
    ],
)
def test_select_refuses_answers_outside_the_pool(function, got):
    with pytest.raises(ValueError, match=f"rule .*{got}.*Correct the function"):
        select(POINTS, rule=function, max_loss=0.6)


def test_rule_function_leaves_the_pool_unchanged():
    def changes(layout, pool):
        kept = pool.copy()
        pool[:] = False
        return kept

    pools = np.ones((2, 3), dtype=np.bool_)
    (step,) = own_rule(changes).steps
    layout = Layout.of(configuration_means(POINTS).iloc[:3])
    assert step.keep(layout, pools).all()
    assert pools.all()

"""Series of configurations that differ in one thing, against a search over all pairs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings

from raydp.analysis import hyperparameter_effects
from raydp.search_spaces import exact, grid
from tests.analysis.point_tables import naive_means, tables
from tests.marks import slow_after

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]


def shared(name, p):
    """What the configurations of a series have in common, exact."""
    b, t, rate = p
    fixed = {"batch_size": (t, rate), "num_steps": (b, rate), "learning_rate": (b, t)}
    return {**fixed, "compute": (b * t, rate), "updates": (b * t * rate,)}[name]


@pytest.mark.slow
@settings(max_examples=60)
@given(table=tables())
@pytest.mark.parametrize(
    "name", slow_after(2, ["batch_size", "num_steps", "learning_rate", "compute", "updates"])
)
def test_series_are_the_groups_of_configurations_that_share_the_rest(name, table):
    groups: dict = {}
    for p in naive_means(table):
        groups.setdefault(shared(name, p), set()).add(p)
    at = {"batch_size": 0, "num_steps": 1, "learning_rate": 2, "compute": 0, "updates": 2}[name]
    expected = {frozenset(group) for group in groups.values() if len({p[at] for p in group}) > 1}
    effect = hyperparameter_effects(table)[name]
    series = effect["series"]
    found = [
        [(p["batch_size"], p["num_steps"], exact(p["learning_rate"])) for p in one["points"]]
        for one in series
    ]
    assert {frozenset(one) for one in found} == expected
    assert all([p[at] for p in one] == sorted(p[at] for p in one) for one in found)
    means = naive_means(table)
    slopes = [
        np.polyfit([np.log2(float(p[at])) for p in g], [means[p][1] for p in g], 1)[0]
        for g in expected
    ]
    if slopes:
        assert effect["per_doubling"] == pytest.approx(np.mean(slopes), abs=1e-9)
    if len(slopes) > 1:
        assert effect["std_error"] == pytest.approx(
            np.std(slopes, ddof=1) / np.sqrt(len(slopes)), abs=1e-9
        )


def test_the_change_per_doubling_is_that_of_a_linear_score():
    rows = [
        (
            c.batch_size,
            c.num_steps,
            c.learning_rate,
            0,
            1.0,
            np.log2(c.batch_size) + 3 * np.log2(c.num_steps),
        )
        for c in grid([64, 128, 256], [60, 120, 240], ["5e-3", "1e-2"])
    ]
    found = hyperparameter_effects(pd.DataFrame(rows, columns=COLUMNS))
    assert found["batch_size"]["per_doubling"] == pytest.approx(1)
    assert found["num_steps"]["per_doubling"] == pytest.approx(3)
    assert found["learning_rate"]["per_doubling"] == pytest.approx(0)
    assert found["compute"]["per_doubling"] == pytest.approx(1 - 3), "b doubles, T halves"
    assert found["batch_size"]["series_count"] == 6
    assert found["compute"]["series"][0]["fixed"] == {"compute": 64 * 120, "learning_rate": 0.005}


def test_no_series_is_said():
    found = hyperparameter_effects(pd.DataFrame([(1, 1, 0.1, 0, 1.0, 0.5)], columns=COLUMNS))
    assert all(
        f["per_doubling"] is None and "no two configurations" in f["reason"] for f in found.values()
    )

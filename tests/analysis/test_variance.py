"""Spread over configurations and seeds."""

from __future__ import annotations

import statistics

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from point_tables import naive_means, tables
from scipy import stats

from analysis import score_variance

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]


@settings(max_examples=40, deadline=None)
@given(table=tables())
def test_figures_are_those_of_table_8(table):
    found = score_variance(table)
    means = naive_means(table)
    scores = [score for _, score in means.values()]
    by_seed = table.assign(learning_rate=table["learning_rate"].astype(float)).groupby(COLUMNS[:3])["score"]
    spreads = [statistics.stdev(values) for _, values in by_seed if len(values) > 1]
    assert found["configurations"] == len(means)
    assert found["seed_configurations"] == len(spreads)
    # Both sides err by a few units in the last place of figures of order 1.
    assert found["score_std"] == (pytest.approx(statistics.stdev(scores), abs=1e-12) if len(means) > 1 else None)
    assert found["seed_std"] == (pytest.approx(statistics.mean(spreads), abs=1e-12) if spreads else None)
    assert ("reason" in found) == (len(means) < 2 or not spreads)


@settings(max_examples=40, deadline=None)
@given(table=tables())
def test_correlations_are_scipys(table):
    loss, score = np.array(list(naive_means(table).values())).T
    found = score_variance(table)["utility_correlation"]
    if len(set(loss)) < 2 or len(set(score)) < 2:
        assert found["pearson"] is found["spearman"] is None
        assert "same in every configuration" in found["reason"]
    else:
        assert found["pearson"] == pytest.approx(stats.pearsonr(loss, score).statistic, abs=1e-9)
        assert found["spearman"] == pytest.approx(stats.spearmanr(loss, score).statistic, abs=1e-9)


def test_one_run_has_no_spread():
    found = score_variance(pd.DataFrame([(1, 1, 0.1, 0, 1.0, 0.5)], columns=COLUMNS))
    assert (found["score_std"], found["seed_std"]) == (None, None)
    assert (
        found["reason"]
        == "score_std needs at least 2 configurations; seed_std needs a configuration with at least 2 seeds"
    )

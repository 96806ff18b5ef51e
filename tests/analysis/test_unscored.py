"""Selection from points without scores: by hyperparameters and utility alone, and without any
probability."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from point_tables import naive_means, naive_select, tables

from raydp import analysis
from raydp.analysis import load_points, save_points, select, write_report
from raydp.analysis.entry_points import entries
from raydp.analysis.selection.default import WITHOUT_SCORES
from raydp.analysis.selection.rules import CONSTRAINED, rule_names
from raydp.analysis.selection.wording import NOT_MEASURED, in_words
from raydp.search_spaces import exact


def without_scores(table: pd.DataFrame, how: str) -> pd.DataFrame:
    return table.drop(columns="score") if how == "no column" else table.assign(score=np.nan)


@settings(max_examples=25)
@given(table=tables(), how=st.sampled_from(["no column", "null"]))
@pytest.mark.parametrize("rule", WITHOUT_SCORES)
def test_rules_without_scores_select_as_if_scores_were_there(
    rule: str, table: pd.DataFrame, how: str
) -> None:
    means, unscored = naive_means(table), select(without_scores(table, how), rule=rule)
    chosen, c = naive_select(rule, means), unscored.configuration
    assert (c.batch_size, c.num_steps, exact(c.learning_rate)) == chosen
    assert unscored.utility_loss == means[chosen][0]
    document = unscored.to_dict()
    assert document["score"] is document["score_name"] is None
    assert not {"decision", "uncertainty"} & set(document)
    words = " ".join([*in_words(unscored), *unscored.warnings])
    assert words.startswith(NOT_MEASURED)
    assert "%" not in words, "no probability is stated"


@pytest.fixture
def unscored() -> pd.DataFrame:
    rows = [(b, t, 0.1, 0, 3 - 0.001 * b * t) for b in (4, 8) for t in (10, 20)]
    return pd.DataFrame(
        rows, columns=["batch_size", "num_steps", "learning_rate", "seed", "utility_loss"]
    )


@pytest.mark.parametrize("rule", sorted({*rule_names(), *entries(CONSTRAINED)} - {*WITHOUT_SCORES}))
def test_rules_with_scores_are_refused(unscored: pd.DataFrame, rule: str) -> None:
    with pytest.raises(ValueError, match="rule must need no score if none was measured, got"):
        select(unscored, rule=rule)


def test_a_bound_on_the_score_is_refused(unscored: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match="max_score must be left out if no score was measured"):
        select(unscored, rule="procedure", max_score=0.1)


def test_analyses_of_scores_say_that_there_are_none(unscored: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match="score must be measured in the finished rows, got none"):
        analysis.score_variance(unscored.assign(score=np.nan))


def test_a_score_that_some_rows_lack_is_still_refused(unscored: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match="score must be a finite number in every finished row"):
        select(unscored.assign(score=[0.1, np.nan, 0.2, 0.3]), rule="procedure")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_report_of_a_file_says_that_nothing_was_measured(
    unscored: pd.DataFrame, tmp_path: Path, suffix: str
) -> None:
    save_points(unscored.assign(score=None), tmp_path / f"points.{suffix}")
    points = load_points(tmp_path / f"points.{suffix}", scored=False)
    selection = select(points, rule="procedure", max_loss=2.9)
    assert not write_report(
        points, selection, tmp_path / "report.html", title="unscored", notes=["A note."]
    )
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for text in (NOT_MEASURED, "not measured", "Steps of the rule procedure", "A note."):
        assert text in page

"""Figures are plotly objects that hold the figures of the analyses, and become files."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from report_pages import COLUMNS, Page, made_up_sweep

from raydp import analysis
from raydp.analysis import (
    configuration_means,
    heuristic_accuracy,
    privacy_risk,
    report_figures,
    score_variance,
    select,
)
from raydp.analysis import figures as shown_figures
from raydp.analysis.figures import (
    configurations_and_seeds,
    heuristic_accuracies,
    save_figures,
    score_against_utility,
    score_along_thresholds,
    selection_risks,
)
from raydp.analysis.report.tables import variance_table
from raydp.analysis.selection.constraints import Constraints
from raydp.analysis.selection.rules import rule_names


@pytest.fixture(scope="module")
def points():
    return made_up_sweep()[0]


@pytest.fixture(scope="module")
def means(points):
    return configuration_means(points)


def traces(figure: go.Figure) -> dict[str, go.Scatter]:
    return {trace.name: trace for trace in figure.data}


def test_scatter_separates_allowed_from_other_configurations(points):
    figure = score_against_utility(points, constraints=Constraints(max_loss=2.6))
    found = traces(figure)
    inside = [
        x
        for x, y in zip(found["Configuration"].x, found["Configuration"].y, strict=True)
        if y is not None
    ]
    outside = [
        x for x, y in zip(found["Excluded"].x, found["Excluded"].y, strict=True) if y is not None
    ]
    assert len(inside) + len(outside) == 60
    assert max(inside) <= 2.6 < min(outside)
    assert figure.layout.shapes[0].x0 == 2.6
    for rule in ("procedure", "oracle"):
        s = select(points, rule=rule, max_loss=2.6)
        (mark,) = [m for m in figure.data[2:] if m.x and rule in m.text[0].split(", ")]
        assert (mark.x[0], mark.y[0]) == (s.utility_loss, s.score)


def test_chart_joins_labels_of_one_configuration(points):
    labels = {"selected": 3, "best utility": 3, "runner-up": None}
    marks = score_against_utility(points, labels=labels).data[2:]
    assert [mark.text for mark in marks] == [
        ("selected, best utility",),
        ("best utility",),
        ("runner-up",),
    ]
    assert [len(mark.x) for mark in marks] == [1, 0, 0]


def test_chart_draws_one_mark_for_rules_that_select_one_point(points):
    for limit in (2.6, min(points.groupby(COLUMNS[:3])["utility_loss"].mean())):
        figure = score_against_utility(points, constraints=Constraints(max_loss=limit))
        marks = [mark for mark in figure.data[2:] if mark.x]
        assert len({(mark.x, mark.y) for mark in marks}) == len(marks)
        names = ", ".join(mark.text[0] for mark in marks).split(", ")
        assert sorted(names) == sorted(rule_names())
    assert len(marks) == 1, "one configuration passes"


def test_lines_along_the_thresholds_are_the_selections(points, means):
    found = traces(score_along_thresholds(points))
    losses = np.sort(means["utility_loss"].unique())
    front = np.minimum.accumulate(means.sort_values("utility_loss")["score"])
    assert list(found["oracle"].x) == losses.tolist()
    np.testing.assert_array_equal(found["oracle"].y, front)  # losses are all different here
    at = 40
    assert found["procedure"].y[at] == select(points, rule="procedure", max_loss=losses[at]).score


@pytest.mark.extensions
def test_effect_lines_are_the_series_of_the_analysis(points):
    effects = analysis.hyperparameter_effects(points)
    figure = shown_figures.effect_lines(points)
    drawn = sorted((tuple(t.x), tuple(t.y)) for t in figure.data)
    expected = []
    for name, moving in [
        ("batch_size", "batch_size"), ("num_steps", "num_steps"), ("learning_rate", "learning_rate"),
        ("compute", "batch_size"), ("updates", "learning_rate"),
    ]:  # fmt: skip
        for series in effects[name]["series"]:
            assert len(effects[name]["series"]) <= 40
            for column in ("score", "utility_loss"):
                rows = series["points"]
                expected.append((tuple(r[moving] for r in rows), tuple(r[column] for r in rows)))
    assert drawn == sorted(expected)


@pytest.mark.extensions
def test_effect_lines_without_a_series_say_so():
    one = pd.DataFrame([(4, 2, 0.1, 0, 2.0, 0.5)], columns=made_up_sweep()[0].columns[:6])
    assert {trace.text for trace in shown_figures.effect_lines(one).data} == {("none",)}


@pytest.mark.extensions
def test_strips_show_means_and_their_standard_deviation(points, means):
    double = points.assign(score=points["score"] * 2)
    figure = shown_figures.variance_by_group({"one": points, "two": double})
    assert [sorted(t.y) for t in figure.data] == [
        sorted(means["score"]),
        sorted(means["score"] * 2),
    ]
    std = means["score"].std(ddof=1)
    assert [a.text for a in figure.layout.annotations] == [f"std {std:.4g}", f"std {2 * std:.4g}"]
    assert all(abs(x - place) < 0.5 for place, t in enumerate(figure.data) for x in t.x)


def test_seeds_are_drawn_around_the_mean(points, means):
    configurations, seeds = configurations_and_seeds(points).data
    assert len(configurations.y) == 60
    assert np.mean(seeds.y) == pytest.approx(means["score"].mean())
    within = np.sqrt(np.sum((np.array(seeds.y) - np.mean(seeds.y)) ** 2) / (180 - 60))
    assert within == pytest.approx(np.sqrt((means["score_std"] ** 2).mean()))
    assert score_variance(points)["seed_std"] == pytest.approx(
        within, rel=0.2
    )  # a mean of roots, not a root of means


def test_the_figure_states_the_standard_deviations_of_the_table(points):
    """Seeds: the mean over configurations of the standard deviation over seeds, not one over all
    runs together."""
    figures = {
        trace.name: note.text for trace, note in zip(*_strips_and_notes(points), strict=True)
    }
    found = score_variance(points)
    assert figures["Configurations"] == f"std {found['score_std']:.4g}"
    assert figures["Seeds, around the mean"] == f"std {found['seed_std']:.4g}"
    table = Page(variance_table(points)).table("Empirical privacy variance")
    shown = dict(table)
    assert figures["Seeds, around the mean"].endswith(
        shown["Standard deviation over seeds (mean over configurations)"]
    )
    assert figures["Configurations"].endswith(
        shown["Standard deviation over configurations (of means)"]
    )


def _strips_and_notes(points):
    figure = configurations_and_seeds(points)
    return figure.data, figure.layout.annotations


@pytest.mark.slow
def test_no_axis_writes_small_numbers_with_si_prefixes(points):
    """Without a format plotly writes the probability 1e-6 as 1μ."""
    small = points.assign(score=points["score"] * 1e-6)
    for figures in (
        report_figures(small),
        analysis.comparison_figures({"one": small, "two": points}),
    ):
        for name, figure in figures.items():
            bars = [trace.marker.colorbar for trace in figure.data if trace.type == "scatter3d"]
            written = bars or [*figure.select_xaxes(), *figure.select_yaxes()]
            assert {one.exponentformat for one in written} == {"e"}, name


def test_bars_are_accuracies_and_risks(points):
    (bars,) = heuristic_accuracies({"all": points}).data
    assert dict(zip(bars.x, bars.y, strict=True)) == {
        name: figures["accuracy"] for name, figures in heuristic_accuracy(points).items()
    }
    (bars,) = selection_risks({"all": points}).data
    risk = privacy_risk(points)["rules"]
    drawn = dict(zip(bars.y, bars.x, strict=True))
    assert drawn == {
        rule: figures["relative"] for rule, figures in risk.items() if rule != "oracle"
    }


def test_risks_are_absolute_where_a_relative_one_is_undefined(points):
    figure = selection_risks({"a": points, "b": points.assign(score=points["score"] - 2)})
    absolute = privacy_risk(points)["rules"]["best-utility"]["absolute"]
    for bars in figure.data:
        assert dict(zip(bars.y, bars.x, strict=True))["best-utility"] == pytest.approx(absolute)


def test_a_table_without_pairs_or_seeds_has_figures(points):
    """One configuration: nothing to compare, nothing that fails."""
    one = points.head(1)
    assert all(isinstance(figure, go.Figure) for figure in report_figures(one).values())


@pytest.mark.extensions
@pytest.mark.browser
@pytest.mark.parametrize(
    ("file_format", "start"), [("svg", b"<svg"), ("png", b"\x89PNG"), ("pdf", b"%PDF")]
)
def test_figures_become_files(points, tmp_path, file_format, start):
    figures = analysis.comparison_figures({"a": points, "b": points})
    files = save_figures(figures, tmp_path / "new", file_format=file_format)
    assert [file.name for file in files] == [f"{name}.{file_format}" for name in figures]
    assert all(file.read_bytes().startswith(start) for file in files)


def test_files_need_a_known_format_and_kaleido(points, tmp_path, monkeypatch):
    figures = {"layout": score_against_utility(points)}
    with pytest.raises(ValueError, match=r"format must be one of svg, png, pdf, got 'gif'\."):
        save_figures(figures, tmp_path, file_format="gif")
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(ValueError, match=r"pip install '\.\[figures\]'"):
        save_figures(figures, tmp_path)


@pytest.mark.extensions
@pytest.mark.slow
def test_more_groups_than_colours_differ_by_symbols(points):
    groups = {f"group {place}": points for place in range(12)}
    for name in ("layout", "spread"):
        marks = {
            (trace.marker.color, trace.marker.symbol)
            for trace in analysis.comparison_figures(groups)[name].data
        }
        assert len(marks) == 12


@pytest.mark.extensions
@pytest.mark.slow
def test_a_comparison_says_which_epsilon_is_only_claimed(points, tmp_path):
    claiming = points.assign(epsilon=float("inf"), claimed_epsilon=7.25)
    selections = [select(points), select(points, rule="best-utility")]
    analysis.write_comparison(
        {"a": points, "b": points},
        {"a": selections, "b": selections},
        tmp_path / "plain.html",
        title="x",
    )
    analysis.write_comparison(
        {"a": points, "b": claiming},
        {"a": selections, "b": selections},
        tmp_path / "both.html",
        title="x",
    )
    assert "claimed" not in (tmp_path / "plain.html").read_text()
    page = (tmp_path / "both.html").read_text()
    assert "claimed ε, not certified" in page
    assert page.count(">7.25<") == 1


@pytest.mark.extensions
def test_names_are_shown_letter_by_letter(points):
    """Plotly reads tags in names, and %{...} in the boxes beside the pointer."""
    name = "<a href='https://example.org'>x</a>%{x}"
    for figure in analysis.comparison_figures({name: points, "b": points}).values():
        written = figure.to_json()
        assert "<a" not in written
        assert "\\u003ca" not in written
        assert "%{x}%" not in written
        assert "</a>%{x}" not in written

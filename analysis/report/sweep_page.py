"""A self-contained page on one points table: the selection, its cost, and the evidence for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from raydp.analysis.figures import (
    MOST_CURVES,
    Curve,
    configurations_and_seeds,
    heuristic_accuracies,
    score_against_utility,
    score_along_thresholds,
    selection_risks,
    training_curves,
)
from raydp.analysis.report.body import PageTexts, body_of
from raydp.analysis.report.card import contenders_table, secret_means, secrets_table, steps_table
from raydp.analysis.report.first_screen import FirstScreen, NoWords
from raydp.analysis.report.markup import number, page, paragraph, plot
from raydp.analysis.report.parallel import parallel_data, parallel_section
from raydp.analysis.report.sections import added_sections
from raydp.analysis.report.tables import heuristics_table, risk_table, variance_table
from raydp.analysis.report.threshold_slider import (
    configurations_table,
    live_data,
    start_text,
    threshold_section,
)
from raydp.analysis.report.unscored_page import write_unscored
from raydp.analysis.selection.by_threshold import SelectionsByThreshold, selections_by_threshold
from raydp.analysis.selection.choice import select
from raydp.analysis.selection.constraints import Constraints
from raydp.analysis.selection.equivalents import Precision
from raydp.analysis.selection.rules import OwnRule
from raydp.analysis.selection.selected import Selection
from raydp.analysis.selection.verdict import Words
from raydp.analysis.tables.per_secret import base_of, own_score
from raydp.analysis.tables.points import (
    configuration_means,
    configurations,
    require_hyperparameters,
)
from raydp.search_spaces.configuration import Configuration

_BEST, _ORACLE = "best-utility", "oracle"


class NamedFigures(dict[str, go.Figure]):
    """Figures by name. A notebook shows only their names, not all their data."""

    def __repr__(self) -> str:
        return f"Figures({', '.join(self)})"


def write_report(
    points: pd.DataFrame,
    selections: Selection | Sequence[Selection],
    path: str | Path,
    *,
    title: str,
    base_utility_loss: float | None = None,
    base_score: float | None = None,
    by_secret: tuple[pd.DataFrame, str] | None = None,
    score_name: str | None = None,
    words: Words | None = None,
    card_rows: Mapping[str, str] | None = None,
    warnings: Sequence[str] = (),
    notes: Sequence[str] = (),
    curves: Sequence[Curve] = (),
    advantage_fn: Callable[[Configuration], float | None] = lambda _: None,
) -> NamedFigures:
    """Write the report.

    Args:
        points: the points table that the selections were made from. Without scores, the page has no
            figures.
        selections: the first is the headline. Best-utility and oracle under the same constraints
            are added for comparison if they are not given.
        path: path of the HTML file. It loads nothing: plotly.js is included, and its policy forbids
            requests.
        title: title of the page.
        base_utility_loss: loss of the untrained model, to express utility as a share of the gain.
            If it is missing, the mean of the points' column of that name is used, if there is one.
        base_score: score of the untrained model, to compare with.
        by_secret: the content of the sweep's secrets.parquet and the score's name, for the table of
            secrets.
        score_name: name of the score, if the table does not tell it (`own_score`).
        words: how a person says the score's values; None says them as numbers.
        card_rows: label -> text of further rows for the card of the selected model.
        warnings: plain sentences to print at the top, before the warnings of the first selection.
        notes: plain sentences to print at the end, such as what the guarantee covers.
        curves: the training of single runs, if it is known.
        advantage_fn: see `FirstScreen`.

    Returns:
        The figures of the page by name, as from `report_figures`.

    Raises:
        ValueError: no selection, or a points table that `configuration_means` refuses.
    """
    given = [selections] if isinstance(selections, Selection) else list(selections)
    if not given:
        raise ValueError(
            "selections must have at least one selection, got none. Call select first."
        )
    points = require_hyperparameters(points, scored=False)
    means = configuration_means(points, scored=False)
    scored = not means["score"].isna().all()
    texts = PageTexts(title=title, card_rows=card_rows or {}, warnings=warnings, notes=notes)
    headline, score_name = given[0], score_name or own_score(points)
    words = words or NoWords()
    constraints = headline.constraints or Constraints(max_loss=headline.max_loss)
    by_rule = {selection.rule: selection for selection in [*given, headline]}
    for rule in (_BEST, _ORACLE):
        if rule not in by_rule and (scored or rule == _BEST):
            by_rule[rule] = select(
                points,
                rule=rule,
                by_secret=by_secret,
                log_base=words.log_base,
                no_leak=words.no_leak,
                **asdict(constraints),
            )
    # The table may hold the untrained model's loss, from which the utility gain is measured.
    in_table = means.get("base_utility_loss")
    if base_utility_loss is None and in_table is not None and in_table.notna().all():
        base_utility_loss = float(in_table.mean())
    screen = FirstScreen(
        points=points,
        headline=headline,
        best=by_rule[_BEST],
        words=words,
        base_score=base_score,
        base_utility_loss=base_utility_loss,
        told=texts.card_rows,
        advantage_fn=advantage_fn,
    )
    # Without scores there is no leakage to compare: write the shorter page.
    if not scored:
        write_unscored(means, given, Path(path), texts, screen)
        return NamedFigures()
    made, precision = headline.decision, None
    if made is not None:
        precision = Precision(confidence=made.confidence, tolerance=made.tolerance)
    at_thresholds = selections_by_threshold(
        points,
        constraints,
        by_secret=by_secret,
        log_base=words.log_base,
        no_leak=words.no_leak,
        precision=precision,
        further_rules=[rule for rule in by_rule if isinstance(rule, OwnRule)],
    )
    # Ratios mislead for logarithms and for negative scores.
    relative = base_of(score_name, words.log_base) is None and bool((means["score"] >= 0).all())
    rules = threshold_section(at_thresholds, headline.rule, base_utility_loss, relative=relative)
    sections = {
        "What every rule selects": rules,
        "How sure is the choice": [
            paragraph(_FIXED, css="soft"),
            contenders_table(headline),
            steps_table(headline),
        ],
        **_analyses(points),
        **({"Runs": [_curves(curves)]} if curves else {}),
        "Configurations": [configurations_table(at_thresholds, headline.rule)],
    }
    detail = [] if headline.explanation is None else [headline.explanation]
    if headline.max_loss is not None:
        detail.append(f"The utility threshold is {start_text(at_thresholds)}.")
    if by_secret is not None:
        sections["Secrets"] = [secrets_table(points, by_rule, by_secret)]
        values = secret_means(points, headline, *by_secret)
        worst = f"{by_secret[1]} {number(float(values.max()))}"
        detail.append(f"Of {len(values)} secrets it gives {values.idxmax()} away most: {worst}.")
    name = score_name or "as in the table, which does not name it"
    about = f"Score: {name}. Higher leaks more. {_counts(points, means)} {_CONFIDENTIAL}"
    body = body_of(screen, sections, texts, selections=at_thresholds, about=about, detail=detail)
    # The label of the runner-up has no place where there is none.
    listed, others = configurations(means), () if made is None else made.alternatives
    labels = {
        "selected": listed.index(headline.configuration),
        "best utility": listed.index(screen.best.configuration),
        "runner-up": listed.index(Configuration.from_json(others[0])) if others else None,
    }
    figures = report_figures(points, at_thresholds, labels=labels)
    if curves:
        figures["curves"] = training_curves(curves)
    live = {
        **live_data(at_thresholds, headline.rule, base_utility_loss, relative=relative),
        "labels": labels,
        "screens": {"start": screen.texts(headline), **screen.along(at_thresholds)},
    }
    Path(path).write_text(page(title, body, figures, live, parallel_data(means)), encoding="utf-8")
    return figures


def report_figures(
    points: pd.DataFrame,
    selections: SelectionsByThreshold | None = None,
    *,
    labels: Mapping[str, int | None] | None = None,
) -> NamedFigures:
    """Return the figures of a report by name, also for files and notebooks.

    Args:
        points: a points table.
        selections: the rules' selections at each threshold under the report's constraints. None
            means no constraints.
        labels: as for `score_against_utility`.
    """
    selections = selections or selections_by_threshold(points)
    return NamedFigures(
        layout=score_against_utility(selections, labels=labels),
        by_threshold=score_along_thresholds(selections),
        **{
            name: figure
            for added in added_sections()
            for name, figure in added.figures_fn(points).items()
        },
        heuristics=heuristic_accuracies({"all": points}),
        risk=selection_risks({"all": points}),
        spread=configurations_and_seeds(points),
    )


def _analyses(points: pd.DataFrame) -> dict[str, list[str]]:
    """Return the sections that analyse all configurations: heading -> parts, with their figures."""
    # The placeholders of the figures, each with words for readers who cannot see it.
    accuracies = plot(
        "heuristics",
        "Bars of the share of correct pairs of each heuristic. The table holds the figures.",
        "How often the configuration that a heuristic prefers has the lower score; the dashed line "
        "is guessing.",
        css="low",
    )
    risk = plot(
        "risk",
        "Bars of each rule's risk. The table holds the figures.",
        "What a rule's choice scores above the oracle's, averaged over all utility thresholds. "
        "Shorter is better.",
        css="low",
    )
    spread = plot(
        "spread",
        "Two columns of points: mean scores of the configurations, and runs around their "
        "configuration's mean.",
        "Left the configurations, right single runs around their configuration's mean, where there "
        "are two seeds. All have the same ε, or none: if left is much wider, hyperparameters and "
        "not chance decide what leaks.",
        css="low",
    )
    # Tables stand beside the figures, so that values can be read and copied.
    sections = {
        "What each hyperparameter does": [parallel_section()],
        "Heuristics": [accuracies, heuristics_table(points)],
        "Privacy risk": [risk, risk_table(points)],
        "Variance": [spread, variance_table(points)],
    }
    for added in added_sections():
        for heading, parts in added.parts_fn(points).items():
            sections.setdefault(heading, []).extend(parts)
    return sections


def _curves(curves: Sequence[Curve]) -> str:
    """Return the place of the figure of training curves."""
    dots = " Dots are losses on held-out data." if any(curve.heldout for curve in curves) else ""
    return plot(
        "curves",
        "Lines of the training loss of single runs against their steps.",
        f"Training loss of {min(len(curves), MOST_CURVES)} runs, smoothed. Dark lines have the "
        f"lowest scores, yellow lines the highest.{dots}",
    )


_CONFIDENTIAL = "The page is made from private data and is not covered by ε: it is for those who may see the scores."
_FIXED = "At the threshold as selected: this section does not follow the slider."


def _counts(points: pd.DataFrame, means: pd.DataFrame) -> str:
    """Return a sentence on how much data the report uses."""
    fewest, most = int(means["num_seeds"].min()), int(means["num_seeds"].max())
    seeds = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    return (
        f"{len(means)} configurations, {len(points)} finished rows, seeds per configuration: "
        f"{seeds}. Figures are means over seeds unless they say otherwise."
    )

"""A self-contained page on one points table: the selection, its cost, and the evidence for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
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
from raydp.analysis.figures.style import configuration_in_words
from raydp.analysis.report.card import (
    card,
    contenders_table,
    guarantee_in_words,
    secret_means,
    secrets_table,
    steps_table,
)
from raydp.analysis.report.markup import (
    bullets,
    code,
    contents,
    number,
    page,
    paragraph,
    percent,
    plot,
    section,
)
from raydp.analysis.report.parallel import parallel_data, parallel_section
from raydp.analysis.report.sections import added_sections
from raydp.analysis.report.tables import heuristics_table, risk_table, variance_table
from raydp.analysis.report.threshold_slider import (
    configurations_table,
    live_data,
    start_text,
    threshold_chart,
    threshold_section,
)
from raydp.analysis.report.unscored_page import write_unscored
from raydp.analysis.selection.by_threshold import SelectionsByThreshold, selections_by_threshold
from raydp.analysis.selection.choice import Selection, select
from raydp.analysis.selection.constraints import Constraints
from raydp.analysis.selection.equivalents import Precision
from raydp.analysis.selection.words import in_words
from raydp.analysis.tables.per_secret import is_logarithmic, own_score
from raydp.analysis.tables.points import configuration_means, require_hyperparameters
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
    score_text: str = "",
    logarithmic: bool | None = None,
    card_rows: Mapping[str, str] | None = None,
    warnings: Sequence[str] = (),
    notes: Sequence[str] = (),
    curves: Sequence[Curve] = (),
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
        base_utility_loss: loss of the pre-trained model, to express utility as a share of the gain.
            If it is missing, the mean of the points' column of that name is used, if there is one.
        base_score: score of the pre-trained model, to compare with.
        by_secret: the content of the sweep's secrets.parquet and the score's name, for the table of
            secrets.
        score_name: name of the score, if the table does not tell it (`own_score`).
        score_text: what the score measures, in a sentence.
        logarithmic: as for `select`; if it is true, the page shows no ratios of scores.
        card_rows: label -> text of further rows for the card of the selected model.
        warnings: plain sentences to print at the top, before the warnings of the first selection.
        notes: plain sentences to print at the end, such as what the guarantee covers.
        curves: the training of single runs, if it is known.

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
    # Without scores there is no leakage to compare: write the shorter page.
    if means["score"].isna().all():
        write_unscored(
            points,
            means,
            given,
            Path(path),
            title=title,
            card_rows=card_rows or {},
            warnings=warnings,
            notes=notes,
        )
        return NamedFigures()
    # The table may hold the pre-trained model's loss, from which the utility gain is measured.
    if (
        base_utility_loss is None
        and "base_utility_loss" in means
        and means["base_utility_loss"].notna().all()
    ):
        base_utility_loss = float(means["base_utility_loss"].mean())
    # Select, also by the baselines and along the thresholds.
    headline = given[0]
    constraints = headline.constraints or Constraints(max_loss=headline.max_loss)
    compared = _with_baselines(points, given, constraints, by_secret, logarithmic)
    at_thresholds = selections_by_threshold(
        points,
        constraints,
        by_secret=by_secret,
        logarithmic=logarithmic,
        precision=_precision(headline),
    )
    score_name = score_name or own_score(points)
    # Ratios mislead for logarithmic and for negative scores.
    relative = not is_logarithmic(score_name, logarithmic) and bool((means["score"] >= 0).all())
    # Compose and write the page.
    slider, chart = threshold_chart(at_thresholds)
    # The first screen: what to use, why, and what it guarantees.
    decision = section(
        "The decision",
        paragraph(headline_sentence(headline, compared[_BEST], relative=relative), css="headline"),
        bullets(
            [
                text
                for text in (
                    guarantee_in_words(points, headline, card_rows or {}),
                    *in_words(headline),
                )
                if text
            ]
        ),
        paragraph(headline.explanation) if headline.explanation else "",
        paragraph(
            _context(headline, compared, base_utility_loss, base_score, start_text(at_thresholds))
        ),
        paragraph(_worst_secret(points, headline, by_secret)) if by_secret is not None else "",
        css="decision",
    )
    model = card(points, headline, card_rows or {})
    load = "" if headline.load_call is None else code(headline.load_call)
    # The evidence, from the choice as a whole down to single configurations and secrets.
    sections = {
        "What every rule selects": threshold_section(
            at_thresholds, headline.rule, base_utility_loss, relative=relative
        ),
        "How sure is the choice": [
            paragraph(_FIXED, css="soft"),
            contenders_table(headline),
            steps_table(headline),
        ],
        **_analyses(points),
        **({"Runs": [_curves(curves)]} if curves else {}),
        "Configurations": [configurations_table(at_thresholds, headline.rule)],
    }
    if by_secret is not None:
        sections["Secrets"] = [secrets_table(points, compared, by_secret)]
    if notes:
        sections["Notes"] = [bullets(notes)]
    # Warnings stand above the evidence, and every page says that it is confidential.
    body = [
        f"<h1>{escape(title)}</h1>",
        '<div class="first">',
        decision,
        f'<div class="model">{load}{model}</div>',
        f'<div class="chart">{chart}</div>',
        "</div>",
        slider,
        bullets([*warnings, *headline.warnings], css="warnings"),
        paragraph(
            f"{_of_score(score_name, score_text)} {_counts(points, means)} {_CONFIDENTIAL}",
            css="soft",
        ),
        contents(list(sections)),
        *(section(heading, *parts) for heading, parts in sections.items()),
    ]
    figures = report_figures(points, at_thresholds)
    if curves:
        figures["curves"] = training_curves(curves)
    # The script redraws from this data when the slider moves, without a server.
    live = live_data(at_thresholds, headline.rule, base_utility_loss, relative=relative)
    Path(path).write_text(page(title, body, figures, live, parallel_data(means)), encoding="utf-8")
    return figures


def report_figures(
    points: pd.DataFrame, selections: SelectionsByThreshold | None = None
) -> NamedFigures:
    """Return the figures of a report by name, also for files and notebooks.

    Args:
        points: a points table.
        selections: the rules' selections at each threshold under the report's constraints. None
            means no constraints.
    """
    selections = selections or selections_by_threshold(points)
    return NamedFigures(
        layout=score_against_utility(selections),
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
_FIXED = (
    "At the threshold as selected: this section and the decision above do not follow the slider."
)


def headline_sentence(selected: Selection, best: Selection, *, relative: bool) -> str:
    """Name the selected configuration and compare it with the best-utility configuration."""
    state = None if selected.decision is None else selected.decision.state
    name = f"{_name(selected.configuration)}, which the rule {selected.rule} selects. "
    # In any other state, the sentence recommends the configuration.
    starts = {
        "undecided": "Not decided. The best guess is",
        "only one": "No choice. The only one that passes is",
    }
    start = f"{starts.get(state or '', 'Use')} {name}"
    if selected.configuration == best.configuration:
        return (
            start + f"It is also the best-utility configuration (score {number(selected.score)})."
        )
    assert selected.score is not None, "points without scores have a page of their own"
    assert best.score is not None, "points without scores have a page of their own"
    difference = selected.score - best.score
    share = ""
    # A share of a score of 0 or less has no meaning.
    if relative and best.score > 0 and difference:
        share = f" ({percent(abs(difference) / best.score)} {_direction(difference)})"
    return (
        f"{start}Its score is {number(selected.score)} against {number(best.score)}{share} for the "
        f"best-utility configuration {_name(best.configuration)}; its utility loss is "
        f"{number(selected.utility_loss)} against {number(best.utility_loss)}."
    )


def _direction(difference: float) -> str:
    return "lower" if difference < 0 else "higher"


def _name(configuration: Configuration) -> str:
    # Spaces that do not break keep "b = 64" on one line.
    return configuration_in_words(configuration).replace(" = ", "\u00a0=\u00a0")


def _precision(selected: Selection) -> Precision | None:
    """Return a selection's confidence and tolerance, None if there is no decision."""
    made = selected.decision
    return None if made is None else Precision(confidence=made.confidence, tolerance=made.tolerance)


def _with_baselines(
    points: pd.DataFrame,
    given: Sequence[Selection],
    constraints: Constraints,
    by_secret: tuple[pd.DataFrame, str] | None,
    logarithmic: bool | None,
) -> dict[str, Selection]:
    """Return the selections by rule, with best-utility and oracle under the same constraints."""
    compared = {selection.rule: selection for selection in given}
    # The page always shows what the rule costs, in utility and in score.
    for rule in (_BEST, _ORACLE):
        if rule not in compared:
            compared[rule] = select(
                points,
                rule=rule,
                by_secret=by_secret,
                logarithmic=logarithmic,
                **asdict(constraints),
            )
    return compared


def _context(
    selected: Selection,
    compared: dict[str, Selection],
    base_utility_loss: float | None,
    base_score: float | None,
    threshold: str,
) -> str:
    """Compare the selection with the lowest score and, if known, with the pre-trained model."""
    sentences = [
        f"The lowest measured score within the constraints is {number(compared[_ORACLE].score)}."
    ]
    if selected.configuration == compared[_ORACLE].configuration:
        sentences = ["No configuration within the constraints has a lower measured score."]
    best_gain = (
        None if base_utility_loss is None else base_utility_loss - compared[_BEST].utility_loss
    )
    # A share of the gain needs a gain: every model may be worse than the pre-trained one.
    if base_utility_loss is not None and best_gain is not None and best_gain > 0:
        share = (base_utility_loss - selected.utility_loss) / best_gain
        sentences.append(
            f"The selected one keeps {percent(share)} of the best utility gain over the "
            f"pre-trained model (utility loss {number(base_utility_loss)})."
        )
    if base_score is not None:
        sentences.append(f"The pre-trained model scores {number(base_score)}.")
    if selected.max_loss is not None:
        sentences.append(
            f"Only configurations with a mean utility loss of at most {threshold} were considered."
        )
    return " ".join(sentences)


def _worst_secret(
    points: pd.DataFrame, selected: Selection, by_secret: tuple[pd.DataFrame, str]
) -> str:
    """Name the secret that the selected model leaks most."""
    values = secret_means(points, selected, by_secret[0], by_secret[1])
    # The secret's identifier, never its text.
    return f"Of {len(values)} secrets it gives {values.idxmax()} away most: {by_secret[1]} {number(float(values.max()))}."


def _of_score(name: str | None, text: str) -> str:
    """Return a sentence that names and explains the score."""
    sentence = f"Score: {name or 'as in the table, which does not name it'}"
    return (
        f"{sentence}, {text[0].lower()}{text[1:]} Higher leaks more."
        if text
        else f"{sentence}. Higher leaks more."
    )


def _counts(points: pd.DataFrame, means: pd.DataFrame) -> str:
    """Return a sentence on how much data the report uses."""
    fewest, most = int(means["num_seeds"].min()), int(means["num_seeds"].max())
    seeds = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    return (
        f"{len(means)} configurations, {len(points)} finished rows, seeds per configuration: "
        f"{seeds}. Figures are means over seeds unless they say otherwise."
    )

"""One self-contained HTML file on a points table: what was selected, what it costs, and what supports it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import pandas as pd

from analysis.report.figures import score_against_utility
from analysis.report.markup import Cell, bullets, number, page, paragraph, plot, section, table
from analysis.report.tables import heuristics_table, regression_tables, risk_table, variance_table
from analysis.selection.choice import Selection, select
from analysis.tables.points import configuration_means, configurations, require_hyperparameters
from search_spaces.configuration import Configuration

_BEST, _ORACLE = "best-utility", "oracle"


def write_report(
    points: pd.DataFrame,
    selections: Selection | Sequence[Selection],
    path: str | Path,
    *,
    title: str,
    base_utility_loss: float | None = None,
    base_score: float | None = None,
    warnings: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> None:
    """Write the report.

    Args:
        points: the points table that the selections were made from.
        selections: the first is the headline; others are listed. Best-utility and oracle under the same utility
            threshold are added for comparison.
        path: of the HTML file. It loads nothing from anywhere: plotly.js is inside, and its policy forbids requests.
        title: of the page.
        base_utility_loss: loss of the pre-trained model, to express utility as a share of the gain; without it, the
            mean of the points' column of that name, if they have one.
        base_score: score of the pre-trained model, to compare with.
        warnings: plain sentences to print at the top, before those of the first selection.
        notes: plain sentences to print at the end, such as what the guarantee covers.

    Raises:
        ValueError: no selection, or a points table that `configuration_means` refuses.
    """
    given = [selections] if isinstance(selections, Selection) else list(selections)
    if not given:
        raise ValueError("selections must have at least one selection, got none. Call select first.")
    points = require_hyperparameters(points)
    means = configuration_means(points)
    if base_utility_loss is None and "base_utility_loss" in means and means["base_utility_loss"].notna().all():
        base_utility_loss = float(means["base_utility_loss"].mean())
    compared = _with_baselines(points, given)
    headline = given[0]
    marks = {"Selected": headline.configuration} | {
        label: compared[rule].configuration for rule, label in ((_BEST, "Best utility"), (_ORACLE, "Oracle"))
    }
    body = [
        f"<h1>{escape(title)}</h1>",
        paragraph(headline_sentence(headline, compared[_BEST]), css="headline"),
        *_context(headline, compared, base_utility_loss, base_score),
        bullets([*warnings, *headline.warnings], css="warnings"),
        paragraph(_counts(points, means), css="soft"),
        section("Score and utility", _plot(headline)),
        section("Selection", _rules_table(compared), _steps_table(headline)),
        section("Configurations", _configurations_table(means, headline, compared)),
        section("Heuristics", heuristics_table(points)),
        section("Privacy risk", risk_table(points)),
        section("Variance", variance_table(points)),
        section("Regression", *regression_tables(points)),
    ]
    if notes:
        body.append(section("Notes", bullets(notes)))
    figure = score_against_utility(means, marks, max_loss=headline.max_loss)
    Path(path).write_text(page(title, body, figure), encoding="utf-8")


def headline_sentence(selected: Selection, best: Selection) -> str:
    """What was selected, and how it differs from the best-utility configuration."""
    start = f"Selected by the rule {selected.rule}: {_name(selected.configuration)}. "
    if selected.configuration == best.configuration:
        return start + f"It is also the best-utility configuration (score {number(selected.score)})."
    difference = selected.score - best.score
    share = f" ({abs(difference) / best.score:.0%} {_direction(difference)})" if best.score > 0 and difference else ""
    return (
        f"{start}Its score is {number(selected.score)} against {number(best.score)}{share} for the best-utility "
        f"configuration {_name(best.configuration)}; its utility loss is {number(selected.utility_loss)} against "
        f"{number(best.utility_loss)}."
    )


def _direction(difference: float) -> str:
    return "lower" if difference < 0 else "higher"


def _name(configuration: Configuration) -> str:
    return f"b = {configuration.batch_size}, T = {configuration.num_steps}, η = {configuration.learning_rate:g}"


def _with_baselines(points: pd.DataFrame, given: Sequence[Selection]) -> dict[str, Selection]:
    """The selections by rule; best-utility and oracle under the headline's threshold where they are not given."""
    compared = {selection.rule: selection for selection in given}
    for rule in (_BEST, _ORACLE):
        compared.setdefault(rule, select(points, rule=rule, max_loss=given[0].max_loss))
    return compared


def _context(
    selected: Selection, compared: dict[str, Selection], base_utility_loss: float | None, base_score: float | None
) -> list[str]:
    """The selection beside the pre-trained model, as far as that is known."""
    sentences = []
    best_gain = None if base_utility_loss is None else base_utility_loss - compared[_BEST].utility_loss
    if base_utility_loss is not None and best_gain is not None and best_gain > 0:
        share = (base_utility_loss - selected.utility_loss) / best_gain
        sentences.append(
            f"It keeps {share:.0%} of the best utility gain over the pre-trained model "
            f"(utility loss {number(base_utility_loss)})."
        )
    if base_score is not None:
        sentences.append(f"The pre-trained model scores {number(base_score)}.")
    if selected.max_loss is not None:
        sentences.append(
            f"Only configurations with a mean utility loss of at most {number(selected.max_loss)} were considered."
        )
    return [paragraph(" ".join(sentences))] if sentences else []


def _counts(points: pd.DataFrame, means: pd.DataFrame) -> str:
    """How much data the report rests on."""
    fewest, most = int(means["num_seeds"].min()), int(means["num_seeds"].max())
    seeds = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    return (
        f"{len(means)} configurations, {len(points)} finished rows, seeds per configuration: {seeds}. "
        "Figures are means over seeds unless they say otherwise."
    )


def _plot(selected: Selection) -> str:
    """The place of the figure, described for those who do not see it."""
    threshold = "" if selected.max_loss is None else " The dashed line is the utility threshold."
    label = (
        f"Scatter plot of the mean score against the mean utility loss of every configuration. The selected one, "
        f"{_name(selected.configuration)}, has utility loss {number(selected.utility_loss)} and score "
        f"{number(selected.score)}. The table of configurations holds the same figures."
    )
    caption = (
        f"One point per configuration; bars are one standard deviation over seeds. Lower left is better.{threshold}"
    )
    return plot(label, caption)


def _rules_table(compared: dict[str, Selection]) -> str:
    rows: list[list[Cell]] = []
    for rule, s in compared.items():
        c = s.configuration
        rows.append(
            [rule, c.batch_size, c.num_steps, c.learning_rate, s.utility_loss, s.score, s.model_uri or "none recorded"]
        )
    return table("What each rule selects", ["Rule", "b", "T", "η", "Utility loss", "Score", "Model"], rows)


def _steps_table(selected: Selection) -> str:
    rows: list[list[Cell]] = [[step.name, step.rule, len(step.dropped), len(step.survivors)] for step in selected.steps]
    return table(f"Steps of the rule {selected.rule}", ["Step", "Rule", "Dropped", "Kept"], rows)


def _configurations_table(means: pd.DataFrame, selected: Selection, compared: dict[str, Selection]) -> str:
    headers = [
        "b",
        "T",
        "η",
        "C = bT",
        "U = Cη",
        "Seeds",
        "Utility loss",
        "Loss std",
        "Score",
        "Score std",
        "Chosen by",
    ]
    listed = configurations(means)
    figures = means[["num_seeds", "utility_loss", "utility_loss_std", "score", "score_std"]].itertuples(index=False)
    rows: list[list[Cell]] = []
    for c, (seeds, *values) in zip(listed, figures, strict=True):
        chosen = ", ".join(rule for rule, selection in compared.items() if selection.configuration == c)
        name: list[Cell] = [c.batch_size, c.num_steps, c.learning_rate, c.compute, float(c.updates)]
        rows.append([*name, int(seeds), *map(float, values), chosen])
    marked = {listed.index(selected.configuration)}
    return table("Means over seeds, sorted by T, b, η", headers, rows, marked=marked)

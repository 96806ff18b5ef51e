"""A self-contained page that compares points tables (Hu et al. 2025, Fig. 2, 7 and 19)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from raydp.analysis.figures import heuristic_accuracies, selection_risks
from raydp.analysis.report.markup import (
    Cell,
    bullets,
    number,
    page,
    paragraph,
    plot,
    section,
    table,
)
from raydp.analysis.selection.risk import privacy_risk
from raydp.analysis.selection.selected import Selection
from raydp.analysis.statistics.heuristics import heuristic_accuracy
from raydp.analysis.tables.per_secret import own_score
from raydp.analysis.tables.points import configuration_means, largest
from raydp.analysis.tables.statements import UNPROVEN
from raydp.extensions.comparison.figures import scores_against_utility, variance_by_group
from raydp.extensions.comparison.trends import Group, GroupRatio, variance_trends
from raydp.search_spaces.settings import settings_in_words


def write_comparison(
    groups: Mapping[str, pd.DataFrame],
    selections: Mapping[str, Sequence[Selection]],
    path: str | Path,
    *,
    title: str,
    notes: Sequence[str] = (),
) -> dict[str, go.Figure]:
    """Write the comparison page.

    Args:
        groups: name -> points table; at least two. Trends are tested in the order of the groups.
        selections: name -> the selections from each table. The first is the headline, the last is
            best utility.
        path: path of the self-contained HTML file.
        title: title of the page.
        notes: plain sentences to print at the end.

    Returns:
        The figures of the page by name, as from `comparison_figures`.

    Raises:
        ValueError: fewer than two groups, or a table that `variance_trends` refuses.
    """
    trends = variance_trends(groups)
    # Levels and spreads can be compared only between tables of one score.
    comparable = len({own_score(points) for points in groups.values()}) == 1
    body = [
        f"<h1>{escape(title)}</h1>",
        paragraph(_lead(groups, trends["groups"] if comparable else []), css="headline"),
        "" if comparable else bullets([_OTHER_SCORES], css="warnings"),
        section(
            "Selections",
            _selections_table(groups, selections),
            bullets(_warnings(selections), css="warnings"),
        ),
        section("Score and utility", _LAYOUT, *_not_comparable(groups)),
        section(
            "Variance",
            _SPREAD,
            _spread_table(trends["groups"]),
            _ratios_table(trends["comparisons"]) if comparable else "",
        ),
        section("Heuristics", _HEURISTICS, _heuristics_table(groups)),
        section("Privacy risk", _RISK, _risk_table(groups)),
    ]
    if notes:
        body.append(section("Notes", bullets(notes)))
    # The figures that the placeholders in the body name.
    figures = comparison_figures(groups)
    Path(path).write_text(page(title, body, figures), encoding="utf-8")
    return figures


def comparison_figures(groups: Mapping[str, pd.DataFrame]) -> dict[str, go.Figure]:
    """Return the figures of a comparison page by name, also for files and notebooks.

    Args:
        groups: name -> points table.
    """
    return {
        "layout": scores_against_utility(groups),
        "spread": variance_by_group(groups),
        "heuristics": heuristic_accuracies(groups),
        "risk": selection_risks(groups),
    }


_LAYOUT = plot(
    "layout",
    "Scatter plot of mean scores against mean utility losses, a colour and symbol for each group.",
    "One point per configuration. Lower left is better.",
)
_SPREAD = plot(
    "spread",
    "One column of points per group: the mean scores of its configurations.",
    "All models of a group have the same ε, or none: how far its points lie apart is what ε does "
    "not say. The standard deviation is written above.",
)
_HEURISTICS = plot(
    "heuristics",
    "Bars of the share of correct pairs of each heuristic in each group. The table holds the "
    "figures.",
    "How often the configuration that a heuristic prefers has the lower score; the dashed line is "
    "guessing.",
)
_RISK = plot(
    "risk",
    "Bars of each rule's risk in each group. The table holds the figures.",
    "What a rule's choice scores above the oracle's, averaged over all utility thresholds. Shorter "
    "is better.",
)


_OTHER_SCORES = (
    "The groups are not known to be of the same score. Levels, spreads and risks cannot be "
    "compared between groups; the accuracies of the heuristics can. Name one by --score."
)


def _lead(groups: Mapping[str, pd.DataFrame], spreads: Sequence[Group]) -> str:
    known = [row for row in spreads if row["score_std"] is not None]
    count = sum(len(configuration_means(points)) for points in groups.values())
    counted = f"{len(groups)} groups, {count} configurations."
    if not known:
        return counted
    widest = max(known, key=lambda row: row["score_std"] or 0.0)
    std = number(widest["score_std"])
    return (
        f"{counted} The scores lie farthest apart in {widest['group']}: standard deviation {std}."
    )


def _selections_table(
    groups: Mapping[str, pd.DataFrame], selections: Mapping[str, Sequence[Selection]]
) -> str:
    rows: list[list[Cell]] = []
    # Leave out columns that would be empty in every group.
    further = (
        ["Further fields"]
        if any(of[0].configuration.settings for of in selections.values())
        else []
    )
    # A claimed ε is never shown as if it were certified.
    stated = [c for c in UNPROVEN if any(c in points for points in groups.values())]
    # Best utility stands beside the headline selection, to show what the lower score costs in loss.
    for name, (selected, best) in (
        (name, (selections[name][0], selections[name][-1])) for name in groups
    ):
        c = selected.configuration
        verdict = "not asked" if selected.contenders is None else selected.contenders.verdict
        rows.append(
            [
                name,
                own_score(groups[name]) or "not named",
                *(largest(groups[name], column) for column in ("epsilon", *stated)),
                c.batch_size,
                c.num_steps,
                c.learning_rate,
                *([settings_in_words(c.settings) or "–"] if further else []),
                selected.utility_loss,
                selected.score,
                best.utility_loss,
                best.score,
                verdict,
            ]
        )
    headers = [
        "Group",
        "Score is",
        "ε",
        *(UNPROVEN[column] for column in stated),
        "b",
        "T",
        "η",
        *further,
        "Loss",
        "Score",
        "Best loss",
        "Its score",
        "Choice is",
    ]
    return table(
        "What is selected in each group, beside the configuration of best utility", headers, rows
    )


def _warnings(selections: Mapping[str, Sequence[Selection]]) -> list[str]:
    return [
        f"{name}: {warning}"
        for name, (selected, *_) in selections.items()
        for warning in selected.warnings
    ]


def _not_comparable(groups: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return a caution if the groups may come from different data."""
    tasks = [
        set(points["task_hash"]) if "task_hash" in points else set() for points in groups.values()
    ]
    # Without a data hash in every table, nobody can know that the data are equal.
    if all(tasks) and len(set.union(*tasks)) == 1:
        return []
    return [
        paragraph(
            "The groups are not known to be of the same data: levels of score and loss can be "
            "compared only within a group, shapes between them.",
            css="soft",
        )
    ]


def _spread_table(rows: Sequence[Group]) -> str:
    cells: list[list[Cell]] = []
    for row in rows:
        low, high = row["interval"] or (None, None)
        level = [row["mean"], row["score_min"], row["score_max"]]
        cells.append([row["group"], row["configurations"], *level, row["score_std"], low, high])
    headers = ["Group", "Configurations", "Mean", "Lowest", "Highest", "Std", "95 % from", "to"]
    return table("Mean scores of the configurations in each group", headers, cells)


def _ratios_table(rows: Sequence[GroupRatio]) -> str:
    cells: list[list[Cell]] = []
    for row in rows:
        low, high = row["interval"] or (None, None)
        paired = "paired" if row["paired"] else "unpaired"
        cells.append(
            [f"{row['b']} over {row['a']}", row["ratio"], low, high, row.get("p_holm"), paired]
        )
    headers = ["Groups", "Ratio", "95 % from", "to", "p", "Configurations"]
    return table("Ratios of the standard deviations; p after Holm", headers, cells)


def _heuristics_table(groups: Mapping[str, pd.DataFrame]) -> str:
    rows: list[list[Cell]] = []
    for name, points in groups.items():
        row: list[Cell] = [name]
        for figures in heuristic_accuracy(points).values():
            row += [figures["correct"], figures["pairs"]]
        rows.append(row)
    headers = ["Group", "Individual", "of", "Compute", "of", "Updates", "of"]
    return table("Correct pairs of each heuristic", headers, rows)


def _risk_table(groups: Mapping[str, pd.DataFrame]) -> str:
    risks = {name: privacy_risk(points)["rules"] for name, points in groups.items()}
    rules = list(next(iter(risks.values())))
    rows: list[list[Cell]] = []
    for name, of_rule in risks.items():
        rows.append([f"{name}, relative", *(of_rule[rule]["relative"] for rule in rules)])
        rows.append([f"{name}, absolute", *(of_rule[rule]["absolute"] for rule in rules)])
    return table("Score above the oracle's, averaged over the thresholds", ["Group", *rules], rows)

"""The report of points without scores: the selections, and all configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import pandas as pd

from raydp.analysis.report.card import card, guarantee_in_words, steps_table
from raydp.analysis.report.markup import (
    Cell,
    bullets,
    code,
    contents,
    number,
    page,
    paragraph,
    section,
    table,
)
from raydp.analysis.selection.choice import Selection
from raydp.analysis.selection.words import in_words
from raydp.analysis.tables.coordinates import further_columns
from raydp.analysis.tables.points import configurations


def write_unscored(
    points: pd.DataFrame,
    means: pd.DataFrame,
    selections: Sequence[Selection],
    path: Path,
    *,
    title: str,
    card_rows: Mapping[str, str],
    warnings: Sequence[str],
    notes: Sequence[str],
) -> None:
    """Write the page. `means` are the configuration means; for the rest see `write_report`."""
    headline = selections[0]
    words = [guarantee_in_words(points, headline, card_rows), *in_words(headline)]
    load = "" if headline.load_call is None else code(headline.load_call)
    # No figures: every figure shows the score.
    sections = {
        "How it was selected": [steps_table(selection) for selection in selections],
        "Configurations": [_configurations(means, selections)],
        **({"Notes": [bullets(notes)]} if notes else {}),
    }
    use = f"Use {headline.configuration}, which the rule {headline.rule} selects."
    decision = section(
        "The decision",
        paragraph(use, css="headline"),
        bullets([text for text in words if text]),
        css="decision",
    )
    # The order is that of the page with scores, so that readers find things at the same place.
    body = [
        f"<h1>{escape(title)}</h1>",
        '<div class="first">',
        decision,
        f'<div class="model">{load}{card(points, headline, card_rows)}</div>',
        "</div>",
        bullets([*warnings, *headline.warnings], css="warnings"),
        contents(list(sections)),
        *(section(heading, *parts) for heading, parts in sections.items()),
    ]
    path.write_text(page(title, body, {}), encoding="utf-8")


def _configurations(means: pd.DataFrame, selections: Sequence[Selection]) -> str:
    """Return the table of all configurations: mean utility loss, and the rules that select them."""
    further = further_columns(means)
    listed = configurations(means)
    rows: list[list[Cell]] = []
    for at, c in enumerate(listed):
        own = means.iloc[at]
        chosen = ", ".join(
            selection.rule for selection in selections if selection.configuration == c
        )
        fields: list[Cell] = [column[at] for column in further.values()]
        figures: list[Cell] = [int(own["num_seeds"]), number(own["utility_loss"]), chosen]
        rows.append([c.batch_size, c.num_steps, c.learning_rate, *fields, *figures])
    marked = [at for at, c in enumerate(listed) if c == selections[0].configuration]
    headers = ["b", "T", "η", *further, "Seeds", "Utility loss", "Chosen by"]
    return table("Means over seeds, sorted by T, b, η", headers, rows, marked=marked)

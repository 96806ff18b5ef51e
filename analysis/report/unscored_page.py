"""The report of points without scores: the selections, and all configurations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from raydp.analysis.report.body import PageTexts, body_of
from raydp.analysis.report.card import steps_table
from raydp.analysis.report.first_screen import FirstScreen
from raydp.analysis.report.markup import Cell, number, page, table
from raydp.analysis.selection.selected import Selection
from raydp.analysis.tables.coordinates import further_columns
from raydp.analysis.tables.points import configurations


def write_unscored(
    means: pd.DataFrame,
    selections: Sequence[Selection],
    path: Path,
    texts: PageTexts,
    screen: FirstScreen,
) -> None:
    """Write the page. `means` are the configuration means; for the rest see `body_of`."""
    # No figures: every figure shows the score.
    body = body_of(
        screen,
        {
            "How it was selected": [steps_table(selection) for selection in selections],
            "Configurations": [_configurations(means, selections)],
        },
        texts,
    )
    path.write_text(page(texts.title, body, {}), encoding="utf-8")


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

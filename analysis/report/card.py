"""The selected model's card, the contenders for the lowest score, and the leakage of secrets."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.report.markup import Cell, facts, number, paragraph, percent, table
from raydp.analysis.selection.selected import Selection
from raydp.analysis.tables.per_secret import by_secret as values_by_secret
from raydp.analysis.tables.points import configurations, largest
from raydp.analysis.tables.statements import rounded_up
from raydp.search_spaces.configuration import Configuration
from raydp.search_spaces.settings import settings_in_words

MOST_SECRETS = 200
"""The largest number of rows in the table of secrets: those that the selected model leaks most."""
MOST_CONTENDERS = 20
_GUARANTEE = {"epsilon": "ε", "delta": "δ"}
_MECHANISM = {"noise_multiplier": "Noise multiplier σ", "max_grad_norm": "Clipping norm c"}


def card(
    points: pd.DataFrame, selected: Selection, told: Mapping[str, str], leak: str | None
) -> str:
    """Return the facts about the selected model as HTML: the guarantee first, then the figures.

    Args:
        points: the points table.
        selected: the selection from that table.
        told: label -> text of further rows that the table does not hold, such as the unit of
            privacy.
        leak: what the score means, in words; None where no words hold.
    """
    rows = [
        ("Model", selected.model_uri or "none recorded"),
        ("Configuration", str(selected.configuration)),
    ]
    own = points[_is_selected(points, selected)]
    rows += [(_GUARANTEE[n], number(upper_bound(own, n))) for n in _GUARANTEE if n in own]
    rows += [
        *told.items(),
        ("Utility loss", number(selected.utility_loss)),
        ("Score, measured", _score(selected)),
        *([] if leak is None else [("What that means", leak)]),
    ]
    # The measured score of a selected minimum is too low on average (winner's curse).
    made = selected.decision
    if made is not None and made.interval is not None:
        low, high = made.interval
        interval = f"{100 * made.confidence:g} % interval {number(low)} to {number(high)}"
        expected = f"{number(made.estimate)}, {interval}"
        rows.append(("Score, corrected for the selection", expected))
    rows += [(_MECHANISM[n], number(largest(own, n))) for n in _MECHANISM if n in own]
    return facts(rows)


def _is_selected(points: pd.DataFrame, selected: Selection) -> NDArray[np.bool_]:
    """Return [n] whether each row is of the selected configuration."""
    return np.array([c == selected.configuration for c in configurations(points)])


def contenders_table(selected: Selection) -> str:
    """Return the table of configurations that may have the lowest score, as HTML."""
    compared = selected.contenders
    if compared is None:
        return ""
    if not compared.levels:
        return paragraph(f"Not known: {compared.reason}.", css="soft")
    # One row per configuration, by mean score.
    has_fields = any("settings" in row for row in compared.rows)
    rows: list[list[Cell]] = []
    marked = []
    for place, row in enumerate(compared.rows[:MOST_CONTENDERS]):
        inside = "may be" if row["indistinguishable"] else "is not"
        c = Configuration.from_json(row)
        further = [settings_in_words(c.settings) or "–"] if has_fields else []
        name: list[Cell] = [c.batch_size, c.num_steps, c.learning_rate, *further]
        rows.append([*name, row["score"], row["std_error"], percent(row["probability"], 1), inside])
        if c == selected.configuration:
            marked.append(place)
    # The caption names the sources of error: without them a probability has no meaning.
    over = " and ".join(compared.levels)
    of = (
        f", the first {MOST_CONTENDERS} of {len(compared.rows)}"
        if len(compared.rows) > MOST_CONTENDERS
        else ""
    )
    at = f"the last column at {100 * compared.confidence:g} %"
    caption = f"By mean score{of}; standard errors and probabilities over {over}; {at}"
    fields = ["Further fields"] if has_fields else []
    headers = ["b", "T", "η", *fields, "Score", "Std. error", "Probability", "The lowest"]
    # Where the choice is open, say what would decide it.
    outlook = None if compared.verdict == "supported" else selected.outlook
    note = "" if outlook is None else paragraph(outlook.sentence, css="soft")
    return "\n".join([table(caption, headers, rows, marked=marked), note])


def steps_table(selected: Selection) -> str:
    """Return the table of what each step of the rule dropped and kept, as HTML."""
    rows: list[list[Cell]] = [
        [step.name, step.rule, len(step.dropped), len(step.survivors)] for step in selected.steps
    ]
    return table(f"Steps of the rule {selected.rule}", ["Step", "Rule", "Dropped", "Kept"], rows)


def secrets_table(
    points: pd.DataFrame, compared: Mapping[str, Selection], by_secret: tuple[pd.DataFrame, str]
) -> str:
    """Return a table of each secret's score under the selected models, as HTML.

    The table shows identifiers and figures, never the secrets.

    Args:
        points: the points table, with run_id.
        compared: rule -> selection. The first selection sorts the table.
        by_secret: the content of secrets.parquet and the name of the score.
    """
    values, counts = values_by_secret(points, *by_secret)
    columns = {
        rule: secret_means(points, selected, *by_secret) for rule, selected in compared.items()
    }
    shown = pd.DataFrame(columns).assign(count=counts, most=values.max(axis=0))
    # What the first selection leaks most stands on top.
    order = shown.iloc[:, 0].sort_values(ascending=False, kind="stable").index[:MOST_SECRETS]
    rows: list[list[Cell]] = [
        [
            str(name),
            None if pd.isna(row["count"]) else int(row["count"]),
            *(float(row[rule]) for rule in compared),
            float(row["most"]),
        ]
        for name, row in shown.loc[order].iterrows()
    ]
    of = f", the first {MOST_SECRETS} of {len(shown)}" if len(shown) > MOST_SECRETS else ""
    caption = f"Score {by_secret[1]} by secret, means over seeds{of}; the last column over all runs"
    return table(caption, ["Secret", "In examples", *compared, "Highest"], rows)


def secret_means(
    points: pd.DataFrame, selected: Selection, secrets: pd.DataFrame, score: str
) -> pd.Series:
    """Return the selected configuration's score by secret, the mean over seeds, shape [secret]."""
    values, _ = values_by_secret(points, secrets, score)
    own: pd.Series = values[_is_selected(points, selected)].mean(axis=0)
    return own


def _score(selected: Selection) -> str:
    """Return the score as text, with its standard error if that is known."""
    for row in selected.contenders.rows if selected.contenders else ():
        if Configuration.from_json(row) == selected.configuration and row["std_error"] is not None:
            return f"{number(selected.score)} ± {row['std_error']:.2g}"
    if selected.score is None:
        return "not measured"
    return number(selected.score)


def upper_bound(points: pd.DataFrame, column: str) -> float | None:
    """Return a column's largest value with four digits, rounded up; None as `largest`."""
    bound = largest(points, column)
    return bound if bound is None or math.isinf(bound) else rounded_up(bound)

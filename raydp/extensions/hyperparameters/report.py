"""The report's sections on hyperparameters: importance, effects, utility, regressions."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from raydp.analysis.report.markup import Cell, paragraph, plot, table
from raydp.analysis.report.sections import ReportSections
from raydp.extensions.hyperparameters.confound import utility_adjusted
from raydp.extensions.hyperparameters.effects import hyperparameter_effects
from raydp.extensions.hyperparameters.figures import effect_lines, importance_bars
from raydp.extensions.hyperparameters.regression import regress

_VARIED = {
    "batch_size": "batch size b",
    "num_steps": "steps T",
    "learning_rate": "learning rate η",
    "compute": "b at equal compute C",
    "updates": "η at equal updates U",
}
"""Kind of series -> what is doubled along it."""


def figures(points: pd.DataFrame) -> dict[str, go.Figure]:
    """Return the figures of the sections by name."""
    return {"importance": importance_bars(points), "effects": effect_lines(points)}


def parts(points: pd.DataFrame) -> dict[str, list[str]]:
    """Return the parts of the sections by heading."""
    importance = plot(
        "importance",
        "Bars of the importance of each hyperparameter for the score and for the utility loss.",
        "Share of the variance that one hyperparameter explains alone, in a random forest of the "
        "configurations' means (functional analysis of variance).",
        css="low",
    )
    effects = plot(
        "effects",
        "Lines of the mean score and the mean utility loss along configurations that differ in one "
        "hyperparameter. The table below holds the mean changes.",
        "Each line joins configurations that share the rest; in the last two panels they share "
        "compute C = b·T, or updates U = C·η.",
        css="wide",
    )
    return {
        "What each hyperparameter does": [importance, effects, effects_table(points)],
        "Variance": [confound_table(points)],
        "Regression": regression_tables(points),
    }


def effects_table(points: pd.DataFrame) -> str:
    """Return the mean change of the score per doubling of each hyperparameter."""
    rows: list[list[Cell]] = []
    for name, effect in hyperparameter_effects(points).items():
        varied = _VARIED.get(name, name)
        rows.append([varied, effect["series_count"], effect["per_doubling"], effect["std_error"]])
    caption = "Change of the score for a doubling, mean over series of configurations that differ in nothing else"
    return table(caption, ["Doubled", "Series", "Change", "Std. error"], rows)


def confound_table(points: pd.DataFrame) -> str:
    """Return how much of the spread of scores remains after adjusting for utility."""
    adjusted = utility_adjusted(points)
    if "reason" in adjusted:
        text = f"Whether the spread is more than one of utility is not known: {adjusted['reason']}."
        return paragraph(text, css="soft")
    rows: list[list[Cell]] = [
        ["Standard deviation over configurations", adjusted["score_std"], None, None],
        [
            "The same, adjusted for utility",
            adjusted["adjusted_std"],
            *(adjusted["interval"] or (None, None)),
        ],
        [
            "Share of the variance that utility leaves",
            adjusted["share_remaining"],
            *(adjusted["share_interval"] or (None, None)),
        ],
    ]
    return table("Is it more than utility?", ["Figure", "Value", "95 % from", "to"], rows)


def regression_tables(points: pd.DataFrame) -> list[str]:
    """Return the tables of both regressions."""
    parts = []
    for name, fit in regress(points).items():
        if "reason" in fit:
            parts.append(
                paragraph(f"The {name} regression is undefined: {fit['reason']}.", css="soft")
            )
            continue
        rows: list[list[Cell]] = [
            [term, one["coef"], one["std_error"], one["t"], one["p"]]
            for term, one in fit["terms"].items()
        ]
        caption = f"Score on {name} hyperparameters: {fit['n']} rows, R² = {fit['r_squared']:.3f}"
        parts.append(table(caption, ["Term", "Coefficient", "Std. error", "t", "p"], rows))
    return parts


REPORT = ReportSections(figures_fn=figures, parts_fn=parts)

"""Hyperparameter importance, and effects with the others fixed (Hu et al. 2025, Fig. 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from raydp.analysis.figures.style import INK, MARGIN, SEQUENCE, blank, plain, quiet_axes
from raydp.extensions.hyperparameters.effects import (
    MOVING,
    SERIES,
    Effect,
    Series,
    hyperparameter_effects,
    moving_value,
)
from raydp.extensions.hyperparameters.importance import hyperparameter_importance
from raydp.search_spaces.settings import short_names, value_in_words

_PANELS = {
    "batch_size": ("b", "T, η fixed"),
    "num_steps": ("T", "b, η fixed"),
    "learning_rate": ("η", "b, T fixed"),
    "compute": ("b", "C, η fixed"),
    "updates": ("η", "U fixed"),
}
_SYMBOLS = {name: symbol for name, (symbol, _) in _PANELS.items()}
MOST_FIELDS = 3
"""The largest number of further fields that have a panel of their own."""
_Figure = Literal["score", "utility_loss"]
_ROWS: tuple[tuple[_Figure, str, str], ...] = (
    ("score", "Score", SEQUENCE[1]),
    ("utility_loss", "Utility loss", SEQUENCE[0]),
)
MOST_SERIES = 40
"""The largest number of lines in a panel. The series with the most points are drawn."""


def effect_lines(points: pd.DataFrame) -> go.Figure:
    """Plot mean score and mean utility loss along series that vary one hyperparameter.

    Args:
        points: a points table.

    Returns:
        Five columns: batch size, steps and learning rate with the other two fixed, batch size at
        fixed compute, learning rate at fixed updates; and one for each further field that varies,
        with everything else fixed, of at most 3. Each series is one thin line. A panel without
        series shows "none".

    Raises:
        ValueError: as `configuration_means`.
    """
    effects = hyperparameter_effects(points)
    panels = _panels(effects)
    titles = [f"{symbol} ({fixed})" if fixed else symbol for symbol, fixed in panels.values()]
    # One column a panel, one row a figure. Shared axes let a reader compare slopes between panels.
    figure = make_subplots(
        rows=2,
        cols=len(panels),
        shared_xaxes=True,
        shared_yaxes=True,
        subplot_titles=titles,
        horizontal_spacing=0.02,
        vertical_spacing=0.06,
    )
    figure.update_layout(
        template="none", font_color=INK, margin=MARGIN | {"t": 28}, hovermode="closest"
    )
    figure.update_layout(showlegend=False)
    figure.update_annotations(font_size=13)
    for column, (name, (symbol, _)) in enumerate(panels.items(), start=1):
        moving = MOVING.get(name, name)
        # The longest series show a trend best.
        series = sorted(effects[name]["series"], key=lambda one: -len(one["points"]))[:MOST_SERIES]
        for row, (figure_name, label, colour) in enumerate(_ROWS, start=1):
            for one in series:
                figure.add_trace(
                    _line(one, moving, figure_name, label, colour), row=row, col=column
                )
            # A panel without series keeps its place, so that columns mean the same in every figure.
            if not series:
                empty = go.Scatter(x=[1], y=[None], mode="text", text=["none"], hoverinfo="skip")
                figure.add_trace(empty, row=row, col=column)
        axis = _axis(series, moving) if series else {"visible": False}
        figure.update_xaxes(col=column, **axis)
        figure.update_xaxes(title_text=symbol, row=2, col=column)
    for row, (_, label, _) in enumerate(_ROWS, start=1):
        figure.update_yaxes(title_text=label, row=row, col=1)
    return quiet_axes(figure)


def importance_bars(points: pd.DataFrame) -> go.Figure:
    """Plot the importance of b, T, η and further fields for mean score and mean utility loss.

    Args:
        points: a points table.

    Raises:
        ValueError: as `hyperparameter_importance`.

    Source: Hutter, Hoos and Leyton-Brown 2014.
    """
    importance = hyperparameter_importance(points)
    figure = blank(
        xaxis_title_text="Importance", xaxis_tickformat=".0%", barmode="group", bargap=0.4
    )
    # Both figures list the same hyperparameters: take the names from one that has shares.
    shown = next(
        (
            shares
            for shares in (importance["score"], importance["utility_loss"])
            if shares is not None
        ),
        {},
    )
    names = [*reversed(list(shown) or ["batch_size", "num_steps", "learning_rate"])]
    texts = {**short_names([name for name in names if name not in _PANELS]), **_SYMBOLS}
    # plotly stacks horizontal bars upwards. Reversed rows and names read downwards.
    for figure_name, label, colour in reversed(_ROWS):
        shares = importance[figure_name]
        figure.add_trace(
            go.Bar(
                y=[texts[name] for name in names],
                x=[0.0 if shares is None else shares[name] for name in names],
                orientation="h",
                name=label,
                texttemplate="%{x:.0%}",
                textposition="outside",
                cliponaxis=False,
                marker_color=colour,
                hovertemplate=f"%{{y}}: %{{x:.1%}}<extra>{label.lower()}</extra>",
            )
        )
    # An importance is at most 1. The rest is room for the texts beside the bars.
    figure.update_xaxes(range=[0, 1.08])
    figure.update_layout(legend_traceorder="reversed")
    return quiet_axes(figure)


def _panels(effects: dict[str, Effect]) -> dict[str, tuple[str, str]]:
    """Return the panels: kind of series -> its symbol, and what is fixed (empty: all the rest)."""
    fields = [name for name in effects if name not in SERIES][:MOST_FIELDS]
    return {**_PANELS, **{path: (name, "") for path, name in short_names(fields).items()}}


def _line(series: Series, moving: str, figure_name: _Figure, label: str, colour: str) -> go.Scatter:
    fixed = ", ".join(f"{name} {value_in_words(value)}" for name, value in series["fixed"].items())
    return go.Scatter(
        x=_values(series, moving),
        y=[one[figure_name] for one in series["points"]],
        mode="lines+markers",
        line={"color": colour, "width": 1.2},
        marker={"size": 5},
        opacity=0.75,
        hovertemplate=f"{plain(moving)} %{{x}}<br>{label.lower()} %{{y:.4g}}<extra>{plain(fixed)}</extra>",
    )


def _values(series: Series, moving: str) -> list[float | str]:
    """Return what moves along a series: positive numbers, or texts for other values."""
    values = [moving_value(one, moving) for one in series["points"]]
    return [
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        else value_in_words(value)
        for value in values
    ]


def _axis(series: Sequence[Series], moving: str) -> dict[str, object]:
    """Return a logarithmic axis of positive numbers, or an axis of texts.

    Its ticks are the numbers that occur if there are at most five, else about four chosen by
    plotly.
    """
    occurring = [value for one in series for value in _values(one, moving)]
    if any(isinstance(value, str) for value in occurring):
        return {"type": "category"}
    values = np.unique(occurring)
    # More ticks would overlap in a narrow panel.
    if len(values) > 5:
        return {"type": "log", "nticks": 4}
    return {
        "type": "log",
        "tickvals": values.tolist(),
        "ticktext": [f"{value:g}" for value in values],
    }

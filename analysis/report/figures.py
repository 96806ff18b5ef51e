"""The figure of the report, as plain data for plotly.js."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.tables.points import configurations
from analysis.tables.utility_filter import within
from search_spaces.configuration import Configuration

# Rings of growing size stay visible where rules agree; hues keep apart for colour-blind readers (Okabe and Ito).
_RINGS = (("circle-open", 15, "#d55e00"), ("square-open", 20, "#009e73"), ("diamond-open", 26, "#cc79a7"))
_POINT, _EXCLUDED = "#3b82c4", "#9aa3ad"


def score_against_utility(
    means: pd.DataFrame, marks: Mapping[str, Configuration], *, max_loss: float | None = None
) -> dict[str, Any]:
    """Scatter of the mean score (y) against the mean utility loss (x), one point per configuration.

    Args:
        means: configuration means.
        marks: label -> configuration to ring; at most three.
        max_loss: the utility threshold, drawn as a dashed line; points beyond it are grey.

    Returns:
        {"data", "layout"}; error bars are one standard deviation over seeds, absent with one seed.
    """
    allowed = np.ones(len(means), dtype=np.bool_)
    if max_loss is not None:
        allowed = within(means["utility_loss"].to_numpy(), np.full(len(means), max_loss))
    figure = go.Figure(layout={"template": None})
    groups = [("Configuration", _POINT, allowed), ("Above the threshold", _EXCLUDED, ~allowed)]
    for name, colour, rows in groups:
        if rows.any():
            figure.add_trace(_points(means[rows], name, colour))
    listed = configurations(means)
    for (label, configuration), (symbol, size, colour) in zip(marks.items(), _RINGS, strict=False):
        row = means.iloc[[listed.index(configuration)]]
        marker = {"symbol": symbol, "size": size, "color": colour, "line": {"width": 2.5}}
        figure.add_trace(
            go.Scatter(
                x=row["utility_loss"].tolist(),
                y=row["score"].tolist(),
                mode="markers",
                name=label,
                marker=marker,
                hoverinfo="skip",
            )
        )
    if max_loss is not None:
        figure.add_vline(x=max_loss, line={"dash": "dash", "width": 1.5, "color": _EXCLUDED})
    figure.update_layout(
        xaxis={"title": {"text": "Utility loss (lower is better)"}, "zeroline": False, "automargin": True},
        yaxis={"title": {"text": "Score (higher leaks more)"}, "zeroline": False, "automargin": True},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        hovermode="closest",
    )
    described: dict[str, Any] = figure.to_plotly_json()
    return described


def _points(rows: pd.DataFrame, name: str, colour: str) -> go.Scatter:
    """Configurations with their error bars and hover."""
    text = [
        f"b = {c.batch_size}, T = {c.num_steps}, η = {c.learning_rate:g}<br>C = {c.compute}, U = {float(c.updates):g}"
        for c in configurations(rows)
    ]
    return go.Scatter(
        x=rows["utility_loss"].tolist(),
        y=rows["score"].tolist(),
        error_x=_error_bars(rows["utility_loss_std"], colour),
        error_y=_error_bars(rows["score_std"], colour),
        mode="markers",
        name=name,
        marker={"size": 7, "color": colour},
        customdata=rows["num_seeds"].tolist(),
        text=text,
        hovertemplate="%{text}<br>utility loss %{x:.4f}<br>score %{y:.4g}<br>seeds %{customdata}<extra></extra>",
    )


def _error_bars(std: pd.Series, colour: str) -> dict[str, Any]:
    """One standard deviation; none where it is undefined."""
    return {"type": "data", "array": std.fillna(0).tolist(), "color": colour, "thickness": 1, "width": 0}

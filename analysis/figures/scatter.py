"""Score against utility, and each rule's selections (Hu et al. 2025, Fig. 9 and 20)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from raydp.analysis.figures.style import (
    LINE,
    LOSS,
    POINT,
    SCORE,
    blank,
    describe,
    drawn_positions,
    mark_of,
    quiet_axes,
)
from raydp.analysis.selection.by_threshold import (
    Pool,
    SelectionsByThreshold,
    selections_by_threshold,
)
from raydp.analysis.selection.constraints import Constraints
from raydp.analysis.tables.points import configurations


def score_against_utility(
    points: pd.DataFrame | SelectionsByThreshold, *, constraints: Constraints | None = None
) -> go.Figure:
    """Plot the mean score (y) against the mean utility loss (x), one point per configuration.

    Args:
        points: a points table, or the result of `selections_by_threshold` for one.
        constraints: configurations that violate the constraints are grey; the utility threshold is
            a dashed line.

    Returns:
        The traces "Configuration" and "Excluded", with error bars of one standard deviation over
        seeds. Each trace has a y value only for its own points. One ring per rule marks the
        configuration that the rule selects.

    Raises:
        ValueError: as `selections_by_threshold`.

    Source: Hu et al. 2025, Fig. 9.
    """
    # The page computes the selections once, for all its figures.
    selections = (
        points
        if isinstance(points, SelectionsByThreshold)
        else selections_by_threshold(points, constraints)
    )
    figure = blank(xaxis_title_text=LOSS, yaxis_title_text=SCORE)
    shown = drawn_rows(selections)
    means, passed = selections.means.iloc[shown], selections.passed[shown]
    # Both traces hold all configurations, so that the page's slider can move points between them.
    for name, opacity, member in (("Configuration", 1.0, passed), ("Excluded", 0.4, ~passed)):
        figure.add_trace(_points(means, member, name, opacity))
    # The rings differ in size, so that all stay visible where rules agree.
    for rule, position in selections.start.items():
        symbol, size, colour = mark_of(rule)
        row = selections.means.iloc[position]
        figure.add_trace(
            go.Scatter(
                x=[float(row["utility_loss"])],
                y=[float(row["score"])],
                mode="markers",
                name=rule,
                marker={"symbol": symbol, "size": size, "color": colour, "line": {"width": 2.5}},
                hoverinfo="skip",
            )
        )
    # Where nothing is excluded, the threshold divides nothing.
    if not selections.passed.all():
        figure.add_vline(x=selections.threshold, line={"dash": "dash", "width": 1.5, "color": LINE})
    return quiet_axes(figure)


def score_along_thresholds(
    points: pd.DataFrame | SelectionsByThreshold, *, constraints: Constraints | None = None
) -> go.Figure:
    """Plot the score of each rule's selection (y) at each utility threshold (x), one line per rule.

    Args:
        points, constraints: as for `score_against_utility`; the oracle's line is the Pareto front.

    Raises:
        ValueError: as `selections_by_threshold`.

    Source: Hu et al. 2025, Fig. 20 (b).
    """
    selections = (
        points
        if isinstance(points, SelectionsByThreshold)
        else selections_by_threshold(points, constraints)
    )
    score = selections.means["score"].to_numpy()
    figure = blank(
        xaxis_title_text="Utility threshold u", yaxis_title_text="Score of what is selected"
    )
    # The oracle is drawn first: its band lies behind the other rules' lines.
    for rule, positions in sorted(selections.selected.items(), key=lambda one: one[0] != "oracle"):
        figure.add_trace(
            go.Scatter(
                x=selections.thresholds.tolist(),
                y=score[positions].tolist(),
                mode="lines",
                name=rule,
                line={"color": mark_of(rule)[2], "width": 2, "shape": "hv"} | _wide(rule),
                opacity=0.45 if rule == "oracle" else 1,
                hovertemplate=f"{rule}: %{{y:.4g}}<extra></extra>",
            )
        )
    figure.update_layout(hovermode="x unified")
    return quiet_axes(figure)


def drawn_rows(selections: SelectionsByThreshold) -> NDArray[np.intp]:
    """Return the positions that the scatter draws: a thinned set, and all that a rule selects."""
    selected = [
        *selections.selected.values(),
        np.array(list(selections.start.values()), dtype=np.intp),
    ]
    return np.unique(np.concatenate([drawn_positions(selections.means), *selected]))


def _wide(rule: str) -> dict[str, int]:
    """Return a wide line for the oracle, which becomes a band behind the other rules' lines."""
    return {"width": 8} if rule == "oracle" else {}


def _points(rows: pd.DataFrame, member: Pool, name: str, opacity: float) -> go.Scatter:
    """Return the trace of one kind of configurations, with error bars and hover text."""
    return go.Scatter(
        x=rows["utility_loss"].tolist(),
        y=[
            score if inside else None
            for score, inside in zip(rows["score"].tolist(), member, strict=True)
        ],
        error_x=_error_bars(rows["utility_loss_std"]),
        error_y=_error_bars(rows["score_std"]),
        mode="markers",
        name=name,
        marker={"size": 7, "color": POINT},
        opacity=opacity,
        customdata=rows["num_seeds"].tolist(),
        text=[describe(c) for c in configurations(rows)],
        hovertemplate="%{text}<br>utility loss %{x:.4f}<br>score %{y:.4g}<br>seeds %{customdata}<extra></extra>",
    )


def _error_bars(std: pd.Series) -> dict[str, object]:
    """Return error bars of one standard deviation, or of length 0 where it is undefined."""
    return {
        "type": "data",
        "array": std.fillna(0).tolist(),
        "color": POINT,
        "thickness": 1,
        "width": 0,
    }

"""Score against utility, and each rule's selections (Hu et al. 2025, Fig. 9 and 20)."""

from __future__ import annotations

from collections.abc import Mapping

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
    points: pd.DataFrame | SelectionsByThreshold,
    *,
    constraints: Constraints | None = None,
    labels: Mapping[str, int | None] | None = None,
) -> go.Figure:
    """Plot the mean score (y) against the mean utility loss (x), one point per configuration.

    Args:
        points: a points table, or the result of `selections_by_threshold` for one.
        constraints: configurations that violate the constraints are grey; the utility threshold is
            a dashed line.
        labels: label -> position of the configuration beside whose point the label stands, in the
            place of the rules' marks. None where there is no such configuration.

    Returns:
        The traces "Configuration" and "Excluded", with error bars of one standard deviation over
        seeds. Each trace has a y value only for its own points. A mark shows what a rule selects;
        rules that select the same configuration share one mark.

    Raises:
        ValueError: as `selections_by_threshold`.

    Source: Hu et al. 2025, Fig. 9.
    """
    selections = _selections(points, constraints)
    figure = blank(xaxis_title_text=LOSS, yaxis_title_text=SCORE)
    shown = drawn_rows(selections)
    means, passed = selections.means.iloc[shown], selections.passed[shown]
    # Both traces hold all configurations, so that the page's slider can move points between them.
    for name, opacity, member in (("Configuration", 1.0, passed), ("Excluded", 0.4, ~passed)):
        figure.add_trace(_points(means, member, name, opacity))
    marks = selections.start if labels is None else labels
    for name, position in marks.items():
        # Names of one configuration share the mark of the first.
        names = [other for other, at in marks.items() if at == position]
        first = [] if position is None or names[0] != name else [position]
        figure.add_trace(_mark(selections.means.iloc[first], names if first else [name]))
    # Where nothing is excluded, the threshold divides nothing.
    if not selections.passed.all():
        figure.add_vline(x=selections.threshold, line={"dash": "dash", "width": 1.5, "color": LINE})
    figure.update_layout(showlegend=False, margin_t=24)
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
    selections = _selections(points, constraints)
    score = selections.means["score"].to_numpy()
    figure = blank(
        xaxis_title_text="Utility threshold u", yaxis_title_text="Score of what is selected"
    )
    # The oracle is drawn first, as a wide band that lies behind the other rules' lines.
    for rule, positions in sorted(selections.selected.items(), key=lambda one: one[0] != "oracle"):
        band = rule == "oracle"
        figure.add_trace(
            go.Scatter(
                x=selections.thresholds.tolist(),
                y=score[positions].tolist(),
                mode="lines",
                name=rule,
                line={"color": mark_of(rule)[2], "width": 8 if band else 2, "shape": "hv"},
                opacity=0.45 if band else 1,
                hovertemplate=f"{rule}: %{{y:.4g}}<extra></extra>",
            )
        )
    figure.update_layout(hovermode="x unified")
    return quiet_axes(figure)


def _selections(
    points: pd.DataFrame | SelectionsByThreshold, constraints: Constraints | None
) -> SelectionsByThreshold:
    """Return the selections of a table; a page computes them once, for all its figures."""
    if isinstance(points, SelectionsByThreshold):
        return points
    return selections_by_threshold(points, constraints)


def drawn_rows(selections: SelectionsByThreshold) -> NDArray[np.intp]:
    """Return the positions that the scatter draws: a thinned set, and all that a rule selects."""
    selected = [
        *selections.selected.values(),
        np.array(list(selections.start.values()), dtype=np.intp),
    ]
    return np.unique(np.concatenate([drawn_positions(selections.means), *selected]))


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


def _mark(rows: pd.DataFrame, names: list[str]) -> go.Scatter:
    """Return the mark of one configuration with its names, or the empty place of a mark."""
    symbol, size, colour = mark_of(names[0])
    return go.Scatter(
        x=rows["utility_loss"].tolist(),
        y=rows["score"].tolist(),
        mode="markers+text",
        name=names[0],
        text=[", ".join(names)],
        # The runner-up is often close to the selected one.
        textposition="bottom center" if names[0] == "runner-up" else "top center",
        textfont={"color": colour, "size": 13},
        cliponaxis=False,
        marker={
            "symbol": symbol,
            "size": size,
            "color": colour,
            "line": {"width": 2.5 * ("open" in symbol)},
        },
        hoverinfo="skip",
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

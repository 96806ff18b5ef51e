"""The hyperparameter cube in log space, coloured by the score (Hu et al. 2025, Fig. 8)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.figures.style import EXPONENT, GRID_3D, SCORE, blank, describe, drawn_positions
from analysis.tables.points import configuration_means, configurations
from analysis.tables.thinning import evenly

_AXES = {"batch_size": "b", "num_steps": "T", "learning_rate": "η"}
_MOST_TICKS = 8


def hyperparameter_cube(points: pd.DataFrame) -> go.Figure:
    """Plot every configuration at (log b, log T, log η), coloured by its mean score.

    Args:
        points: a points table.

    Returns:
        One trace. On a plane of equal η the anti-diagonals hold configurations of equal compute C = b·T; planes of
        equal ln b + ln T + ln η hold those of equal updates U = C·η.

    Raises:
        ValueError: as `configuration_means`.
    """
    means = configuration_means(points)
    means = means.iloc[drawn_positions(means)]
    figure = blank()
    score = means["score"].tolist()
    figure.add_trace(
        go.Scatter3d(
            **{axis: means[name].tolist() for axis, name in zip("xyz", _AXES, strict=True)},
            mode="markers",
            marker={
                "size": 6,
                "color": score,
                "colorscale": "Viridis",
                "colorbar": {
                    "title": {"text": SCORE, "side": "right"},
                    "thickness": 14,
                    "outlinewidth": 0,
                    "exponentformat": EXPONENT,
                },
                "line": {"width": 0.5, "color": GRID_3D},
            },
            customdata=means["utility_loss"].tolist(),
            text=[describe(c) for c in configurations(means)],
            hovertemplate="%{text}<br>score %{marker.color:.4g}<br>utility loss %{customdata:.4f}<extra></extra>",
            showlegend=False,
        )
    )
    figure.update_layout(
        scene={f"{axis}axis": _log_axis(means[name]) for axis, name in zip("xyz", _AXES, strict=True)}
        | {"camera": {"eye": {"x": 1.75, "y": -2.0, "z": 1.0}}, "aspectmode": "cube"}
    )
    return figure


def _log_axis(values: pd.Series) -> dict[str, object]:
    """Return a logarithmic axis whose ticks are values that occur."""
    ticks = np.unique(values.to_numpy(dtype=np.float64))
    ticks = ticks[evenly(len(ticks), _MOST_TICKS)]
    return {
        "title": {"text": _AXES[str(values.name)]},
        "type": "log",
        "tickvals": ticks.tolist(),
        "ticktext": [f"{tick:g}" for tick in ticks],
        "gridcolor": GRID_3D,
        "linecolor": GRID_3D,
        "showline": True,
        "zeroline": False,
        "showbackground": False,
    }

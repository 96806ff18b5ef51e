"""Figures of several tables: mean scores by group, and scores against utility."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from raydp.analysis.figures.groups import strips
from raydp.analysis.figures.style import (
    LOSS,
    SCORE,
    blank,
    describe,
    drawn_positions,
    group_mark,
    plain,
    quiet_axes,
)
from raydp.analysis.statistics.variance import score_variance
from raydp.analysis.tables.points import configuration_means, configurations


def variance_by_group(groups: Mapping[str, pd.DataFrame]) -> go.Figure:
    """Plot the configurations' mean scores: a column of points per group, its std above.

    Args:
        groups: name -> points table.

    Raises:
        ValueError: as `configuration_means`.

    Source: Hu et al. 2025, Fig. 2, 3 and 14 to 18.
    """
    means = {name: configuration_means(points) for name, points in groups.items()}
    spreads = {name: score_variance(points)["score_std"] for name, points in groups.items()}
    return strips(means, spreads)


def scores_against_utility(groups: Mapping[str, pd.DataFrame]) -> go.Figure:
    """Plot mean score against mean utility loss, all groups in one figure.

    Args:
        groups: name -> points table.

    Raises:
        ValueError: as `configuration_means`.
    """
    figure = blank(xaxis_title_text=LOSS, yaxis_title_text=SCORE)
    for place, (name, points) in enumerate(groups.items()):
        means = configuration_means(points)
        some = means.iloc[drawn_positions(means)]
        figure.add_trace(
            go.Scatter(
                x=some["utility_loss"].tolist(),
                y=some["score"].tolist(),
                mode="markers",
                name=plain(name),
                marker={"size": 8, "opacity": 0.8, **group_mark(place)},
                text=[describe(c) for c in configurations(some)],
                hovertemplate="%{text}<br>utility loss %{x:.4f}<br>score %{y:.4g}<extra>"
                + plain(name)
                + "</extra>",
            )
        )
    return quiet_axes(figure)

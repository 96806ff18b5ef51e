"""The training loss of single runs, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.colors import sample_colorscale

from raydp.analysis.figures.style import blank, quiet_axes
from raydp.analysis.tables.thinning import evenly

MOST_CURVES = 60
"""The largest number of runs that the figure draws."""
_MOST_STEPS = 60
_HALF_LIFE = 0.05
"""Share of the steps after which a loss has half its weight in the drawn mean."""


class Curve(NamedTuple):
    """One run.

    Attributes:
        name: configuration and seed.
        score: the run's score, which gives the line its colour.
        steps: [k] steps, ascending from 0.
        losses: [k] mean loss of the examples that were drawn for each step.
        heldout: (steps done, loss on held-out data) of each evaluation.
    """

    name: str
    score: float
    steps: Sequence[int]
    losses: Sequence[float]
    heldout: Sequence[tuple[int, float]] = ()


def training_curves(curves: Sequence[Curve]) -> go.Figure:
    """Plot the training loss of runs against their steps. Dark lines leak least, yellow lines most.

    The losses are of small random batches. The lines are exponentially weighted means of them. Dots
    are losses on held-out data.

    Args:
        curves: at most `MOST_CURVES` runs are drawn, evenly by score, with at most 60 steps each.
    """
    figure = blank(xaxis_title_text="Step", yaxis_title_text="Training loss", showlegend=False)
    # The thinned set keeps the lowest and the highest score, so the colours span the whole range.
    drawn = sorted((curve for curve in curves if len(curve.losses)), key=lambda curve: curve.score)
    drawn = [drawn[at] for at in evenly(len(drawn), MOST_CURVES)] if drawn else []
    for place, curve in enumerate(drawn):
        # Losses of single batches are too noisy to read: draw their weighted mean, on fewer steps.
        kept = evenly(len(curve.losses), _MOST_STEPS)
        colour = sample_colorscale("Viridis", place / max(1, len(drawn) - 1))[0]
        text = f"{curve.name}, score {curve.score:.4g}<br>step %{{x}}"
        # Four digits are finer than a pixel, and keep the page's file small.
        figure.add_trace(
            go.Scatter(
                x=[int(curve.steps[at]) for at in kept],
                y=[float(f"{value:.4g}") for value in _smoothed(curve.losses)[kept]],
                mode="lines",
                line={"width": 1.2, "color": colour},
                hovertemplate=f"{text}, loss %{{y:.4g}}<extra></extra>",
            )
        )
        # Held-out losses are means over a fixed set. They need no smoothing, so they are dots.
        if curve.heldout:
            figure.add_trace(
                go.Scatter(
                    x=[step for step, _ in curve.heldout],
                    y=[float(f"{loss:.4g}") for _, loss in curve.heldout],
                    mode="markers",
                    marker={"size": 5, "color": colour},
                    hovertemplate=f"{text}, held-out loss %{{y:.4g}}<extra></extra>",
                )
            )
    return quiet_axes(figure)


def _smoothed(losses: Sequence[float]) -> NDArray[np.float64]:
    """Return the exponentially weighted mean up to each step, shape [k]."""
    half_life = max(1.0, _HALF_LIFE * len(losses))
    return pd.Series(losses, dtype=np.float64).ewm(halflife=half_life).mean().to_numpy()

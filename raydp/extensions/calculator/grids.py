"""Privacy profiles of configurations, a panel per accountant (Hu et al. 2025, Fig. 11, 26-28)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from raydp.analysis.figures.style import INK, plain, quiet_axes
from raydp.analysis.report.markup import page, plot, section, table

NAMED_CURVES = 8
"""The largest number of curves with a legend. Table and hover text always name the curves."""
SHADES = (0.2, 0.85)
"""The part of the colour scale that is visible on dark and on white pages."""


@dataclass(frozen=True, kw_only=True)
class ProfileCurve:
    """The profile of one configuration.

    Attributes:
        label: name of the configuration.
        noise_multiplier: σ of the curve; None if the accountant has none.
        points: (δ, ε) pairs. ε is None where it is unknown.
    """

    label: str
    noise_multiplier: float | None
    points: Sequence[tuple[float, float | None]]


def write_profile_grid(
    panels: Mapping[str, Sequence[ProfileCurve]],
    path: str | Path,
    *,
    title: str,
    target: tuple[float, float] | None = None,
) -> None:
    """Write a self-contained page with one panel per accountant.

    Args:
        panels: accountant -> its curves, at least one. All panels hold the same configurations in
            the same order.
        path: path of the HTML file.
        title: title of the page.
        target: the (δ, ε) that all curves are calibrated to; it is marked in the figure.

    Raises:
        ValueError: no panel, or a panel without curves.
    """
    if not panels or not all(panels.values()):
        raise ValueError(
            "panels must hold at least one profile each, got none. Add a configuration."
        )
    meeting = " The diamond is the (ε, δ) that all are calibrated to." if target else ""
    body = [
        f"<h1>{escape(title)}</h1>",
        section(
            "Privacy profiles",
            plot(
                "profiles",
                "Upper bounds on epsilon against delta, one picture per accountant, one line per "
                "configuration. The tables below hold the figures.",
                "Each line is one configuration's guarantee at every δ, darker for less "
                f"noise.{meeting}",
            ),
            *(_table(name, curves) for name, curves in panels.items()),
        ),
    ]
    Path(path).write_text(
        page(title, body, {"profiles": _figure(panels, target)}), encoding="utf-8"
    )


def _table(name: str, curves: Sequence[ProfileCurve]) -> str:
    deltas = sorted({delta for curve in curves for delta, _ in curve.points}, reverse=True)
    rows = [
        [curve.label, curve.noise_multiplier, *(dict(curve.points).get(delta) for delta in deltas)]
        for curve in curves
    ]
    return table(
        f"ε at each δ, {name}", ["configuration", "σ", *(f"{delta:.3g}" for delta in deltas)], rows
    )


def _figure(
    panels: Mapping[str, Sequence[ProfileCurve]], target: tuple[float, float] | None
) -> go.Figure:
    figure = make_subplots(
        rows=1,
        cols=len(panels),
        shared_yaxes=True,
        subplot_titles=[plain(name) for name in panels],
        horizontal_spacing=0.07,
    )
    figure.update_layout(template="none", font_color=INK)
    # One line per configuration in each panel, and the target.
    # All panels hold the same configurations, so the first panel's colours serve all.
    colours = _colours(next(iter(panels.values())))
    for column, (name, curves) in enumerate(panels.items(), start=1):
        for position, curve in enumerate(curves):
            # An accountant may know no bound at some δ.
            points = sorted(
                (delta, epsilon) for delta, epsilon in curve.points if epsilon is not None
            )
            sigma = "" if curve.noise_multiplier is None else f"<br>σ {curve.noise_multiplier:.4g}"
            hover = f"{plain(curve.label)}{sigma}<br>δ %{{x:.3g}}<br>ε %{{y:.4g}}<extra>{plain(name)}</extra>"
            line = go.Scatter(
                x=[delta for delta, _ in points],
                y=[epsilon for _, epsilon in points],
                mode="lines",
                name=plain(curve.label),
                # One legend entry stands for a configuration's curves in all panels.
                legendgroup=curve.label,
                showlegend=column == 1 and len(curves) <= NAMED_CURVES,
                line={"color": colours[position], "width": 1.8},
                hovertemplate=hover,
            )
            figure.add_trace(line, row=1, col=column)
        if target is not None:
            mark = {"symbol": "diamond-open", "size": 12, "color": "#d55e00", "line": {"width": 2}}
            at = {
                "x": [target[0]],
                "y": [target[1]],
                "hovertemplate": "target δ %{x:.3g}, ε %{y:.4g}<extra></extra>",
            }
            figure.add_trace(
                go.Scatter(**at, mode="markers", marker=mark, showlegend=False), row=1, col=column
            )
    # Axes and legend.
    quiet_axes(figure)
    figure.update_xaxes(
        title_text="δ", type="log", exponentformat="power", dtick=2, tickfont_size=11
    )
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(title_text="ε", col=1)
    figure.update_layout(
        legend={"orientation": "h", "x": 0, "y": -0.25, "yanchor": "top"},
        margin={"l": 8, "r": 8, "t": 32, "b": 8},
    )
    return figure


def _colours(curves: Sequence[ProfileCurve]) -> list[str]:
    """Return one colour per curve, by growing σ. The scale is even for colour-blind readers."""
    order = sorted(range(len(curves)), key=lambda i: (curves[i].noise_multiplier or 0.0, i))
    low, high = SHADES
    places = [low + (high - low) * k / max(1, len(curves) - 1) for k in range(len(curves))]
    shades = sample_colorscale("Viridis", places)
    return [shade for _, shade in sorted(zip(order, shades, strict=True))]

"""What all figures share: colours that colour-blind readers can tell apart, marks of the rules, layout."""

from __future__ import annotations

from html import escape

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from analysis.tables.thinning import evenly
from search_spaces.configuration import Configuration

INK = "#1c2128"
POINT, LINE = "#6b7c93", "#8a939c"
SEQUENCE = ("#2b83c6", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7a5ba6")
"""After Okabe and Ito 2008, the blue bright enough for dark pages, and two more for many groups."""
SYMBOLS = ("circle", "diamond", "square", "triangle-up")
"""Where there are more groups than colours, these tell them apart."""
MARKS = {
    "checked-procedure": ("cross-open", 12, "#7a5ba6"),
    "procedure": ("circle-open", 15, "#d55e00"),
    "best-utility": ("square-open", 19, "#009e73"),
    "worst-utility": ("triangle-up-open", 21, "#e69f00"),
    "oracle": ("diamond-open", 24, "#cc79a7"),
    "pareto-knee": ("pentagon-open", 27, "#2b83c6"),
    "predicted-score": ("hexagon-open", 31, "#56b4e9"),
}
"""Symbol, size in pixels and colour of each rule; rings of growing size stay visible where rules agree."""
_OTHER_MARK = ("star-open", 35, "#8c6d31")
MARGIN = {"l": 8, "r": 8, "t": 8, "b": 8}
LEGEND_ABOVE = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
GRID = "rgba(128, 128, 128, 0.3)"
GRID_3D = "#9aa3ad"
"""Both are seen on dark and on white pages; a third dimension has no transparent lines."""
EXPONENT = "e"
"""1e-6 on axes and colour bars; plotly's own default writes 1μ and 500n."""
MOST_POINTS = 5000
"""Of more configurations a figure draws as many."""
SCORE, LOSS = "Score (higher leaks more)", "Utility loss (lower is better)"


def group_mark(place: int) -> dict[str, object]:
    """Colour and symbol of a group's points by its place; 32 groups differ."""
    cycle, position = divmod(place, len(SEQUENCE))
    return {"color": SEQUENCE[position], "symbol": SYMBOLS[cycle % len(SYMBOLS)]}


def mark_of(rule: str) -> tuple[str, int, str]:
    """Symbol, size and colour of a rule, also of one that another package brings."""
    return MARKS.get(rule, _OTHER_MARK)


def blank(**layout: object) -> go.Figure:
    """A figure without data in the common style."""
    figure = go.Figure(layout={"template": "none"})
    figure.update_layout(legend=LEGEND_ABOVE, margin=MARGIN, hovermode="closest", font_color=INK)
    figure.update_layout(**layout)
    return figure


def quiet_axes(figure: go.Figure) -> go.Figure:
    """Grid lines that stay behind the data, labels that are never cut off, small numbers as 1e-6."""
    quiet = {"gridcolor": GRID, "linecolor": GRID, "zeroline": False, "automargin": True, "exponentformat": EXPONENT}
    figure.update_xaxes(quiet)
    figure.update_yaxes(quiet)
    return figure


def describe(configuration: Configuration) -> str:
    """A configuration for the box beside the pointer."""
    c = configuration
    name = f"b = {c.batch_size}, T = {c.num_steps}, η = {c.learning_rate:g}"
    return f"{name}<br>C = {c.compute}, U = {float(c.updates):g}"


def plain(text: str) -> str:
    """A text as plotly shows it letter by letter: it reads tags, and %{...} in boxes beside the pointer."""
    return escape(text).replace("%", "&#37;")


def drawn_positions(means: pd.DataFrame) -> NDArray[np.intp]:
    """[at most MOST_POINTS] positions of the configurations that a figure draws, ascending: all, or evenly over the
    losses, both ends among them."""
    if len(means) <= MOST_POINTS:
        return np.arange(len(means))
    order = np.argsort(means["utility_loss"].to_numpy(), kind="stable")
    return np.sort(order[evenly(len(means), MOST_POINTS)])

"""The common style of all figures: colours for colour-blind readers too, marks of rules, layout."""

from __future__ import annotations

from html import escape

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from raydp.analysis.tables.thinning import evenly
from raydp.search_spaces.configuration import Configuration
from raydp.search_spaces.settings import settings_in_words

INK = "#1c2128"
POINT, LINE = "#6b7c93", "#8a939c"
SEQUENCE = ("#2b83c6", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7a5ba6")
"""Colours after Okabe and Ito 2008, with a brighter blue for dark pages and two more colours."""
SYMBOLS = ("circle", "diamond", "square", "triangle-up")
"""Symbols that tell groups apart if there are more groups than colours."""
MARKS = {
    "informed": ("cross-open", 12, "#7a5ba6"),
    "procedure": ("circle-open", 15, "#d55e00"),
    "best-utility": ("square-open", 19, "#009e73"),
    "worst-utility": ("triangle-up-open", 21, "#e69f00"),
    "oracle": ("diamond-open", 24, "#cc79a7"),
    "pareto-knee": ("pentagon-open", 27, "#2b83c6"),
    "selected": ("circle", 14, "#d55e00"),
    "best utility": ("square", 12, "#009e73"),
    "runner-up": ("diamond", 13, "#2b83c6"),
}
"""Symbol, size in pixels, colour of the marks of rules, and of the labels of the report's chart."""
_OTHER_MARK = ("star-open", 35, "#8c6d31")
MARGIN = {"l": 8, "r": 8, "t": 8, "b": 8}
LEGEND_ABOVE = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
GRID = "rgba(128, 128, 128, 0.3)"
"""Grid colour that is visible on dark and on white pages."""
EXPONENT = "e"
"""Number format of axes and colour bars, such as 1e-6. Plotly's default writes 1μ and 500n."""
MOST_POINTS = 5000
"""The largest number of configurations that a figure draws."""
SCORE, LOSS = "Score (higher leaks more)", "Utility loss (lower is better)"


def group_mark(place: int) -> dict[str, object]:
    """Return the colour and symbol of the group at a position. The first 32 groups differ."""
    cycle, position = divmod(place, len(SEQUENCE))
    return {"color": SEQUENCE[position], "symbol": SYMBOLS[cycle % len(SYMBOLS)]}


def mark_of(rule: str) -> tuple[str, int, str]:
    """Return the symbol, size and colour of a rule or a label. Other packages' rules share one."""
    return MARKS.get(rule, _OTHER_MARK)


def blank(**layout: object) -> go.Figure:
    """Return a figure without data in the common style."""
    figure = go.Figure(layout={"template": "none"})
    figure.update_layout(legend=LEGEND_ABOVE, margin=MARGIN, hovermode="closest", font_color=INK)
    figure.update_layout(**layout)
    return figure


def quiet_axes(figure: go.Figure) -> go.Figure:
    """Put grid lines behind the data, never cut labels off, and write small numbers as 1e-6."""
    quiet = {
        "gridcolor": GRID,
        "linecolor": GRID,
        "zeroline": False,
        "automargin": True,
        "exponentformat": EXPONENT,
    }
    figure.update_xaxes(quiet)
    figure.update_yaxes(quiet)
    return figure


def describe(configuration: Configuration) -> str:
    """Return the hover text of a configuration."""
    c = configuration
    further = f", {settings_in_words(c.settings)}" if c.settings else ""
    name = plain(f"b = {c.batch_size}, T = {c.num_steps}, η = {c.learning_rate:g}{further}")
    return f"{name}<br>C = {c.compute}, U = {float(c.updates):g}"


def plain(text: str) -> str:
    """Escape a text so that plotly shows HTML tags and %{...} literally."""
    return escape(text).replace("%", "&#37;")


def drawn_positions(means: pd.DataFrame) -> NDArray[np.intp]:
    """Return the positions, ascending, of the configurations that a figure draws.

    Shape [at most MOST_POINTS]. If there are more configurations, they are thinned evenly by loss,
    keeping both ends.
    """
    if len(means) <= MOST_POINTS:
        return np.arange(len(means))
    # A stable order draws the same points on every call.
    order = np.argsort(means["utility_loss"].to_numpy(), kind="stable")
    return np.sort(order[evenly(len(means), MOST_POINTS)])

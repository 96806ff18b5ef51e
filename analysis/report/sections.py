"""Sections and figures that extensions add to the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from raydp.analysis.entry_points import entries


@dataclass(frozen=True, kw_only=True)
class ReportSections:
    """Parts that an extension adds to the report. An entry point of `raydp.report` names it:

        REPORT = ReportSections(figures_fn=figures, parts_fn=parts)

    Attributes:
        figures_fn: points table -> figures by name.
        parts_fn: points table -> heading -> parts in HTML, as `raydp.analysis.report.markup`
            makes them. `plot(name, ...)` is the place of a figure. Parts of a heading that the
            page has already come last in its section.
    """

    figures_fn: Callable[[pd.DataFrame], Mapping[str, go.Figure]]
    parts_fn: Callable[[pd.DataFrame], Mapping[str, Sequence[str]]]


def added_sections() -> list[ReportSections]:
    """Return what extensions add to the report, in the order of their names."""
    return [entry.load() for _, entry in sorted(entries("raydp.report").items())]

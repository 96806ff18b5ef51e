"""The points of several sources, and the page that compares them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from raydp.analysis import split_by
from raydp.extensions.comparison.page import write_comparison
from raydp.spec.sections import Bounds
from raydp.sweep.api import source_of
from raydp.sweep.planning.sources import named
from raydp.sweep.store.source import PointsSource

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from raydp.analysis.selection.own_rules import GivenRule

_NAMED = 4
"""Titles of pages name at most so many sources."""


def comparison(
    sources: list[str],
    output: Path,
    *,
    by: str | None = None,
    storage: str = "raydp_runs",
    score: str | None = None,
    worst_case: bool = False,
    rule: GivenRule | None = None,
    **bounds: Unpack[Bounds],
) -> Mapping[str, go.Figure]:
    """Write the comparison of several sweeps or tables, or of the groups of one table.

    Args:
        sources: points files, or sweeps by their folders or their names under storage.
        output: the HTML file. An existing file is replaced.
        by: the column that groups the rows of one table.
        storage, score, worst_case, rule, bounds: as in `raydp.select`, for each source.

    Returns:
        The figures of the comparison by name.

    Raises:
        ValueError: a source is a private selection, whose runs may not be compared.
    """
    opened = open_sources(sources, storage)
    # Refuse private selections before any table is read.
    for name, source in opened.items():
        if not source.shows_runs:
            raise ValueError(
                f"SWEEP must not be a private selection to be compared, got {name!r}. Leave it out."
            )
    tables = tables_of(opened, score=score, worst_case=worst_case, by=by)
    sources = list(opened)
    of_source = dict.fromkeys(tables, sources[0]) if by is not None else _by_short_name(sources)
    tables = dict(zip(of_source, tables.values(), strict=True))
    # Each source keeps its own rule and constraints, unless the user gives others.
    selections = {
        name: opened[of_source[name]].selections(
            table, [rule, "best-utility"], score=score, worst_case=worst_case, bounds=bounds
        )
        for name, table in tables.items()
    }
    names = ", ".join(tables) if len(tables) <= _NAMED else f"{len(tables)} sweeps"
    title = names if by is None else f"{Path(sources[0]).stem} by {by}"
    return write_comparison(tables, selections, output, title=title)


def _by_short_name(sources: list[str]) -> dict[str, str]:
    """Return the sources by the shortest ends of their paths that tell them apart."""
    parts = [Path(source.removesuffix(".csv").removesuffix(".parquet")).parts for source in sources]
    # Try the last part of each path, then the last two, and so on.
    for count in range(1, max(map(len, parts)) + 1):
        short = {
            "/".join(path[-count:]): source for path, source in zip(parts, sources, strict=True)
        }
        if len(short) == len(sources):
            return short
    return {source: source for source in sources}


def open_sources(sources: list[str], storage: str = "raydp_runs") -> dict[str, PointsSource]:
    """Return several sources by their names.

    Raises:
        ValueError: a source is named twice.
    """
    opened = {name: source_of(name, storage) for name in map(named, sources)}
    if len(opened) < len(sources):
        raise ValueError(
            f"POINTS must be named once each, got {', '.join(map(named, sources))}. Remove the "
            "repeated one."
        )
    return opened


def tables_of(
    sources: Mapping[str, PointsSource],
    *,
    score: str | None,
    worst_case: bool,
    by: str | None = None,
) -> dict[str, pd.DataFrame]:
    """Load the points of several sources, or of the groups of one table, by their names.

    `by` is the column whose values name the groups.

    Raises:
        ValueError: `by` is given with several sources.
    """
    if by is not None and len(sources) > 1:
        raise ValueError(
            f"--by must go with one table, got {len(sources)}. Leave it out: the tables are the "
            "groups."
        )
    tables = {
        name: source.points(score=score, worst_case=worst_case, by=by)
        for name, source in sources.items()
    }
    return tables if by is None else split_by(next(iter(tables.values())), by)


def classify(sources: Mapping[str, PointsSource]) -> bool:
    """Return whether a source is a sweep of classes, whose utility is no likelihood of text."""
    folders = [source.folder for source in sources.values() if source.folder is not None]
    return any(folder.spec().task.params.classifies for folder in folders)

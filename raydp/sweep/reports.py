"""Report and comparison pages of sweeps and points tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from raydp.analysis import select as select_from
from raydp.analysis import write_comparison, write_report
from raydp.analysis.selection.choice import steps_of
from raydp.spec.sections import Bounds, PrecisionArguments
from raydp.sweep.api import (
    folder_of,
    logarithmic_of,
    points_of,
    precision_of,
    require_comparable,
    rule_of,
    secrets_of,
    select,
    tables_of,
    with_given,
)
from raydp.sweep.ending.notes import ReportTexts, about
from raydp.sweep.ending.selected import of_sweep
from raydp.sweep.planning.sources import named

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from raydp.analysis import Selection


_NAMED = 4
"""Titles of pages name at most so many sources."""


def check_names(sources: Sequence[str], storage: str, *, rule: str | None, score: str | None) -> None:
    """Raise ValueError if no rule has the name, or a source has no score of the name."""
    if rule is not None:
        steps_of(rule)
    if score is not None:
        for source in sources:
            points_of(source, storage, score=score, scored=False)


def report(
    points: str | Path,
    output: str | Path,
    *,
    storage: str = "raydp_runs",
    score: str | None = None,
    worst_case: bool = False,
    rule: str | None = None,
    **bounds: Unpack[Bounds],
) -> Mapping[str, go.Figure]:
    """Write the report of a points table or a sweep. The report of a sweep says what its guarantee covers.

    Args:
        points: a points file, or a sweep by its folder or its name under storage.
        output: the HTML file. An existing file is replaced.
        storage, score, worst_case, rule, bounds: as in `raydp.select`.

    Returns:
        The figures of the report by name.
    """
    table, own = points_of(points, storage, score=score, worst_case=worst_case, scored=False)
    folder = folder_of(points, storage)
    values = None if worst_case else secrets_of(points, storage, score)
    if folder is not None and not folder.disclosure().shows_runs:
        values = None
        selections = [select(points, storage=storage, score=score, worst_case=worst_case, rule=rule, **bounds)]
    else:
        logarithmic = logarithmic_of(points, storage, score)
        precision = precision_of(points, storage)
        selections = _selections(table, rule_of(own, rule), with_given(own, bounds), values, logarithmic, precision)
        if folder is not None:
            selections = [of_sweep(each, folder, score=score, worst_case=worst_case) for each in selections]
    texts: ReportTexts = (
        {"title": Path(points).stem} if folder is None else about(folder, score=score, worst_case=worst_case)
    )
    return write_report(table, selections, Path(output), by_secret=values, **texts)


def comparison(
    sources: list[str],
    output: Path,
    *,
    by: str | None = None,
    storage: str = "raydp_runs",
    score: str | None = None,
    worst_case: bool = False,
    rule: str | None = None,
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
    sources = list(map(named, sources))
    for source in sources:
        require_comparable(source, storage)
    tables = tables_of(sources, storage, score=score, worst_case=worst_case, by=by)
    of_source = dict.fromkeys(tables, sources[0]) if by is not None else _by_short_name(sources)
    tables = dict(zip(of_source, tables.values(), strict=True))
    selections = {}
    for name, table in tables.items():
        source = of_source[name]
        _, own = points_of(source, storage, by=by)
        values = None if worst_case else secrets_of(source, storage, score)
        logarithmic = logarithmic_of(source, storage, score)
        precision = precision_of(source, storage)
        selections[name] = _selections(
            table, rule_of(own, rule), with_given(own, bounds), values, logarithmic, precision
        )
    names = ", ".join(tables) if len(tables) <= _NAMED else f"{len(tables)} sweeps"
    title = names if by is None else f"{Path(sources[0]).stem} by {by}"
    return write_comparison(tables, selections, output, title=title)


def _by_short_name(sources: list[str]) -> dict[str, str]:
    """Return the sources by the shortest ends of their paths that differ, so that a page names few folders."""
    parts = [Path(source.removesuffix(".csv").removesuffix(".parquet")).parts for source in sources]
    for count in range(1, max(map(len, parts)) + 1):
        short = {"/".join(path[-count:]): source for path, source in zip(parts, sources, strict=True)}
        if len(short) == len(sources):
            return short
    return {source: source for source in sources}


def _selections(
    table: pd.DataFrame,
    rule: str,
    bounds: Bounds,
    by_secret: tuple[pd.DataFrame, str] | None,
    logarithmic: bool | None,
    precision: PrecisionArguments,
) -> list[Selection]:
    """Return the selections of the rule and of the rule best-utility."""
    rules = dict.fromkeys([rule, "best-utility"])
    return [
        select_from(table, rule=each, by_secret=by_secret, logarithmic=logarithmic, **precision, **bounds)
        for each in rules
    ]

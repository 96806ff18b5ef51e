"""Pages and figure files on sweeps and points tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import select as select_from
from analysis import write_comparison, write_report
from analysis.selection.default import DEFAULT_RULE
from raydp.sweep.api import folder_of, points_of, private_selection_of, secrets_of, select, tables_of, with_given
from raydp.sweep.ending.notes import about
from raydp.sweep.planning.sources import named

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from analysis import Selection


_NAMED = 4


def report(
    points: str | Path,
    output: str | Path,
    *,
    storage: str = "raydp_runs",
    score: str | None = None,
    worst_case: bool = False,
    **options: Any,
) -> Mapping[str, go.Figure]:
    """Write the report of a points table or, with what its guarantee says, of a sweep; by a score as in `select`.

    Args:
        points: a points file, or a sweep by its folder or its name under storage.
        output: the HTML file; it is replaced if it is there.
        storage, score, worst_case: as in `raydp.select`.
        options: rule and constraints in the place of the sweep's, as in `analysis.select`.

    Returns:
        Its figures by name.
    """
    table, defaults = points_of(points, storage, score=score, worst_case=worst_case)
    folder = folder_of(points, storage)
    values = None if worst_case else secrets_of(points, storage, score)
    if private_selection_of(points, storage) is not None:
        selections, values = [select(points, storage=storage, score=score, worst_case=worst_case, **options)], None
    else:
        selections = _selections(table, with_given(defaults, options), values)
    told = {"title": Path(points).stem} if folder is None else about(folder, score=score, worst_case=worst_case)
    return write_report(table, selections, Path(output), by_secret=values, **told)


def comparison(
    sources: list[str],
    output: Path,
    *,
    by: str | None = None,
    storage: str = "raydp_runs",
    score: str | None = None,
    worst_case: bool = False,
    **options: Any,
) -> Mapping[str, go.Figure]:
    """Write the comparison of several sweeps or tables, or of one table's groups.

    Args:
        by: the column that groups the one table.
        options: rule and constraints in the place of each sweep's.

    Returns:
        Its figures by name.

    Raises:
        ValueError: a private selection among them: its runs may not be compared.
    """
    sources = list(map(named, sources))
    for source in sources:
        if private_selection_of(source, storage) is not None:
            raise ValueError(f"SWEEP must not be a private selection to be compared, got {source!r}. Leave it out.")
    tables = tables_of(sources, storage, score=score, worst_case=worst_case, by=by)
    of_source = dict.fromkeys(tables, sources[0]) if by is not None else _by_short_name(sources)
    tables = dict(zip(of_source, tables.values(), strict=True))
    selections = {}
    for name, table in tables.items():
        source = of_source[name]
        _, defaults = points_of(source, storage, score=score, worst_case=worst_case, by=by)
        values = None if worst_case else secrets_of(source, storage, score)
        selections[name] = _selections(table, with_given(defaults, options), values)
    names = ", ".join(tables) if len(tables) <= _NAMED else f"{len(tables)} sweeps"
    title = names if by is None else f"{Path(sources[0]).stem} by {by}"
    return write_comparison(tables, selections, output, title=title)


def _by_short_name(sources: list[str]) -> dict[str, str]:
    """Sources by the last parts of their paths, as few as tell them apart: a page does not name the folders above."""
    parts = [Path(source.removesuffix(".csv").removesuffix(".parquet")).parts for source in sources]
    for count in range(1, max(map(len, parts)) + 1):
        short = {"/".join(path[-count:]): source for path, source in zip(parts, sources, strict=True)}
        if len(short) == len(sources):
            return short
    return {source: source for source in sources}


def _selections(
    table: pd.DataFrame, options: Mapping[str, Any], by_secret: tuple[pd.DataFrame, str] | None
) -> list[Selection]:
    """What the options' rule selects, and the best utility."""
    others = {name: value for name, value in options.items() if name != "rule"}
    rules = dict.fromkeys([options.get("rule", DEFAULT_RULE), "best-utility"])
    return [select_from(table, rule=rule, by_secret=by_secret, **others) for rule in rules]

"""Report pages of sweeps and points tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from raydp.analysis import write_report
from raydp.analysis.selection.own_rules import GivenRule
from raydp.analysis.selection.rules import constrained_rule, rule_steps
from raydp.plugins.rules import asked_rule
from raydp.spec.sections import Bounds
from raydp.sweep.api import select, source_of
from raydp.sweep.ending.notes import ReportTexts, about
from raydp.sweep.ending.sweep_selection import of_sweep
from raydp.sweep.store.measurements import words_of

if TYPE_CHECKING:
    import plotly.graph_objects as go


def check_names(
    sources: Sequence[str], storage: str, *, rule: str | None, score: str | None
) -> None:
    """Raise ValueError if no rule has the name, or a source has no score of the name."""
    if rule is not None and constrained_rule(rule := asked_rule(rule)) is None:
        rule_steps(rule)
    if score is not None:
        for source in sources:
            source_of(source, storage).points(score=score, scored=False)


def report(
    points: str | Path,
    output: str | Path,
    *,
    storage: str = "raydp_runs",
    score: str | None = None,
    worst_case: bool = False,
    rule: GivenRule | None = None,
    **bounds: Unpack[Bounds],
) -> Mapping[str, go.Figure]:
    """Write the report of a points table or a sweep.

    The report of a sweep says what its guarantee covers.

    Args:
        points: a points file, or a sweep by its folder or its name under storage.
        output: the HTML file. An existing file is replaced.
        storage, score, worst_case, rule, bounds: as in `raydp.select`.

    Returns:
        The figures of the report by name.
    """
    source = source_of(points, storage)
    table, folder = source.points(score=score, worst_case=worst_case, scored=False), source.folder
    # A sweep whose runs may not be shown has one answer, and no values by secret beside it.
    if not source.shows_runs:
        values = None
        selections = [
            select(points, storage=storage, score=score, worst_case=worst_case, rule=rule, **bounds)
        ]
    else:
        values = None if worst_case else source.by_secret(score)
        selections = source.selections(
            table, [rule, "best-utility"], score=score, worst_case=worst_case, bounds=bounds
        )
        if folder is not None:
            selections = [
                of_sweep(each, folder, score=score, worst_case=worst_case) for each in selections
            ]
    texts: ReportTexts = (
        {"title": Path(points).stem, "words": words_of(None, selections[0].score_name)}
        if folder is None
        else about(folder, score=score, worst_case=worst_case)
    )
    return write_report(table, selections, Path(output), by_secret=values, **texts)

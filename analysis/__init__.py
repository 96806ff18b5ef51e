"""From a points table to a choice: statistics, predictions, selection, figures and pages.

The parts, in order: `tables` (the points table and its columns), `statistics` (figures computed
from a table), `surface` (smooth predictions between configurations), `selection` (rules,
constraints, risk), `seeds` (the configuration that gets a further seed), `figures` (plotly objects)
and `report` (pages). Each part imports only parts before it. The public names below are imported on
first use, so importing the package costs nothing.

The package is installed as `raydp.analysis` (`raydp/analysis` is a link to this folder), so that a
user's own module `analysis` does not replace it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raydp.analysis.report.sweep_page import report_figures as report_figures
    from raydp.analysis.report.sweep_page import write_report as write_report
    from raydp.analysis.selection.by_threshold import (
        selections_by_threshold as selections_by_threshold,
    )
    from raydp.analysis.selection.choice import select as select
    from raydp.analysis.selection.decision import Decision as Decision
    from raydp.analysis.selection.risk import privacy_risk as privacy_risk
    from raydp.analysis.selection.rules import RULES as RULES
    from raydp.analysis.selection.selected import Selection as Selection
    from raydp.analysis.statistics.correlations import score_correlations as score_correlations
    from raydp.analysis.statistics.heuristics import heuristic_accuracy as heuristic_accuracy
    from raydp.analysis.statistics.variance import score_variance as score_variance
    from raydp.analysis.statistics.verification import verify_heuristics as verify_heuristics
    from raydp.analysis.tables.groups import of_each as of_each
    from raydp.analysis.tables.groups import split_by as split_by
    from raydp.analysis.tables.per_secret import score_names as score_names
    from raydp.analysis.tables.per_secret import with_score as with_score
    from raydp.analysis.tables.per_secret import with_worst_case as with_worst_case
    from raydp.analysis.tables.points import check_points as check_points
    from raydp.analysis.tables.points import configuration_means as configuration_means
    from raydp.analysis.tables.points import exact as exact
    from raydp.analysis.tables.points import load_points as load_points
    from raydp.analysis.tables.points import other_rows as other_rows
    from raydp.analysis.tables.points import save_points as save_points
    from raydp.analysis.tables.utility_filter import useful_points as useful_points

_HOMES = {
    "Decision": "selection.decision",
    "RULES": "selection.rules",
    "Selection": "selection.selected",
    "check_points": "tables.points",
    "configuration_means": "tables.points",
    "exact": "tables.points",
    "heuristic_accuracy": "statistics.heuristics",
    "load_points": "tables.points",
    "of_each": "tables.groups",
    "other_rows": "tables.points",
    "privacy_risk": "selection.risk",
    "report_figures": "report.sweep_page",
    "save_points": "tables.points",
    "score_correlations": "statistics.correlations",
    "score_names": "tables.per_secret",
    "score_variance": "statistics.variance",
    "select": "selection.choice",
    "selections_by_threshold": "selection.by_threshold",
    "split_by": "tables.groups",
    "useful_points": "tables.utility_filter",
    "verify_heuristics": "statistics.verification",
    "with_score": "tables.per_secret",
    "with_worst_case": "tables.per_secret",
    "write_report": "report.sweep_page",
}


def __getattr__(name: str) -> object:
    """Import a public name from the module that defines it, or from an extension (PEP 562)."""
    if name in _HOMES:
        return getattr(import_module(f"raydp.analysis.{_HOMES[name]}"), name)
    from raydp.analysis.entry_points import function

    # The list is made when it is asked for, because a search for extensions takes 20 ms.
    return _names() if name == "__all__" else function(name, of=__name__)


def _names() -> list[str]:
    from raydp.analysis.entry_points import FUNCTIONS, entries

    return [*_HOMES, *entries(FUNCTIONS)]


def __dir__() -> list[str]:
    return sorted({*globals(), *_names()})

"""From a points table to a choice: heuristics, selection, risk, regression, variance, counterfactuals, report.

The parts, in order: `tables` (the points table and its columns), `statistics` (figures computed from a table),
`surface` (smooth predictions between configurations), `selection` (rules, constraints, risk), `seeds` (the
configuration that gets a further seed), `figures` (plotly objects) and `report` (pages). Each part imports only parts
before it. The public names below are imported on first use, so importing the package costs nothing.

The package is installed as `raydp.analysis` (`raydp/analysis` is a link to this folder), so that a user's own module
`analysis` does not replace it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raydp.analysis.report.comparison_page import comparison_figures as comparison_figures
    from raydp.analysis.report.comparison_page import write_comparison as write_comparison
    from raydp.analysis.report.profile_grids import ProfileCurve as ProfileCurve
    from raydp.analysis.report.profile_grids import write_profile_grid as write_profile_grid
    from raydp.analysis.report.profiles import write_profiles as write_profiles
    from raydp.analysis.report.sweep_page import report_figures as report_figures
    from raydp.analysis.report.sweep_page import write_report as write_report
    from raydp.analysis.selection.by_threshold import selections_by_threshold as selections_by_threshold
    from raydp.analysis.selection.choice import Selection as Selection
    from raydp.analysis.selection.choice import select as select
    from raydp.analysis.selection.decision import Decision as Decision
    from raydp.analysis.selection.risk import privacy_risk as privacy_risk
    from raydp.analysis.selection.rules import RULES as RULES
    from raydp.analysis.statistics.audited import audit_correlations as audit_correlations
    from raydp.analysis.statistics.confound import utility_adjusted as utility_adjusted
    from raydp.analysis.statistics.correlations import score_correlations as score_correlations
    from raydp.analysis.statistics.counterfactuals import counterfactual as counterfactual
    from raydp.analysis.statistics.effects import hyperparameter_effects as hyperparameter_effects
    from raydp.analysis.statistics.heuristics import heuristic_accuracy as heuristic_accuracy
    from raydp.analysis.statistics.intervals import score_intervals as score_intervals
    from raydp.analysis.statistics.methods import compare_methods as compare_methods
    from raydp.analysis.statistics.regression import regress as regress
    from raydp.analysis.statistics.subsets import secret_subsets as secret_subsets
    from raydp.analysis.statistics.trends import split_by as split_by
    from raydp.analysis.statistics.trends import variance_trends as variance_trends
    from raydp.analysis.statistics.variance import score_variance as score_variance
    from raydp.analysis.statistics.verification import verify_heuristics as verify_heuristics
    from raydp.analysis.surface.prediction import predict as predict
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
    "ProfileCurve": "report.profile_grids",
    "RULES": "selection.rules",
    "Selection": "selection.choice",
    "audit_correlations": "statistics.audited",
    "check_points": "tables.points",
    "compare_methods": "statistics.methods",
    "comparison_figures": "report.comparison_page",
    "configuration_means": "tables.points",
    "counterfactual": "statistics.counterfactuals",
    "hyperparameter_effects": "statistics.effects",
    "exact": "tables.points",
    "heuristic_accuracy": "statistics.heuristics",
    "load_points": "tables.points",
    "other_rows": "tables.points",
    "predict": "surface.prediction",
    "privacy_risk": "selection.risk",
    "regress": "statistics.regression",
    "report_figures": "report.sweep_page",
    "save_points": "tables.points",
    "score_correlations": "statistics.correlations",
    "score_intervals": "statistics.intervals",
    "score_names": "tables.per_secret",
    "score_variance": "statistics.variance",
    "secret_subsets": "statistics.subsets",
    "select": "selection.choice",
    "selections_by_threshold": "selection.by_threshold",
    "split_by": "statistics.trends",
    "useful_points": "tables.utility_filter",
    "utility_adjusted": "statistics.confound",
    "variance_trends": "statistics.trends",
    "verify_heuristics": "statistics.verification",
    "with_score": "tables.per_secret",
    "with_worst_case": "tables.per_secret",
    "write_comparison": "report.comparison_page",
    "write_profile_grid": "report.profile_grids",
    "write_profiles": "report.profiles",
    "write_report": "report.sweep_page",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    """Import a public name from the module that defines it (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"raydp.analysis.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

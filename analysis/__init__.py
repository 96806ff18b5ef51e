"""From a points table to a choice: heuristics, selection, risk, regression, variance, counterfactuals, report.

The names below are imported on first use, so that importing the package is free.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.confound import utility_adjusted as utility_adjusted
    from analysis.correlations import score_correlations as score_correlations
    from analysis.counterfactuals import counterfactual as counterfactual
    from analysis.effects import hyperparameter_effects as hyperparameter_effects
    from analysis.heuristics import heuristic_accuracy as heuristic_accuracy
    from analysis.intervals import score_intervals as score_intervals
    from analysis.per_secret import score_names as score_names
    from analysis.per_secret import with_score as with_score
    from analysis.per_secret import with_worst_case as with_worst_case
    from analysis.points import check_points as check_points
    from analysis.points import configuration_means as configuration_means
    from analysis.points import exact as exact
    from analysis.points import load_points as load_points
    from analysis.points import other_rows as other_rows
    from analysis.points import save_points as save_points
    from analysis.prediction import predict as predict
    from analysis.profile_grids import ProfileCurve as ProfileCurve
    from analysis.profile_grids import write_profile_grid as write_profile_grid
    from analysis.profiles import write_profiles as write_profiles
    from analysis.regression import regress as regress
    from analysis.report import write_report as write_report
    from analysis.risk import privacy_risk as privacy_risk
    from analysis.rules import RULES as RULES
    from analysis.selection import Selection as Selection
    from analysis.selection import select as select
    from analysis.subsets import secret_subsets as secret_subsets
    from analysis.trends import split_by as split_by
    from analysis.trends import variance_trends as variance_trends
    from analysis.utility_filter import useful_points as useful_points
    from analysis.variance import score_variance as score_variance
    from analysis.verification import verify_heuristics as verify_heuristics

_HOMES = {
    "ProfileCurve": "profile_grids",
    "RULES": "rules",
    "Selection": "selection",
    "check_points": "points",
    "configuration_means": "points",
    "counterfactual": "counterfactuals",
    "hyperparameter_effects": "effects",
    "exact": "points",
    "heuristic_accuracy": "heuristics",
    "load_points": "points",
    "other_rows": "points",
    "predict": "prediction",
    "privacy_risk": "risk",
    "regress": "regression",
    "save_points": "points",
    "score_correlations": "correlations",
    "score_intervals": "intervals",
    "score_names": "per_secret",
    "score_variance": "variance",
    "secret_subsets": "subsets",
    "select": "selection",
    "split_by": "trends",
    "useful_points": "utility_filter",
    "utility_adjusted": "confound",
    "variance_trends": "trends",
    "verify_heuristics": "verification",
    "with_score": "per_secret",
    "with_worst_case": "per_secret",
    "write_profile_grid": "profile_grids",
    "write_profiles": "profiles",
    "write_report": "report",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

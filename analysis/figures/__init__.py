"""Figures as plotly objects, for notebooks, pages and files."""

from raydp.analysis.entry_points import function
from raydp.analysis.figures.curves import MOST_CURVES as MOST_CURVES
from raydp.analysis.figures.curves import Curve as Curve
from raydp.analysis.figures.curves import training_curves as training_curves
from raydp.analysis.figures.files import save_figures as save_figures
from raydp.analysis.figures.groups import configurations_and_seeds as configurations_and_seeds
from raydp.analysis.figures.groups import heuristic_accuracies as heuristic_accuracies
from raydp.analysis.figures.groups import selection_risks as selection_risks
from raydp.analysis.figures.scatter import score_against_utility as score_against_utility
from raydp.analysis.figures.scatter import score_along_thresholds as score_along_thresholds


def __getattr__(name: str) -> object:
    """Return a figure of an extension (PEP 562)."""
    return function(name, of=__name__)

"""Figures as plotly objects, for notebooks, pages and files."""

from analysis.figures.curves import MOST_CURVES as MOST_CURVES
from analysis.figures.curves import Curve as Curve
from analysis.figures.curves import training_curves as training_curves
from analysis.figures.effects import effect_lines as effect_lines
from analysis.figures.effects import importance_bars as importance_bars
from analysis.figures.files import save_figures as save_figures
from analysis.figures.groups import configurations_and_seeds as configurations_and_seeds
from analysis.figures.groups import heuristic_accuracies as heuristic_accuracies
from analysis.figures.groups import scores_against_utility as scores_against_utility
from analysis.figures.groups import selection_risks as selection_risks
from analysis.figures.groups import variance_by_group as variance_by_group
from analysis.figures.scatter import score_against_utility as score_against_utility
from analysis.figures.scatter import score_along_thresholds as score_along_thresholds

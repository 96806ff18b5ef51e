"""The tables of figures in the report: heuristics, effects, risk, variance, regression."""

from __future__ import annotations

import pandas as pd

from raydp.analysis.report.markup import Cell, paragraph, percent, table
from raydp.analysis.selection.risk import privacy_risk
from raydp.analysis.statistics.confound import utility_adjusted
from raydp.analysis.statistics.effects import hyperparameter_effects
from raydp.analysis.statistics.heuristics import heuristic_accuracy
from raydp.analysis.statistics.regression import regress
from raydp.analysis.statistics.variance import score_variance
from raydp.analysis.statistics.verification import verify_heuristics


def heuristics_table(points: pd.DataFrame) -> str:
    """Return each pairwise heuristic's accuracy, and whether it is better than chance."""
    tests = verify_heuristics(points)["heuristics"]
    rows: list[list[Cell]] = []
    for name, figures in heuristic_accuracy(points).items():
        test = tests[name]
        counts: list[Cell] = [name, figures["correct"], figures["pairs"], percent(figures["accuracy"], 1)]
        rows.append([*counts, percent(test["expected"], 1), test["p_adjusted"], test["verdict"]])
    return table(
        "Pairs in which the configuration that a heuristic prefers has the lower score; p by permutation, after Holm",
        ["Heuristic", "Correct", "Pairs", "Accuracy", "By chance", "p", "Data"],
        rows,
    )


def effects_table(points: pd.DataFrame) -> str:
    """Return the mean change of the score per doubling of each hyperparameter."""
    rows: list[list[Cell]] = []
    for name, effect in hyperparameter_effects(points).items():
        varied = _VARIED.get(name, name)
        rows.append([varied, effect["series_count"], effect["per_doubling"], effect["std_error"]])
    caption = "Change of the score for a doubling, mean over series of configurations that differ in nothing else"
    return table(caption, ["Doubled", "Series", "Change", "Std. error"], rows)


def confound_table(points: pd.DataFrame) -> str:
    """Return how much of the spread of scores remains after adjusting for utility."""
    adjusted = utility_adjusted(points)
    if "reason" in adjusted:
        text = f"Whether the spread is more than one of utility is not known: {adjusted['reason']}."
        return paragraph(text, css="soft")
    rows: list[list[Cell]] = [
        ["Standard deviation over configurations", adjusted["score_std"], None, None],
        ["The same, adjusted for utility", adjusted["adjusted_std"], *(adjusted["interval"] or (None, None))],
        [
            "Share of the variance that utility leaves",
            adjusted["share_remaining"],
            *(adjusted["share_interval"] or (None, None)),
        ],
    ]
    return table("Is it more than utility?", ["Figure", "Value", "95 % from", "to"], rows)


def risk_table(points: pd.DataFrame) -> str:
    """Return the relative and absolute risk of every rule."""
    risk = privacy_risk(points)
    rows: list[list[Cell]] = [
        [rule, figures["relative"], figures["absolute"]] for rule, figures in risk["rules"].items()
    ]
    caption = f"Score above the oracle's, averaged over {risk['thresholds']} utility thresholds"
    reasons = {figures["reason"] for figures in risk["rules"].values() if "reason" in figures}
    notes = [paragraph(f"The relative risk is undefined: {reason}.", css="soft") for reason in sorted(reasons)]
    return "\n".join([table(caption, ["Rule", "Relative risk", "Absolute risk"], rows), *notes])


def variance_table(points: pd.DataFrame) -> str:
    """Return the spread over configurations and over seeds, and the correlation with utility."""
    variance = score_variance(points)
    correlation = variance["utility_correlation"]
    rows: list[list[Cell]] = [
        ["Standard deviation over configurations (of means)", variance["score_std"]],
        ["Standard deviation over seeds (mean over configurations)", variance["seed_std"]],
        ["Lowest mean score", variance["score_min"]],
        ["Highest mean score", variance["score_max"]],
        ["Correlation of score and utility loss, Pearson", correlation["pearson"]],
        ["Correlation of score and utility loss, Spearman", correlation["spearman"]],
    ]
    reasons = [part["reason"] for part in (variance, correlation) if "reason" in part]
    notes = [paragraph(f"Undefined: {reason}.", css="soft") for reason in reasons]
    return "\n".join([table("Empirical privacy variance", ["Figure", "Value"], rows), *notes])


def regression_tables(points: pd.DataFrame) -> list[str]:
    """Return the tables of both regressions."""
    parts = []
    for name, fit in regress(points).items():
        if "reason" in fit:
            parts.append(paragraph(f"The {name} regression is undefined: {fit['reason']}.", css="soft"))
            continue
        rows: list[list[Cell]] = [
            [term, one["coef"], one["std_error"], one["t"], one["p"]] for term, one in fit["terms"].items()
        ]
        caption = f"Score on {name} hyperparameters: {fit['n']} rows, R² = {fit['r_squared']:.3f}"
        parts.append(table(caption, ["Term", "Coefficient", "Std. error", "t", "p"], rows))
    return parts


_VARIED = {
    "batch_size": "batch size b",
    "num_steps": "steps T",
    "learning_rate": "learning rate η",
    "compute": "b at equal compute C",
    "updates": "η at equal updates U",
}

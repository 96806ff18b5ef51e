"""The tables of figures in the report: heuristics, risk, variance, regression."""

from __future__ import annotations

import pandas as pd

from analysis.report.markup import Cell, paragraph, table
from analysis.selection.risk import privacy_risk
from analysis.statistics.heuristics import heuristic_accuracy
from analysis.statistics.regression import regress
from analysis.statistics.variance import score_variance


def heuristics_table(points: pd.DataFrame) -> str:
    """How often each pairwise heuristic is right."""
    rows: list[list[Cell]] = [
        [name, figures["correct"], figures["pairs"], _percent(figures["accuracy"])]
        for name, figures in heuristic_accuracy(points).items()
    ]
    return table(
        "Share of pairs in which the configuration that a heuristic prefers has the lower score",
        ["Heuristic", "Correct", "Pairs", "Accuracy"],
        rows,
    )


def risk_table(points: pd.DataFrame) -> str:
    """Relative and absolute risk of every rule."""
    risk = privacy_risk(points)
    rows: list[list[Cell]] = [
        [rule, figures["relative"], figures["absolute"]] for rule, figures in risk["rules"].items()
    ]
    caption = f"Score above the oracle's, averaged over {risk['thresholds']} utility thresholds"
    reasons = {figures["reason"] for figures in risk["rules"].values() if "reason" in figures}
    notes = [paragraph(f"The relative risk is undefined: {reason}.", css="soft") for reason in sorted(reasons)]
    return "\n".join([table(caption, ["Rule", "Relative risk", "Absolute risk"], rows), *notes])


def variance_table(points: pd.DataFrame) -> str:
    """Spread over configurations and over seeds, and the correlation with utility."""
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
    return "\n".join([table("Empirical privacy variance under one guarantee", ["Figure", "Value"], rows), *notes])


def regression_tables(points: pd.DataFrame) -> list[str]:
    """Both regressions."""
    parts = []
    for name, fit in regress(points).items():
        if "reason" in fit:
            parts.append(paragraph(f"The {name} regression is undefined: {fit['reason']}.", css="soft"))
            continue
        rows: list[list[Cell]] = [[term, *figures.values()] for term, figures in fit["terms"].items()]
        caption = f"Score on {name} hyperparameters: {fit['n']} rows, R² = {fit['r_squared']:.3f}"
        parts.append(table(caption, ["Term", "Coefficient", "Std. error", "t", "p"], rows))
    return parts


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"

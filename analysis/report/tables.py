"""The tables of figures in the report: heuristics, risk, variance."""

from __future__ import annotations

import pandas as pd

from raydp.analysis.report.markup import Cell, paragraph, percent, table
from raydp.analysis.selection.risk import privacy_risk
from raydp.analysis.statistics.heuristics import heuristic_accuracy
from raydp.analysis.statistics.variance import score_variance
from raydp.analysis.statistics.verification import verify_heuristics


def heuristics_table(points: pd.DataFrame) -> str:
    """Return each pairwise heuristic's accuracy, and whether it is better than chance."""
    tests = verify_heuristics(points)["heuristics"]
    rows: list[list[Cell]] = []
    for name, figures in heuristic_accuracy(points).items():
        test = tests[name]
        counts: list[Cell] = [
            name,
            figures["correct"],
            figures["pairs"],
            percent(figures["accuracy"], 1),
        ]
        rows.append([*counts, percent(test["expected"], 1), test["p_adjusted"], test["verdict"]])
    return table(
        "Pairs in which the configuration that a heuristic prefers has the lower score; p by "
        "permutation, after Holm",
        ["Heuristic", "Correct", "Pairs", "Accuracy", "By chance", "p", "Data"],
        rows,
    )


def risk_table(points: pd.DataFrame) -> str:
    """Return the relative and absolute risk of every rule."""
    risk = privacy_risk(points)
    rows: list[list[Cell]] = [
        [rule, figures["relative"], figures["absolute"]] for rule, figures in risk["rules"].items()
    ]
    caption = f"Score above the oracle's, averaged over {risk['thresholds']} utility thresholds"
    # Rules often share a reason: print each reason once.
    reasons = {figures["reason"] for figures in risk["rules"].values() if "reason" in figures}
    notes = [
        paragraph(f"The relative risk is undefined: {reason}.", css="soft")
        for reason in sorted(reasons)
    ]
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

"""Printed output of `raydp score SWEEP` and `raydp analyze scores|correlations|methods`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from raydp.io.output import print_table, print_warning, stdout
from raydp.search_spaces.settings import settings_in_words

if TYPE_CHECKING:
    from raydp.analysis.statistics.audited import AuditCorrelations, AuditPair
    from raydp.analysis.statistics.correlations import ScoreCorrelations, ScorePair
    from raydp.analysis.statistics.intervals import ConfigurationScore, ScoreIntervals
    from raydp.analysis.statistics.methods import Comparisons
    from raydp.scoring.sweep import SweepScores

NAMED = 3
"""The largest number of failures printed in full. `--json` has all of them."""


def show_sweep_scores(answer: SweepScores) -> None:
    """Print one row per measurement, then the failures and the place of the values."""
    rows = []
    for label, measurement in answer["scores"].items():
        if "measured" not in measurement:
            stdout.print(f"{label}: {measurement['note']}; another label measures it again", markup=False)
            continue
        failed = len(measurement["failed"])
        counts = {"measured": measurement["measured"], "before": measurement["already"], "failed": failed}
        values: Mapping[str, object] = measurement
        figures = {key: values[key] for key in ("base", "min", "mean", "max", "seconds")}
        rows.append({"score": label, **counts, **figures})
    if rows:
        print_table(f"{answer['folder'].name}: scores of its models", rows)
    for label, measurement in answer["scores"].items():
        for failure in measurement.get("failed", [])[:NAMED]:
            stdout.print(f"failed {label} of {failure['run_id']}: {failure['reason']}", markup=False)
    if answer["note"] is not None:
        stdout.print(f"note: {answer['note']}", markup=False)
    else:
        stdout.print(f"in MLflow: {answer['tracked']} models")
    if answer["interrupted"]:
        stdout.print("interrupted: the same command goes on", style="bold")


def show_intervals(answer: ScoreIntervals) -> None:
    """Print one table per score, one row per configuration."""
    for name, score in answer["scores"].items():
        rows = [
            {
                "batch_size": row["batch_size"],
                "num_steps": row["num_steps"],
                "learning_rate": row["learning_rate"],
                **_further(row, score["configurations"]),
                "seeds": row["num_seeds"],
                "mean": row["mean"],
                "95 %": row["interval"],
                **{f"q{q}": value for q, value in row["quantiles"].items()},
                "max": row["max"],
            }
            for row in score["configurations"]
        ]
        spread = {"std of means": score["score_std"], "std of maxima": score["worst_case_std"]}
        text = ", ".join(f"{key} {value:.4g}" for key, value in spread.items() if value is not None)
        print_table(f"{name}: {text}", rows)


def _further(row: ConfigurationScore, every: Sequence[ConfigurationScore]) -> dict[str, object]:
    """Return the column of the further fields, if a configuration sets any."""
    if not any("settings" in other for other in every):
        return {}
    return {"further fields": settings_in_words(row.get("settings", {}))}


def show_correlations(answer: ScoreCorrelations, audit: AuditCorrelations | None) -> None:
    """Print one row per pair: over models and, if an audit is given, over configurations."""
    rows = [pair_row(pair, {"models": pair["models"]}) for pair in answer["pairs"]]
    print_table(f"correlations over {answer['models']} models", rows)
    if audit is not None:
        title = f"with the audited ε̂ over {audit['configurations']} configurations that both have"
        rows = [pair_row(pair, {"configurations": pair["configurations"]}, {"p": pair["p"]}) for pair in audit["pairs"]]
        print_table(title, rows)
        stdout.print(
            f"{audit['only_points']} without an audit, {audit['only_audit']} without a score, {audit['zeros']} with "
            "ε̂ = 0"
        )


def pair_row(
    pair: ScorePair | AuditPair, number: dict[str, int], p: dict[str, float | None] | None = None
) -> dict[str, object]:
    """Return the row of two figures, with the number of their values and, if it was tested, the p-value."""
    return {
        "a": pair["a"],
        "b": pair["b"],
        **number,
        "Spearman": pair["spearman"],
        "95 %": pair["spearman_interval"],
        **(p or {}),
        "Pearson": pair["pearson"],
        "95 % ": pair["pearson_interval"],
        "note": pair.get("reason", ""),
    }


def show_methods(answer: Comparisons, warnings: Sequence[str]) -> None:
    """Print the comparability warnings, then one table per two methods with one row per figure."""
    for warning in warnings:
        print_warning(warning)
    rows: dict[str, list[dict[str, object]]] = {}
    for row in answer["comparisons"]:
        shown = {
            "figure": row["figure"],
            "n": row["configurations"],
            "a − b": row["mean_difference"],
            "95 %": row["interval"],
            "t": row["t"],
            "p": row["p"],
            "p (Holm)": row["p_holm"],
            "Wilcoxon p": row["wilcoxon_p"],
            "RMSE": row["rmse"],
            "r": row["pearson"],
        }
        rows.setdefault(f"a: {row['a']}, b: {row['b']}", []).append(shown)
    for title, table in rows.items():
        print_table(title, table)
    stdout.print("n: configurations that both have. Finding no difference does not prove that there is none")

"""Printed output of `raydp analyze correlations`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raydp.system.output import print_table

if TYPE_CHECKING:
    from raydp.analysis.statistics.correlations import CorrelatedPair, ScoreCorrelations


def show_correlations(answer: ScoreCorrelations) -> None:
    """Print one row per pair of figures."""
    rows = [pair_row(pair, {"models": pair["models"]}) for pair in answer["pairs"]]
    print_table(f"correlations over {answer['models']} models", rows)


def pair_row(
    pair: CorrelatedPair, number: dict[str, int], p: dict[str, float | None] | None = None
) -> dict[str, object]:
    """Return the row of two figures, with the number of values and, if tested, the p-value."""
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

"""Printed output of `raydp score`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raydp.extensions.later_scores.sweep import SweepScores
from raydp.system.output import print_table, stdout

NAMED = 3
"""The largest number of failures printed in full. `--json` has all of them."""


def show_sweep_scores(answer: SweepScores) -> None:
    """Print one row per measurement, then the failures and the place of the values."""
    # A row for each measurement that was made now; the others are only named.
    rows = []
    for label, measurement in answer["scores"].items():
        if "measured" not in measurement:
            stdout.print(
                f"{label}: {measurement['note']}; another label measures it again", markup=False
            )
            continue
        failed = len(measurement["failed"])
        counts = {
            "measured": measurement["measured"],
            "before": measurement["already"],
            "failed": failed,
        }
        values: Mapping[str, object] = measurement
        figures = {key: values[key] for key in ("base", "min", "mean", "max", "seconds")}
        rows.append({"score": label, **counts, **figures})
    if rows:
        print_table(f"{answer['folder'].name}: scores of its models", rows)
    # A few failures in full: they mostly have one cause.
    for label, measurement in answer["scores"].items():
        for failure in measurement.get("failed", [])[:NAMED]:
            stdout.print(
                f"failed {label} of {failure['run_id']}: {failure['reason']}", markup=False
            )
    if answer["note"] is not None:
        stdout.print(f"note: {answer['note']}", markup=False)
    else:
        stdout.print(f"in MLflow: {answer['tracked']} models")
    if answer["interrupted"]:
        stdout.print("interrupted: the same command goes on", style="bold")


def show_model_scores(answer: dict[str, Any]) -> None:
    """Print values with standard errors and costs, then the values of every secret by name."""
    for label, score in answer["scores"].items():
        figures = {key: score[key] for key in ("value", "std_error", "num_samples")}
        own = {key: value for key, value in score["details"].items() if "." not in key}
        print_table(answer["model"], [{"score": label, **figures, **own, **score["cost"]}])
        # A score may have figures of its parts: they make a table of their own.
        parts: dict[str, dict[str, Any]] = {}
        for key in score["details"].keys() - own.keys():  # such as "loss.auc", the figure of a part
            part, figure = key.split(".", 1)
            parts.setdefault(part, {})[figure] = score["details"][key]
        if parts:
            columns = sorted(set().union(*parts.values()))
            print_table(
                label,
                [
                    {"part": part, **{c: parts[part].get(c) for c in columns}}
                    for part in sorted(parts)
                ],
            )
    # Secrets are shown by name, never by text.
    for label, score in answer["scores"].items():
        if score["per_secret"]:
            print_table(
                label,
                [{"secret": name, "value": value} for name, value in score["per_secret"].items()],
            )
    if answer["logged"]:
        stdout.print(f"logged on the model: {', '.join(answer['logged'])}", markup=False)
    if answer["note"] is not None:
        stdout.print(f"note: {answer['note']}", markup=False)

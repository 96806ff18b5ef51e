"""Printed output of `raydp mia`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raydp.extensions.membership.classifier import attack
from raydp.extensions.membership.outputs import read_outputs
from raydp.system.output import print_json, print_table, stderr, stdout

FIGURES = (
    "accuracy",
    "best_accuracy",
    "accuracy_class_thresholds",
    "auc",
    "tpr_at_1pct_fpr",
    "tpr_at_01pct_fpr",
)


def stored_outputs_command(
    path: Path, *, given: Mapping[str, object], neural: bool, seed: int, json: bool
) -> None:
    """Attack a target model's stored outputs with thresholds from a shadow model's.

    Raises:
        ValueError: the file is not usable, or an option for a SPEC is given.
    """
    if wrong := [name for name, value in given.items() if value is not None]:
        raise ValueError(f"{wrong[0]} must go with a SPEC, got FILE.npz. Leave it out.")
    shadow, target = read_outputs(path)
    results = attack(shadow, target)
    if neural:
        from raydp.extensions.membership.neural import neural_attack

        with stderr.status("training the neural attack"):
            results["neural"] = neural_attack(shadow, target, seed=seed)
    if json:
        print_json(results)
        return
    stdout.print(
        f"{len(target.members.labels)} members and {len(target.nonmembers.labels)} non-members of "
        f"the target; thresholds from {len(shadow.members.labels)} and "
        f"{len(shadow.nonmembers.labels)} of the shadow",
        markup=False,
    )
    show_attacks(results)


def show_attacks(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a table with a row per attack, 95 % intervals, and the reasons of missing figures."""
    # A column without any figure is left out.
    shown = [name for name in FIGURES if any(name in figures for figures in results.values())]
    print_table(
        "membership inference",
        [
            {"attack": name, **{k: _cell(figures, k) for k in shown}}
            for name, figures in results.items()
        ],
    )
    for name, figures in results.items():
        if figures.get("classes_without_threshold"):
            count = figures["classes_without_threshold"]
            stdout.print(
                f"{name}: {count} classes take the global threshold, as the shadow lacks them",
                markup=False,
            )
    for reason in dict.fromkeys(
        r for f in results.values() for r in f.get("reason", "").split("; ") if r
    ):
        stdout.print(f"note: {reason}", markup=False)


def _cell(figures: Mapping[str, Any], name: str) -> str | None:
    if figures.get(name) is None:
        return None
    low, high = figures[f"{name}_interval"]
    return f"{figures[name]:.3f} [{low:.3f}, {high:.3f}]"

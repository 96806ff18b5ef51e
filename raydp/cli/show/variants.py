"""Printed output of `raydp variants`."""

from __future__ import annotations

from collections.abc import Sequence

from raydp.io.output import print_table, stdout
from raydp.sweep.variants import Variant, VariantResult, VariantsResult, plans_of
from search_spaces.configuration import HYPERPARAMETERS


def _show_values(variants: Sequence[VariantResult]) -> None:
    """Print the values that the variants' names do not contain."""
    for variant in variants:
        texts = [f"{field} = {value}" for field, value in variant.values.items() if isinstance(value, dict | list)]
        if texts:
            stdout.print(f"{variant.name}: {', '.join(texts)}", markup=False)


def plan_rows(variants: Sequence[Variant]) -> list[dict[str, object]]:
    """Return a row per configuration of every variant; see `raydp.plan`."""
    plans = zip(variants, plans_of(variants), strict=True)
    return [{"sweep": variant.spec.name, **row} for variant, plan in plans for row in plan.rows()]


def show_plans(rows: Sequence[dict[str, object]]) -> None:
    """Print the plans as one table."""
    print_table("plan", rows, spare=("cost_tokens", "updates", "compute"))


def show_variants(result: VariantsResult) -> None:
    """Print a row for each variant: its sweep's selection, and its lowest loss."""
    rows, marks = [], {}
    for position, variant in enumerate(result.variants):
        selected, best = variant.selected, variant.best_utility
        configuration = None if selected is None else selected.configuration
        rows.append({
            "sweep": variant.name,
            "epsilon": variant.epsilon,
            **{name: getattr(configuration, name, None) for name in HYPERPARAMETERS},
            "utility_loss": None if selected is None else selected.utility_loss,
            "score": None if selected is None else selected.score,
            "lowest loss": None if best is None else best.utility_loss,
        })  # fmt: skip
        named = (("lowest score", result.lowest_score), ("lowest loss", result.lowest_loss))
        if mark_text := ", ".join(mark for mark, name in named if name == variant.name):
            marks[position] = mark_text
    print_table("selected configuration of each variant", rows, marks=marks)
    _show_values(result.variants)
    for variant in result.variants:
        if variant.reason is not None:
            stdout.print(f"{variant.name}: nothing selected: {variant.reason}", markup=False)
    if result.interrupted:
        stdout.print("interrupted: go on with the same command", style="bold")
    if result.report is not None:
        stdout.print(f"comparison: {result.report}", markup=False)

"""Checks that sweeps differ only in their methods, before their methods are compared."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from raydp.sweep.store.folder import SweepFolder

DATA, BASE = "data or secrets (task_hash)", "base model"
MUST_SHARE = (DATA, BASE)
"""Facts that must be equal.

Other data, secrets or base models change losses and scores whatever the method.
"""


def check_comparable(
    tables: Mapping[str, pd.DataFrame],
    folders: Mapping[str, SweepFolder | None],
    *,
    any_data: bool = False,
) -> list[str]:
    """Compare the data, the base models and the guarantees of several tables.

    Args:
        tables: source -> points table.
        folders: source -> its sweep; None for a file, or a part of one.
        any_data: whether to warn of different data, secrets and base models instead of refusing
            them.

    Returns:
        Warnings. Different targets (ε, δ) are no error, because a run without privacy is a common
        baseline.

    Raises:
        ValueError: data, secrets or base model differ. The message names the first two sources that
            differ.
    """
    facts = {source: _facts(table, folders[source]) for source, table in tables.items()}
    warnings = []
    for name in (*MUST_SHARE, "epsilon", "delta"):
        stated = {source: values[name] for source, values in facts.items()}
        # Some tables do not state every fact. Only unknown data deserve a warning.
        unknown = [source for source, value in stated.items() if value is None]
        if unknown and name == DATA:
            warnings.append(
                f"Whether the {name} are the same is not known: {', '.join(unknown)} does not say."
            )
        known = {source: value for source, value in stated.items() if value is not None}
        if len(set(known.values())) < 2:
            continue
        # The first two sources that differ are enough for the message.
        a = next(iter(known))
        b = next(source for source in known if known[source] != known[a])
        difference = f"{a} has {known[a]}, {b} has {known[b]}"
        # Different guarantees are a warning only: a run without privacy is a common baseline.
        if name in MUST_SHARE and not any_data:
            raise ValueError(
                f"methods must be compared on one {name}, got two: {difference}. Run both on one, "
                "or give --any-data to compare them anyway."
            )
        warnings.append(
            f"Not the same {name}, so that differences are not of the methods alone: {difference}."
        )
    return warnings


def _facts(table: pd.DataFrame, folder: SweepFolder | None) -> dict[str, str | None]:
    """Return the facts of a source as texts. A fact is None if the source does not state it."""
    model = None if folder is None else folder.spec().model
    return {
        DATA: _values(table, "task_hash", digits=12),
        BASE: None if model is None else f"{model.name} in {model.weight_dtype}",
        "epsilon": _values(table, "epsilon"),
        "delta": _values(table, "delta"),
    }


def _values(table: pd.DataFrame, column: str, *, digits: int | None = None) -> str | None:
    """Return the distinct values of a column as a text, each cut to `digits` characters."""
    # One missing value makes the whole fact unknown.
    if column not in table or table[column].isna().any():
        return None
    return ", ".join(
        sorted({f"{v:g}" if isinstance(v, float) else str(v)[:digits] for v in table[column]})
    )

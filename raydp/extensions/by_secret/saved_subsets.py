"""Writes subsets of the secrets as points tables, which every figure, rule and report takes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from raydp.analysis.tables.per_secret import ERROR, PREFIX, controls_of
from raydp.extensions.by_secret.subsets import subsets_of
from raydp.sweep.store.points import POINTS_FILE, SECRETS_FILE
from raydp.system.files import write_atomically


def save_subsets(
    points: pd.DataFrame,
    secrets: pd.DataFrame,
    folder: Path,
    *,
    score: str,
    given: Sequence[str] | None = None,
    num_random: int = 3,
    seed: int = 0,
) -> None:
    """Write the subsets as points tables, which every figure, rule and report takes.

    A subset's table is FOLDER/SUBSET/points.csv, such as FOLDER/count-low/points.csv. Its score is
    the mean over the subset's secrets, and it has no other score. The values of these secrets, and
    of the controls that the score subtracts, lie beside it. The owner alone may read them.

    For the arguments and errors see `secret_subsets`.

    Source: Hu et al. 2025, Figures 34 to 36.
    """
    values, _, subsets = subsets_of(points, secrets, score, given, num_random, seed)
    error = f"{PREFIX}{score}{ERROR}"
    others = [c for c in points if str(c).startswith(PREFIX) and c != error]
    # What the score subtracts is of no secret, so every subset keeps it.
    controls = secrets["score"] == controls_of(score)
    for name, chosen in subsets.items():
        of_subset = values[chosen].mean(axis=1)
        own = folder / name.replace(" ", "-")
        own.mkdir(parents=True, exist_ok=True, mode=0o700)
        table = points.drop(columns=others).assign(score=of_subset)
        # The error over the secrets is known for all of them alone.
        if error in table and len(chosen) < values.shape[1]:
            table = table.drop(columns=error)
        table.insert(list(table).index("score") + 1, PREFIX + score, of_subset)
        rows = (secrets["score"] == score) & secrets["secret_id"].isin(chosen)
        content = io.BytesIO()
        secrets[rows | controls].to_parquet(content, index=False)
        write_atomically(own / POINTS_FILE, table.to_csv(index=False).encode(), private=True)
        write_atomically(own / SECRETS_FILE, content.getvalue(), private=True)

"""Writes subsets of the secrets as points tables, which every figure, rule and report takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from raydp.analysis.tables.per_secret import PREFIX
from raydp.analysis.tables.points import save_points
from raydp.extensions.by_secret.subsets import subsets_of
from raydp.sweep.store.points import POINTS_FILE, SECRETS_FILE


def save_subsets(
    points: pd.DataFrame,
    secrets: pd.DataFrame,
    folder: Path,
    *,
    score: str,
    given: Sequence[str] | None = None,
    num_random: int = 3,
    seed: int = 0,
) -> list[Path]:
    """Write the subsets as points tables, which every figure, rule and report takes.

    A subset's table is FOLDER/SUBSET/points.csv, such as FOLDER/count-low/points.csv. Its score is
    the mean over the subset's secrets, and it has no other score. The values of these secrets lie
    beside it. For the arguments and errors see `secret_subsets`.

    Source: Hu et al. 2025, Figures 34 to 36.
    """
    values, _, subsets = subsets_of(points, secrets, score, given, num_random, seed)
    kept = [column for column in points if not str(column).startswith(PREFIX)]
    written = list[Path]()
    for name, chosen in subsets.items():
        of_subset = values[chosen].mean(axis=1)
        own = folder / name.replace(" ", "-")
        own.mkdir(parents=True, exist_ok=True)
        table = points[kept].assign(**{"score": of_subset, PREFIX + score: of_subset})
        save_points(table, own / POINTS_FILE)
        rows = (secrets["score"] == score) & secrets["secret_id"].isin(chosen)
        secrets[rows].to_parquet(own / SECRETS_FILE, index=False)
        written.append(own / POINTS_FILE)
    return written

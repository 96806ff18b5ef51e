"""The points of all sweeps of a study in one table, with the axes as columns."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd

from raydp.analysis.tables.points import read_points
from raydp.extensions.study.document import Cell, Study
from raydp.search_spaces.settings import Settings
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.points import POINTS_FILE, SECRETS_FILE, points_table, secrets_table
from raydp.system.files import write_atomically


def files_of(study: Study) -> dict[str, Path]:
    """Return the files of a study's folder: its points, and the pages on its sweeps and its ε."""
    return {
        "points": study.folder / POINTS_FILE,
        "comparison": study.folder / "comparison.html",
        "envelope": study.folder / "envelope.html",
    }


def begun(study: Study) -> list[Cell]:
    """Return the cells whose sweeps were started."""
    return [cell for cell in study.cells if SweepFolder.exists(cell.spec)]


def folder_of(cell: Cell) -> SweepFolder:
    """Return the folder of a cell's sweep."""
    return SweepFolder.resume(cell.spec)


def study_points(study: Study) -> pd.DataFrame:
    """Return one row per run of all sweeps that were started.

    The axes are columns, and stand in `settings` beside the further fields, so that a configuration
    of one cell is another configuration than the same (b, T, η) of another cell, and ε counts as a
    coordinate of the scores' surface. `cell` is the name of the sweep.
    """
    tables = [_table(cell) for cell in begun(study)]
    if not tables:
        raise ValueError(
            f"STUDY must have begun, got {study.name!r} without a sweep. Run `raydp study` first."
        )
    return pd.concat(tables, ignore_index=True)


def _table(cell: Cell) -> pd.DataFrame:
    """Return the points of one cell, with the axes."""
    table = points_table(folder_of(cell))
    own = table["settings"] if "settings" in table else [""] * len(table)
    settings = [Settings({**cell.values, **Settings.parse(text)}).text for text in own]
    table = table.assign(settings=settings, cell=cell.spec.name)
    axes = pd.DataFrame([dict(cell.values)] * len(table), index=table.index)
    return pd.concat([table, axes[axes.columns.difference(table.columns)]], axis=1)


def study_secrets(study: Study) -> pd.DataFrame:
    """Return the values by secret of all runs.

    The untrained model's rows come once. They are left out where the sweeps have different ones,
    because of other data or another model.
    """
    table = pd.concat(
        [secrets_table(folder_of(cell)).assign(cell=cell.spec.name) for cell in begun(study)],
        ignore_index=True,
    )
    untrained = table["run_id"] == BASE_RUN
    of_base = table[untrained].drop_duplicates(["score", "secret_id", "value"])
    if of_base.duplicated(["score", "secret_id"]).any():
        of_base = of_base.iloc[:0]
    return pd.concat([of_base, table[~untrained]], ignore_index=True)


def write_study_tables(study: Study) -> pd.DataFrame:
    """Write points.csv and secrets.parquet into the study's folder, and return the points.

    The owner alone may read them.
    """
    secrets = io.BytesIO()
    study_secrets(study).to_parquet(secrets, index=False)
    points = study_points(study).to_csv(index=False)
    write_atomically(study.folder / POINTS_FILE, points.encode(), private=True)
    write_atomically(study.folder / SECRETS_FILE, secrets.getvalue(), private=True)
    # Through the file's format, so that the table and its file give equal figures.
    return read_points(study.folder / POINTS_FILE, content=points)

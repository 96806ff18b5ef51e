"""The lower bounds that an audit has proven, by configuration, from an audit's sweep or a file."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from raydp.analysis.tables.files import read_table
from raydp.extensions.auditing.report import SCORE, report_of
from raydp.search_spaces import Configuration
from raydp.sweep.api import sweep_folder
from raydp.sweep.planning.sources import is_spec

COLUMNS = ["batch_size", "num_steps", "learning_rate", "epsilon_hat"]


def audited_bounds(audit: str, storage: str = "raydp_runs") -> pd.DataFrame:
    """Return one row per audited configuration: its hyperparameters, settings and epsilon_hat.

    epsilon_hat is the largest ε̂ of the configuration's seeds, corrected for their number.

    Args:
        audit: a CSV or Parquet file with these columns, or an audit's sweep by its folder or its
            name under storage.
        storage: folder that sweeps are looked up in by name.

    Raises:
        ValueError: there is no such file or sweep, the sweep is not an audit, or none of its runs
            has finished.
    """
    # A table that somebody wrote; a spec is also a file, but names a sweep.
    path = Path(audit)
    if (path.is_file() and not is_spec(path)) or path.suffix in {".csv", ".parquet"}:
        if not path.is_file():
            raise ValueError(
                f"audit must be an existing file or sweep, got {audit!r}. Check the path."
            )
        return read_table(path, as_text=COLUMNS)
    folder = sweep_folder(audit, storage)
    # Only an audit's sweep has this one score.
    measured = [score.name for score in folder.spec().scores]
    if measured != [SCORE]:
        raise ValueError(
            f"audit must be a sweep of `raydp audit`, got {audit!r}, which measures "
            f"{', '.join(measured)}."
        )
    report = report_of(audit, folder)
    if not report.configurations:
        raise ValueError(
            f"audit must have a finished run, got none in {audit!r}. Let `raydp audit` go on."
        )
    rows = [
        {**Configuration.from_json(row).to_row(), "epsilon_hat": row["epsilon_hat"]}
        for row in report.configurations
    ]
    return pd.DataFrame(rows)

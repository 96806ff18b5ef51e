"""`raydp points`: the points table of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from raydp import analysis
from raydp.cli.arguments import Json, OneSweep, Storage
from raydp.cli.registration import READ, ExtraCommand
from raydp.search_spaces.configuration import HYPERPARAMETERS
from raydp.system.imports import imported
from raydp.system.output import print_json, print_table, stderr, stdout


def points(
    sweep: OneSweep,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="FILE.csv or FILE.parquet.")
    ] = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """The points table of a sweep."""
    # The table of runs that may not be shown may be looked at, but must not leave.
    folder = imported("raydp.sweep.api").sweep_folder(sweep, storage)  # so --help is quick
    table = imported("raydp.sweep.store.points").points_table(folder)
    if (private := folder.disclosure().note) is not None:
        stderr.print(f"warning: the table shows {private}.", markup=False)
    if output is not None:
        analysis.save_points(table, output)
    if json:
        print_json(table.to_dict("records"))
    elif output is not None:
        stdout.print(f"{len(table)} rows written to {output}")
    else:
        shown = [*HYPERPARAMETERS, "seed", "status", "utility_loss", "score", "model_uri"]
        print_table(
            folder.path.name, cast("list[dict[str, object]]", table[shown].to_dict("records"))
        )


COMMAND = ExtraCommand(run=points, panel=READ)

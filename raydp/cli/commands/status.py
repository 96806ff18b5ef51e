"""`raydp status`: how far a sweep is."""

from __future__ import annotations

from raydp.cli.arguments import Json, OneSweep, Storage
from raydp.cli.registration import READ, ExtraCommand
from raydp.system.imports import imported
from raydp.system.output import print_json


def status(sweep: OneSweep, storage: Storage = "raydp_runs", json: Json = False) -> None:
    """Number of finished, failed (with reasons) and pending runs, and how far those in progress
    are."""
    show = imported("raydp.cli.show.sweeps")  # here, so that --help needs no pandas
    folder = imported("raydp.sweep.api").sweep_folder(sweep, storage)
    run_counts, progress = imported("raydp.sweep.store.points").counts(folder), folder.progress()
    if json:
        print_json({**run_counts.to_json(), **show.progress_document(folder, progress)})
    else:
        show.show_status(folder, run_counts, progress)


COMMAND = ExtraCommand(run=status, panel=READ)

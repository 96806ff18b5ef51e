"""`raydp status`: how far a sweep is."""

from __future__ import annotations

from raydp.cli.arguments import Json, OneSweep, Storage
from raydp.cli.registration import READ, ExtraCommand
from raydp.cli.show.sweeps import progress_document, show_status
from raydp.io.output import print_json
from raydp.sweep.api import sweep_folder
from raydp.sweep.store.points import counts


def status(sweep: OneSweep, storage: Storage = "raydp_runs", json: Json = False) -> None:
    """Number of finished, failed (with reasons) and pending runs, and how far those in progress
    are."""
    folder = sweep_folder(sweep, storage)
    run_counts, progress = counts(folder), folder.progress()
    if json:
        print_json({**run_counts.to_json(), **progress_document(folder, progress)})
    else:
        show_status(folder, run_counts, progress)


COMMAND = ExtraCommand(run=status, panel=READ)

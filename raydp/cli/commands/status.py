"""`raydp status`: how far a sweep is."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from raydp.cli.arguments import Json, OneSweep, Storage
from raydp.cli.registration import READ, ExtraCommand
from raydp.system.imports import imported
from raydp.system.output import print_json, stdout

LOOK_SECONDS = 2.0
"""Time between two looks at a sweep that is watched."""
QUIET_SECONDS = 60.0
"""How long a watched sweep may have no driver; a driver needs some time to start."""


def status(
    sweep: OneSweep,
    watch: Annotated[
        bool, typer.Option("--watch", help="Print each change, until the sweep ends or Ctrl-C.")
    ] = False,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """Number of finished, failed (with reasons) and pending runs, and how far those in progress
    are."""
    show = imported("raydp.cli.show.sweeps")  # here, so that --help needs no pandas
    folder = imported("raydp.sweep.api").sweep_folder(sweep, storage)
    counts_of = imported("raydp.sweep.store.points").counts
    if json and watch:
        raise ValueError(
            "--watch must be given without --json, got both. Call `raydp status --json` at intervals."
        )
    if json:
        print_json(
            {**counts_of(folder).to_json(), **show.progress_document(folder, folder.progress())}
        )
        return
    shown, driven = None, time.monotonic()
    while True:
        counts, progress = counts_of(folder), folder.progress()
        state = (counts, None if progress is None else (progress.sentence, progress.running))
        if state != shown:
            if stdout.is_terminal and shown is not None:
                stdout.clear()
            show.show_status(folder, counts, progress)
            shown = state
        # It has ended, or nobody runs it.
        driven = driven if progress is None else time.monotonic()
        over = folder.summary() is not None and progress is None
        if not watch or over or time.monotonic() - driven > QUIET_SECONDS:
            return
        time.sleep(LOOK_SECONDS)


COMMAND = ExtraCommand(run=status, panel=READ)

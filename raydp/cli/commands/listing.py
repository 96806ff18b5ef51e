"""`raydp list`: the sweeps under a storage folder."""

from __future__ import annotations

from raydp.cli.arguments import Json, Storage
from raydp.cli.registration import READ, ExtraCommand
from raydp.io.output import print_json
from raydp.sweep.listing import list_sweeps, show_sweeps


def list_(storage: Storage = "raydp_runs", json: Json = False) -> None:
    """The sweeps under a storage folder: their runs, the selected configuration, when they
    changed."""
    sweeps = list_sweeps(storage)
    print_json([sweep.to_json() for sweep in sweeps]) if json else show_sweeps(storage, sweeps)


COMMAND = ExtraCommand(run=list_, panel=READ)

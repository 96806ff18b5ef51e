"""`raydp list`: the sweeps under a storage folder."""

from __future__ import annotations

from raydp.cli.arguments import Json, Storage
from raydp.cli.registration import READ, ExtraCommand
from raydp.system.imports import imported
from raydp.system.output import print_json


def list_(storage: Storage = "raydp_runs", json: Json = False) -> None:
    """The sweeps under a storage folder: their runs, the selected configuration, when they
    changed."""
    listing = imported("raydp.extensions.listing.sweeps")  # here, so that --help needs no pandas
    found = listing.list_sweeps(storage)
    if json:
        print_json([sweep.to_json() for sweep in found])
    else:
        listing.show_sweeps(storage, found)


COMMAND = ExtraCommand(run=list_, panel=READ)

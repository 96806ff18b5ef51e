"""`raydp budget`: what all sweeps on the same data have released together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raydp.cli.arguments import DEFAULT_URI, Json, Storage, TrustedKey, Uri
from raydp.cli.registration import PRIVACY, ExtraCommand
from raydp.system.imports import imported
from raydp.system.output import print_json, stderr


def budget(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="SWEEP|DATA",
            help="A sweep: its folder, name or spec; or a name or hash of data. All, if left out.",
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="A budget: how much of it is spent? With --delta.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="δ of all together; the largest of the sweeps by default.")
    ] = None,
    accountant: Annotated[str, typer.Option(help="pld, prv or rdp.")] = "pld",
    restore: Annotated[
        bool,
        typer.Option("--restore", help="SWEEP: enter again what its store has lost."),
    ] = False,
    trusted_key: TrustedKey = None,
    uri: Uri = DEFAULT_URI,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """What all sweeps on the same data have released together, from the ledger of their store."""
    if epsilon is not None and not 0 < epsilon <= 1000:
        raise ValueError(f"--epsilon must be > 0 and <= 1000, got {epsilon:g}. Change it.")
    if epsilon is not None and delta is None:
        raise ValueError("--delta must be given with --epsilon, got nothing. Add it.")
    if delta is not None and not 0 < delta < 1:
        raise ValueError(f"--delta must be > 0 and < 1, got {delta:g}. Change it.")
    with stderr.status("reading the ledger"):
        statement = imported("raydp.extensions.ledger.statement")
        found = statement.statement_of(
            data,
            limit=None if epsilon is None or delta is None else (epsilon, delta),
            delta=delta,
            accountant=accountant,
            restore=restore,
            keys=trusted_key,
            uri=uri,
            storage=Path(storage),
        )
    print_json(found) if json else statement.show(found)
    # A script must see that entries are missing.
    if found["problems"]:
        raise typer.Exit(1)


COMMAND = ExtraCommand(run=budget, panel=PRIVACY, before="mia")

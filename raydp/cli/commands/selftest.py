"""`raydp selftest`: whether training does what its ε assumes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raydp.cli.arguments import Json
from raydp.cli.registration import RUN, ExtraCommand
from raydp.spec.reading import draft_spec


def selftest(
    spec: Annotated[
        Path | None, typer.Argument(metavar="SPEC", help="Also checks its task, model, method.")
    ] = None,
    json: Json = False,
) -> None:
    """Check that training does what its ε assumes: sensitivity, noise, sampling, records, keys and
    an audit."""
    if spec is not None:
        draft_spec(spec)  # mistakes are reported before heavy imports
    from raydp.cli.show.selftest import selftest_command

    if not selftest_command(spec, json=json):
        raise typer.Exit(1)


COMMAND = ExtraCommand(run=selftest, panel=RUN)

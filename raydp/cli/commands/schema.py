"""`raydp schema`: the JSON Schema of a spec, or of a privacy card."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from raydp.cli.registration import RUN, ExtraCommand
from raydp.privacy.records.schema import card_schema
from raydp.spec import reading
from raydp.system.output import print_json


def schema(
    of: Annotated[
        Literal["spec", "card"], typer.Option(help="The spec, or a model's privacy.json.")
    ] = "spec",
) -> None:
    """JSON Schema of the spec, for editors, or of a model's privacy card, for programs that read
    it."""
    print_json(card_schema() if of == "card" else reading.json_schema())


COMMAND = ExtraCommand(run=schema, panel=RUN)

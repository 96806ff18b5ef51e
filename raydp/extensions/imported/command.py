"""`raydp import`: score, track, select and report models that others trained."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from raydp.cli.arguments import Json
from raydp.cli.registration import MODELS, ExtraCommand
from raydp.cli.show.sweeps import show_result
from raydp.system.interruption import or_partial
from raydp.system.output import print_json, stderr


def import_(
    runs: Annotated[
        Path, typer.Argument(metavar="RUNS", help="A CSV file with a row for each model.")
    ],
    spec: Annotated[
        Path, typer.Option("--spec", help="A spec with task, model.name, scores and select.")
    ],
    resume: Annotated[bool, typer.Option("--resume", help="Continue where it stopped.")] = False,
    json: Json = False,
) -> None:
    """Score, track, register and select models that others trained.

    RUNS has the columns model (a folder that peft or transformers saved, beside the file),
    batch_size, num_steps, learning_rate, and noise_multiplier or epsilon with delta; optionally
    seed, and columns of your own. What is stated stays a claim: no look-up that asks for a
    guarantee finds these models.
    """
    with stderr.status("reading the models and loading the libraries"):
        from raydp.extensions.imported.spec import imported_spec
        from raydp.sweep.api import Sweep

        chosen = Sweep(imported_spec(runs, spec))
    with redirect_stdout(sys.stderr):  # Ray prints its own messages to stdout
        result = or_partial(lambda: chosen.run(resume=resume))
    print_json(result.document()) if json else show_result(chosen, result)
    if result.selected is None or result.interrupted:
        raise typer.Exit(1)


COMMAND = ExtraCommand(run=import_, panel=MODELS, before="models")

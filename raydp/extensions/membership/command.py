"""`raydp mia`: membership inference on stored outputs, or against shadow models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raydp.cli.arguments import Json, configuration_of
from raydp.cli.registration import PRIVACY, ExtraCommand
from raydp.spec.reading import draft_spec


def mia(
    source: Annotated[
        Path,
        typer.Argument(metavar="FILE.npz|SPEC", help="Stored outputs, or a sweep's YAML file."),
    ],
    neural: Annotated[
        bool, typer.Option("--neural", help="FILE.npz: also the neural attack.")
    ] = False,
    shadows: Annotated[
        int | None, typer.Option(help="SPEC: how many shadow models, an even number.")
    ] = None,
    configuration: Annotated[
        str | None,
        typer.Option(
            help="SPEC: batch_size,num_steps,learning_rate; the first of the space by default."
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, help="Seed of the neural attack, or of the models' training halves."),
    ] = 0,
    json: Json = False,
) -> None:
    """How well an attacker tells membership in the training data from a model's answers."""
    if source.suffix == ".npz":
        from raydp.extensions.membership.show import stored_outputs_command

        given = {"--shadows": shadows, "--configuration": configuration}
        stored_outputs_command(source, given=given, neural=neural, seed=seed, json=json)
        return

    draft_spec(source)  # mistakes are reported before heavy imports
    from raydp.extensions.membership.show_shadows import shadows_command

    point = None if configuration is None else configuration_of(configuration)
    shadows_command(source, shadows, point, seed=seed, neural=neural, json=json)


COMMAND = ExtraCommand(run=mia, panel=PRIVACY, before="audit")

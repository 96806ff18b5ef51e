"""`raydp pate`: the privacy cost of the teachers' noisy votes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raydp.cli.arguments import Json
from raydp.cli.registration import PRIVACY, ExtraCommand
from raydp.extensions.pate.answer import pate_of, show_pate
from raydp.system.output import print_json


def pate(
    votes: Annotated[
        Path,
        typer.Argument(
            metavar="VOTES",
            help="CSV: a row of counts per query, a column per class; or a run's SWEEP/trials/RUN_ID.",
        ),
    ],
    sigma: Annotated[
        float | None, typer.Option(help="Standard deviation of the noise on each count.")
    ] = None,
    delta: Annotated[float | None, typer.Option()] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Confident-GNMax: answer only where the noisy largest count is at least this."
        ),
    ] = None,
    sigma1: Annotated[
        float | None, typer.Option(help="Standard deviation of the noise on the largest count.")
    ] = None,
    publish: Annotated[
        str | None,
        typer.Option(
            help="ORDER,BETA,NOISE: also an ε with noise that may be published; `suggest` proposes them."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """ε of PATE's answers, both for these votes and for any votes (Papernot et al. 2018)."""
    answer = pate_of(
        votes, sigma=sigma, delta=delta, threshold=threshold, sigma1=sigma1, publish=publish
    )
    print_json(answer) if json else show_pate(answer)


COMMAND = ExtraCommand(run=pate, panel=PRIVACY, before="audit")

"""`raydp select`: one configuration of a points table."""

from __future__ import annotations

from typing import Annotated

import typer

from raydp.cli.arguments import (
    By,
    Json,
    MaxLoss,
    MinGain,
    Rule,
    Source,
    Storage,
    WorstCase,
    bounds,
)
from raydp.cli.registration import READ, ExtraCommand
from raydp.system.imports import imported
from raydp.system.output import print_json


def select(
    points: Source,
    max_loss: MaxLoss = None,
    min_gain_share: MinGain = None,
    max_score: Annotated[
        float | None, typer.Option(help="Highest 95 % upper limit of the score.")
    ] = None,
    at_most: Annotated[
        list[str] | None, typer.Option(help="COLUMN=VALUE, such as epsilon=8; repeatable.")
    ] = None,
    rule: Rule = None,
    score: By = None,
    worst_case: WorstCase = False,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """Select one configuration, and say how far the data support the choice."""
    selection = imported("raydp.sweep.api").select(  # here, so that --help needs no pandas
        points,
        storage=storage,
        rule=rule,
        max_loss=max_loss,
        min_gain_share=min_gain_share,
        max_score=max_score,
        at_most=bounds(at_most),
        score=score,
        worst_case=worst_case,
    )
    if json:
        print_json(selection.to_dict())
    else:
        imported("raydp.cli.show.sweeps").show_selection(selection)


COMMAND = ExtraCommand(run=select, panel=READ)

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
    options_of,
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
    explain: Annotated[
        bool, typer.Option("--explain", help="Also the rule's steps, all runs, and the guarantee.")
    ] = False,
    json: Json = False,
) -> None:
    """Select one configuration, and say how far the data support the choice."""
    api = imported("raydp.sweep.api")  # here, so that --help needs no pandas
    given: dict[str, object] = {
        "max_loss": max_loss,
        "min_gain_share": min_gain_share,
        "max_score": max_score,
        "at_most": bounds(at_most),
        "score": score,
        "worst_case": worst_case,
    }
    source = api.source_of(points, storage)
    # A person also sees what it is compared with.
    rules = [rule] if json else [rule, "best-utility"]
    selection, *others = api.selections(source, rules, **given)
    if json:
        print_json(selection.to_dict())
        return
    # Equal rules give one selection.
    best = [selection, *others][-1] if source.shows_runs else None
    if explain:
        imported("raydp.cli.show.explanation").show_explanation(selection, best, source.planned)
    else:
        options = options_of(
            {"storage": storage, **given, "rule": rule, "at_most": at_most}, storage="raydp_runs"
        )
        imported("raydp.cli.show.verdict").show_verdict(
            selection, best, source=points, folder=source.planned, options=options
        )


COMMAND = ExtraCommand(run=select, panel=READ)

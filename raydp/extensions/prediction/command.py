"""`raydp predict`: predictions for configurations that have not been run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from raydp.cli.arguments import By, Json, Source, Storage, WorstCase, configuration_of
from raydp.cli.registration import READ, ExtraCommand
from raydp.extensions.prediction.predictions import predict as predicted
from raydp.search_spaces import load_space
from raydp.sweep.api import source_of
from raydp.system.output import print_json, print_table, print_warning, stderr

COMPLETE = (
    "Every combination of the table's values has run, so no configuration is left to predict. "
    "Name others by --configuration b,T,η or --space NAME."
)


def predict(
    points: Source,
    configuration: Annotated[
        list[str] | None, typer.Option(help="batch_size,num_steps,learning_rate; repeatable.")
    ] = None,
    space: Annotated[
        str | None, typer.Option(help="A named space: its configurations that have not run.")
    ] = None,
    max_loss: Annotated[
        float | None, typer.Option(help="Also: the probability that the loss is at most this.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
    score: By = None,
    worst_case: WorstCase = False,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """Score and utility, with 95 % intervals, of configurations that have not been run.

    The default is all combinations of the table's values that the table lacks. The list is empty if
    it lacks none.
    """
    # Configurations that are named, then those of a named space; by default the grid's gaps.
    table = source_of(points, storage).points(score=score, worst_case=worst_case)
    asked = [configuration_of(text) for text in configuration or ()]
    if space is not None:
        asked += load_space(space).configurations
    rows = predicted(table, asked or None, max_loss=max_loss, seed=seed)
    if not rows:
        stderr.print(COMPLETE, markup=False)
    if json:
        print_json(rows)
    elif rows:
        show_predictions(rows)


def show_predictions(rows: Sequence[Mapping[str, object]]) -> None:
    """Print the predictions for configurations not run, under names short enough to fit."""
    names = {
        "score_interval": "score 95 %",
        "score_run_interval": "of a run",
        "utility_interval": "loss 95 %",
        "utility_run_interval": "of a run ",
    }
    shown = [{names.get(k, k): v for k, v in row.items()} for row in rows]
    print_table("predictions; 95 % intervals of the expectation over seeds, and of one run", shown)
    if any(row["beyond"] for row in rows):
        print_warning(
            "rows with a hyperparameter `beyond` the measured values are linear extrapolations: "
            "they ignore the range of a score, and that runs may diverge."
        )


COMMAND = ExtraCommand(run=predict, panel=READ, before="analyze")

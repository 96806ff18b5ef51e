"""`raydp analyze effects|confound|regression`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from raydp.cli.arguments import By, Json, MaxLoss, MinGain, Source, Storage, WorstCase
from raydp.cli.commands.analyze import Grouped, figure_command, of_useful, points_of, print_figure
from raydp.cli.registration import READ, ExtraCommand
from raydp.extensions.hyperparameters.regression import regress


def regression(
    points: Source,
    errors: Annotated[str, typer.Option(help="Standard errors: ols, hc3, cluster, mixed.")] = "ols",
    score: By = None,
    worst_case: WorstCase = False,
    max_loss: MaxLoss = None,
    min_gain_share: MinGain = None,
    by: Grouped = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """Least squares of the score on the logarithms of the hyperparameters (Tables 2 and 13)."""
    table = points_of(points, storage, score, worst_case, by)
    figure = partial(regress, errors=errors)  # type: ignore[arg-type]  # checked there
    print_figure(of_useful(figure, max_loss, min_gain_share), table, by, json)


EFFECTS = ExtraCommand(
    run=figure_command(
        "hyperparameter_effects", "One hyperparameter at a time, the others held fixed (Fig. 5)."
    ),
    panel=READ,
    group="analyze",
)
CONFOUND = ExtraCommand(
    run=figure_command(
        "utility_adjusted",
        "The score adjusted for utility, and the share of its variance that remains.",
    ),
    panel=READ,
    group="analyze",
)
REGRESSION = ExtraCommand(run=regression, panel=READ, group="analyze")

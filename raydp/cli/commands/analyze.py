"""`raydp analyze`: figures of a points table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from raydp import analysis
from raydp.cli.arguments import By, Json, MaxLoss, MinGain, Source, Storage, WorstCase
from raydp.cli.groups import CommandGroup
from raydp.cli.registration import READ, ExtraCommand
from raydp.plugins.described import shortened
from raydp.system.output import print_document, print_json, stdout

if TYPE_CHECKING:
    import pandas as pd

    from raydp.sweep.store.source import PointsSource

    Figure = Callable[[pd.DataFrame], Mapping[str, object]]

analyze_app = typer.Typer(cls=CommandGroup, help="Figures of a points table.")

Resamples = Annotated[int, typer.Option(min=100, help="Number of bootstrap resamples.")]
Grouped = Annotated[
    str | None,
    typer.Option(help="A column: each group of rows apart, such as privacy.target_epsilon's."),
]
Layouts = Annotated[int, typer.Option(help="resample: number of draws around the means.")]

FIGURES = {
    "heuristics": (
        "heuristic_accuracy",
        "How often each pairwise heuristic is right (Hu et al. 2025, section 4.2).",
    ),
    "verify-heuristics": (
        "verify_heuristics",
        "Whether model and data follow the heuristics: permutation tests.",
    ),
    "variance": (
        "score_variance",
        "Empirical privacy variance: over configurations and over seeds (Table 8).",
    ),
}
"""Command -> (function of `analysis` that takes a points table, help text)."""


def figure_command(function: str, summary: str) -> Callable[..., None]:
    """Return the command that prints a function of `analysis` on a points table."""

    def command(
        points: Source,
        score: By = None,
        worst_case: WorstCase = False,
        max_loss: MaxLoss = None,
        min_gain_share: MinGain = None,
        by: Grouped = None,
        storage: Storage = "raydp_runs",
        json: Json = False,
    ) -> None:
        table = points_of(points, storage, score, worst_case, by)
        figure = of_useful(getattr(analysis, function), max_loss, min_gain_share)
        print_figure(figure, table, by, json, function.replace("_", " "))

    command.__doc__ = summary
    return command


def points_of(
    points: str, storage: str, score: str | None, worst_case: bool, by: str | None = None
) -> pd.DataFrame:
    """Return a points table or the points of a sweep, with the asked score."""
    from raydp.sweep.api import source_of  # takes seconds, which the help of the group spares

    return source_of(points, storage).points(score=score, worst_case=worst_case, by=by)


def check_shown(source: PointsSource, what: str) -> None:
    """Raise ValueError if a sweep is a private selection, whose other runs are not shown."""
    if not source.shows_runs:
        raise ValueError(
            f"{what} must be of a sweep whose runs may be shown, got a private selection. Leave it out."
        )


def of_useful(figure: Figure, max_loss: float | None, min_gain: float | None) -> Figure:
    """Return a figure of those configurations of a table that pass the utility filter."""
    return lambda table: figure(
        analysis.useful_points(table, max_loss=max_loss, min_gain_share=min_gain)
    )


def print_figure(
    figure: Figure, table: pd.DataFrame, by: str | None, json: bool, title: str = ""
) -> None:
    """Print a figure of a table, or of each group of its rows by the values of a column."""
    if by is None:
        print_answer(figure(table), json, title)
        return
    answers = analysis.of_each(analysis.split_by(table, by), figure)
    if json:
        print_json({"by": by, "groups": answers})
        return
    for name, answer in answers.items():
        stdout.print(f"{by} {shortened(name)}", style="bold", markup=False)
        print_document(answer, title)


def print_answer(answer: Mapping[str, object], json: bool, title: str = "") -> None:
    """Print an answer as JSON, or as tables."""
    print_json(answer) if json else print_document(answer, title)


# One command for each figure: they have the same options.
for _name, (_function, _summary) in FIGURES.items():
    analyze_app.command(_name)(figure_command(_function, _summary))


@analyze_app.command()
def risk(
    points: Source,
    layout: Annotated[
        str, typer.Option(help="mean, or resample: draws around the means of the seeds.")
    ] = "mean",
    num_layouts: Layouts = 5000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
    score: By = None,
    worst_case: WorstCase = False,
    max_loss: MaxLoss = None,
    min_gain_share: MinGain = None,
    by: Grouped = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """Privacy risk of each rule against the oracle, averaged over thresholds (section 4.3,
    App. D.3)."""
    table = points_of(points, storage, score, worst_case, by)
    risk_of = partial(analysis.privacy_risk, layout=layout, num_layouts=num_layouts, seed=seed)  # type: ignore[arg-type]
    print_figure(of_useful(risk_of, max_loss, min_gain_share), table, by, json)


COMMAND = ExtraCommand(run=analyze_app, panel=READ)

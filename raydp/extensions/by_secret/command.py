"""`raydp analyze scores|subsets`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from raydp.cli.arguments import Json, Source, Storage
from raydp.cli.commands.analyze import Resamples, check_shown
from raydp.cli.registration import READ, ExtraCommand
from raydp.extensions.by_secret.intervals import ConfigurationScore, ScoreIntervals, score_intervals
from raydp.extensions.by_secret.saved_subsets import save_subsets
from raydp.extensions.by_secret.subsets import secret_subsets
from raydp.search_spaces.settings import settings_in_words
from raydp.sweep.api import source_of
from raydp.sweep.store.points import POINTS_FILE
from raydp.system.output import print_json, print_table, stdout


def scores(
    points: Source, resamples: Resamples = 2000, storage: Storage = "raydp_runs", json: Json = False
) -> None:
    """Every score of every configuration: mean, worst case, quantiles, 95 % intervals over secrets
    and seeds."""
    source = source_of(points, storage)
    answer = score_intervals(source.points(), source.secrets, num_resamples=resamples)
    print_json(answer) if json else show_intervals(answer)


def subsets(
    points: Source,
    score: Annotated[str | None, typer.Option(help="Its name; the sweep's own by default.")] = None,
    secrets: Annotated[
        str | None, typer.Option(help="A subset: comma-separated names, secret-001,secret-007.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FOLDER", help="Also write each subset's points table."
        ),
    ] = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """Empirical privacy variance on subsets of the secrets: random halves, by count, or as
    named."""
    # A file does not say which score was selected by; a sweep does.
    source = source_of(points, storage)
    table, values, name = source.points(), source.secrets, source.score(score)
    if name is None:
        raise ValueError("--score must be given with a file, got none. Name one of its scores.")
    given = None if secrets is None else [name.strip() for name in secrets.split(",")]
    answer = secret_subsets(table, values, score=name, given=given)
    if output is not None:
        check_shown(source, "--output")
        save_subsets(table, values, output, score=name, given=given)
    if json:
        print_json(answer)
        return
    print_table(f"{answer['score']} on subsets of the secrets", answer["subsets"])
    if output is not None:
        stdout.print(
            f"written: {output}/all/{POINTS_FILE}, and one for each other subset, for you alone to read"
        )


def show_intervals(answer: ScoreIntervals) -> None:
    """Print one table per score, one row per configuration."""
    for name, score in answer["scores"].items():
        rows = [
            {
                "batch_size": row["batch_size"],
                "num_steps": row["num_steps"],
                "learning_rate": row["learning_rate"],
                **_further(row, score["configurations"]),
                "seeds": row["num_seeds"],
                "mean": row["mean"],
                "95 %": row["interval"],
                **{f"q{q}": value for q, value in row["quantiles"].items()},
                "max": row["max"],
            }
            for row in score["configurations"]
        ]
        # The spread over configurations is the empirical privacy variance.
        spread = {"std of means": score["score_std"], "std of maxima": score["worst_case_std"]}
        text = ", ".join(f"{key} {value:.4g}" for key, value in spread.items() if value is not None)
        print_table(f"{name}: {text}", rows)


def _further(row: ConfigurationScore, every: Sequence[ConfigurationScore]) -> dict[str, object]:
    """Return the column of the further fields, if a configuration sets any."""
    if not any("settings" in other for other in every):
        return {}
    return {"further fields": settings_in_words(row.get("settings", {}))}


SCORES = ExtraCommand(run=scores, panel=READ, group="analyze")
SUBSETS = ExtraCommand(run=subsets, panel=READ, group="analyze")

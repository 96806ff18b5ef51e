"""`raydp analyze trends|methods|counterfactual`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from raydp.cli.arguments import By, Json, MaxLoss, MinGain, Storage, WorstCase
from raydp.cli.commands.analyze import print_answer
from raydp.cli.registration import READ, ExtraCommand
from raydp.extensions.comparison.comparable import check_comparable
from raydp.extensions.comparison.left_out import compare
from raydp.extensions.comparison.methods import Comparisons, compare_methods, without_axis
from raydp.extensions.comparison.sources import classify, open_sources, tables_of
from raydp.extensions.comparison.trends import variance_trends
from raydp.system.output import print_json, print_table, print_warning, stdout


def trends(
    points: Annotated[
        list[str], typer.Argument(metavar="POINTS|SWEEP...", help="Groups, or one table with --by.")
    ],
    by: Annotated[
        str | None, typer.Option(help="A column to group one table by, such as epsilon.")
    ] = None,
    score: By = None,
    worst_case: WorstCase = False,
    max_loss: MaxLoss = None,
    min_gain_share: MinGain = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """Empirical privacy variance of several sweeps, or of a table's groups: spreads and ratios
    (Fig. 2, 14)."""
    sources = open_sources(points, storage)
    tables = tables_of(sources, score=score, worst_case=worst_case, by=by)
    answer = variance_trends(
        tables, max_loss=max_loss, min_gain_share=min_gain_share, values=by is not None
    )
    if json:
        print_json(answer)
        return
    print_table("groups", answer["groups"])
    print_table("ratios of standard deviations, b over a", answer["comparisons"])


def methods(
    sweeps: Annotated[
        list[str],
        typer.Argument(
            metavar="POINTS|SWEEP...", help="Two or more of one space, or one table with --by."
        ),
    ],
    by: Annotated[
        str | None, typer.Option(help="An axis of a study to group its table by, such as method.")
    ] = None,
    any_data: Annotated[
        bool,
        typer.Option(
            "--any-data", help="Also where data, secrets or base models differ, with a warning."
        ),
    ] = False,
    score: By = None,
    worst_case: WorstCase = False,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """Two methods or more on the same configurations: paired t, Wilcoxon, errors, correlation
    (Zagardo 2024)."""
    sources = open_sources(sweeps, storage)
    tables = tables_of(sources, score=score, worst_case=worst_case, by=by)
    if by is not None:
        tables = without_axis(tables, by)
    # Different data or base models make a comparison of methods meaningless.
    folders = {name: None if by else sources[name].folder for name in tables}
    warnings = check_comparable(tables, folders, any_data=any_data)
    answer = compare_methods(tables, with_perplexity=not classify(sources))
    print_json({**answer, "warnings": warnings}) if json else show_methods(answer, warnings)


def counterfactual(
    sweep_with: Annotated[str, typer.Argument(metavar="SWEEP_WITH", help="Folder, name or spec.")],
    sweep_without: Annotated[
        str, typer.Argument(metavar="SWEEP_WITHOUT", help="One with the task `without`.")
    ],
    score: Annotated[
        str | None, typer.Option(help="By default the one that SWEEP_WITH selects by.")
    ] = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """The effect on a secret's score of training on its examples (Zhang et al. 2023): with minus
    without."""
    print_answer(compare(sweep_with, sweep_without, score=score, storage=storage), json)


def show_methods(answer: Comparisons, warnings: Sequence[str]) -> None:
    """Print the comparability warnings, then one table per two methods with one row per figure."""
    for warning in warnings:
        print_warning(warning)
    # One table for each pair of methods.
    rows: dict[str, list[dict[str, object]]] = {}
    for row in answer["comparisons"]:
        shown = {
            "figure": row["figure"],
            "n": row["configurations"],
            "a − b": row["mean_difference"],
            "95 %": row["interval"],
            "t": row["t"],
            "p": row["p"],
            "p (Holm)": row["p_holm"],
            "Wilcoxon p": row["wilcoxon_p"],
            "RMSE": row["rmse"],
            "r": row["pearson"],
            "MAE": row["mae"],
            "median |a − b|": row["median_error"],
            "R²": row["r2"],
            "MAPE": row["mape"],
            "variation a": row["variation_a"],
            "variation b": row["variation_b"],
        }
        rows.setdefault(f"a: {row['a']}, b: {row['b']}", []).append(shown)
    for title, table in rows.items():
        print_table(title, table)
    stdout.print(
        "n: configurations that both have. Finding no difference does not prove that there is none"
    )


TRENDS = ExtraCommand(run=trends, panel=READ, group="analyze")
METHODS = ExtraCommand(run=methods, panel=READ, group="analyze")
COUNTERFACTUAL = ExtraCommand(run=counterfactual, panel=READ, group="analyze")

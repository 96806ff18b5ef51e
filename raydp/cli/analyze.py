"""`raydp analyze`: figures of a points table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from raydp.cli.arguments import By, Json, MaxLoss, MinGain, Source, Storage, WorstCase
from raydp.cli.errors import CommandGroup

if TYPE_CHECKING:
    import pandas as pd

analyze_app = typer.Typer(cls=CommandGroup, help="Figures of a points table.")

Resamples = Annotated[int, typer.Option(min=100, help="Number of bootstrap resamples.")]
Layouts = Annotated[int, typer.Option(help="resample: number of draws around the means.")]

FIGURES = {
    "heuristics": ("heuristic_accuracy", "How often each pairwise heuristic is right (Hu et al. 2025, section 4.2)."),
    "verify-heuristics": ("verify_heuristics", "Whether model and data follow the heuristics: permutation tests."),
    "variance": ("score_variance", "Empirical privacy variance: over configurations and over seeds (Table 8)."),
    "effects": ("hyperparameter_effects", "One hyperparameter at a time, the others held fixed (Fig. 5)."),
    "confound": ("utility_adjusted", "The score adjusted for utility, and the share of its variance that remains."),
}
"""Command -> (function of `analysis` that takes a points table, help text)."""


def _figure(function: str) -> Callable[..., None]:
    """Return the command that applies a function of `analysis` to a points table and prints the result."""

    def command(
        points: Source,
        score: By = None,
        worst_case: WorstCase = False,
        max_loss: MaxLoss = None,
        min_utility_gain: MinGain = None,
        storage: Storage = "raydp_runs",
        json: Json = False,
    ) -> None:
        from raydp import analysis

        table = _useful(points, storage, score, worst_case, max_loss, min_utility_gain)
        _print(getattr(analysis, function)(table), json, function.replace("_", " "))

    return command


def _useful(
    points: str, storage: str, score: str | None, worst_case: bool, max_loss: float | None, min_gain: float | None
) -> pd.DataFrame:
    """Return the points of the configurations that pass the utility filter, or all points without a filter."""
    from raydp.analysis import useful_points
    from raydp.sweep.api import points_of

    table = points_of(points, storage, score=score, worst_case=worst_case)[0]
    return useful_points(table, max_loss=max_loss, min_utility_gain=min_gain)


def _print(answer: Mapping[str, object], json: bool, title: str = "") -> None:
    from raydp.io.output import print_document, print_json

    print_json(answer) if json else print_document(answer, title)


for _name, (_function, _summary) in FIGURES.items():
    analyze_app.command(_name, help=_summary)(_figure(_function))


@analyze_app.command()
def regression(
    points: Source,
    errors: Annotated[str, typer.Option(help="Standard errors: ols, hc3, cluster, mixed.")] = "ols",
    score: By = None,
    worst_case: WorstCase = False,
    max_loss: MaxLoss = None,
    min_utility_gain: MinGain = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """Least squares of the score on the logarithms of the hyperparameters (Tables 2 and 13)."""
    from raydp.analysis import regress

    table = _useful(points, storage, score, worst_case, max_loss, min_utility_gain)
    _print(regress(table, errors=errors), json)  # type: ignore[arg-type]  # checked there


@analyze_app.command()
def risk(
    points: Source,
    layout: Annotated[str, typer.Option(help="mean, or resample: draws around the means of the seeds.")] = "mean",
    num_layouts: Layouts = 5000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
    score: By = None,
    worst_case: WorstCase = False,
    max_loss: MaxLoss = None,
    min_utility_gain: MinGain = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """Privacy risk of each rule against the oracle, averaged over thresholds (section 4.3, App. D.3)."""
    from raydp.analysis import privacy_risk

    table = _useful(points, storage, score, worst_case, max_loss, min_utility_gain)
    _print(privacy_risk(table, layout=layout, num_layouts=num_layouts, seed=seed), json)  # type: ignore[arg-type]


@analyze_app.command()
def trends(
    points: Annotated[list[str], typer.Argument(metavar="POINTS|SWEEP...", help="Groups, or one table with --by.")],
    by: Annotated[str | None, typer.Option(help="A column to group one table by, such as epsilon.")] = None,
    score: By = None,
    worst_case: WorstCase = False,
    max_loss: MaxLoss = None,
    min_utility_gain: MinGain = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """Empirical privacy variance of several sweeps, or of a table's groups: spreads and ratios (Fig. 2, 14)."""
    from raydp.analysis import variance_trends
    from raydp.io.output import print_json, print_table
    from raydp.sweep.api import tables_of

    tables = tables_of(points, storage, score=score, worst_case=worst_case, by=by)
    answer = variance_trends(tables, max_loss=max_loss, min_utility_gain=min_utility_gain, values=by is not None)
    if json:
        print_json(answer)
        return
    print_table("groups", answer["groups"])
    print_table("ratios of standard deviations, b over a", answer["comparisons"])


@analyze_app.command()
def methods(
    sweeps: Annotated[list[str], typer.Argument(metavar="POINTS|SWEEP...", help="Two or more, of one space.")],
    any_data: Annotated[
        bool, typer.Option("--any-data", help="Also where data, secrets or base models differ, with a warning.")
    ] = False,
    score: By = None,
    worst_case: WorstCase = False,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """Two methods or more on the same configurations: paired t, Wilcoxon, RMSE, correlation (Zagardo 2024)."""
    from raydp.analysis import compare_methods
    from raydp.cli.show.scores import show_methods
    from raydp.io.output import print_json
    from raydp.sweep.api import classify, tables_of
    from raydp.sweep.comparable import check_comparable

    tables = tables_of(sweeps, storage, score=score, worst_case=worst_case)
    warnings = check_comparable(tables, storage, any_data=any_data)
    answer = compare_methods(tables, with_perplexity=not classify(sweeps, storage))
    print_json({**answer, "warnings": warnings}) if json else show_methods(answer, warnings)


@analyze_app.command()
def counterfactual(
    sweep_with: Annotated[str, typer.Argument(metavar="SWEEP_WITH", help="Folder, name or spec.")],
    sweep_without: Annotated[str, typer.Argument(metavar="SWEEP_WITHOUT", help="One with the task `without`.")],
    score: Annotated[str | None, typer.Option(help="By default the one that SWEEP_WITH selects by.")] = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """The effect on a secret's score of training on its examples (Zhang et al. 2023): with minus without."""
    from raydp.sweep.counterfactual import compare

    _print(compare(sweep_with, sweep_without, score=score, storage=storage), json)


@analyze_app.command()
def scores(points: Source, resamples: Resamples = 2000, storage: Storage = "raydp_runs", json: Json = False) -> None:
    """Every score of every configuration: mean, worst case, quantiles, 95 % intervals over secrets and seeds."""
    from raydp.analysis import score_intervals
    from raydp.cli.show.scores import show_intervals
    from raydp.io.output import print_json
    from raydp.sweep.api import with_secrets

    table, secrets, _ = with_secrets(points, storage)
    answer = score_intervals(table, secrets, num_resamples=resamples)
    print_json(answer) if json else show_intervals(answer)


@analyze_app.command()
def correlations(
    points: Source,
    audit: Annotated[
        str | None, typer.Option(metavar="AUDIT", help="An audit's sweep, or a file with a column epsilon_hat.")
    ] = None,
    resamples: Resamples = 2000,
    worst_case: WorstCase = False,
    score: By = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """Spearman and Pearson correlations of the scores over models, and with audited bounds, with 95 % intervals."""
    from raydp.analysis import audit_correlations, score_correlations
    from raydp.cli.show.scores import show_correlations
    from raydp.io.output import print_json
    from raydp.sweep.api import points_of

    table = points_of(points, storage, score=score, worst_case=worst_case)[0]
    answer, of_audit = score_correlations(table, num_resamples=resamples), None
    if audit is not None:
        from raydp.auditing.bounds import audited_bounds

        of_audit = audit_correlations(table, audited_bounds(audit, storage), num_resamples=resamples)
    if json:
        print_json({**answer, **({} if of_audit is None else {"audit": of_audit})})
    else:
        show_correlations(answer, of_audit)


@analyze_app.command()
def subsets(
    points: Source,
    score: Annotated[str | None, typer.Option(help="Its name; the sweep's own by default.")] = None,
    secrets: Annotated[str | None, typer.Option(help="A subset: comma-separated names, secret-001,secret-007.")] = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """Empirical privacy variance on subsets of the secrets: random halves, by count, or as named."""
    from raydp.analysis import secret_subsets
    from raydp.io.output import print_json, print_table
    from raydp.sweep.api import with_secrets

    table, values, own = with_secrets(points, storage)
    if score is None and own is None:
        raise ValueError("--score must be given with a file, got none. Name one of its scores.")
    given = None if secrets is None else [name.strip() for name in secrets.split(",")]
    answer = secret_subsets(table, values, score=str(score or own), given=given)
    print_json(answer) if json else print_table(f"{answer['score']} on subsets of the secrets", answer["subsets"])

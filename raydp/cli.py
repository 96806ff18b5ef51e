"""The `raydp` command: reads arguments, calls one function, prints the answer. Imports are lazy: --help is instant."""

from __future__ import annotations

import signal
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="Sweeps under one differential-privacy guarantee, scored for what the models leak.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
analyze_app = typer.Typer(help="Figures of a points table.", no_args_is_help=True)
models_app = typer.Typer(help="The model registry.", no_args_is_help=True)
spaces_app = typer.Typer(help="Named search spaces.", no_args_is_help=True)
app.add_typer(analyze_app, name="analyze")
app.add_typer(models_app, name="models")
app.add_typer(spaces_app, name="spaces")

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, logs on stderr.")]
Source = Annotated[str, typer.Argument(metavar="POINTS|SWEEP", help="CSV or Parquet file, sweep folder or name.")]
Storage = Annotated[str, typer.Option(help="Folder that sweeps are looked up in by name.")]
Uri = Annotated[str, typer.Option(help="MLflow store or server.")]
DEFAULT_URI = "sqlite:///raydp.db"
SETTINGS = ("batch_size", "num_steps", "learning_rate")


@app.command()
def sweep(
    spec: Annotated[Path | None, typer.Argument(metavar="[SPEC]", help="Without it: the embedded default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the sweep stopped.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and plan, train nothing.")] = False,
    json: Json = False,
) -> None:
    """Run a sweep: calibrate, train, score, track, select."""
    from raydp.output import print_json
    from raydp.sweep.api import DEMO, Sweep
    from raydp.sweep.show import show_plan, show_result

    chosen = Sweep(spec or DEMO)
    if dry_run:
        table = chosen.plan()
        print_json(table.to_dict("records")) if json else show_plan(table)
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: stop, to be resumed
    with redirect_stdout(sys.stderr):  # Ray prints messages of its own
        result = chosen.run(resume=resume)
    if json:
        print_json(result.document())
    else:
        show_result(chosen, result)
    if result.selected is None or result.interrupted:
        raise typer.Exit(1)


@app.command()
def plan(spec: Annotated[Path, typer.Argument(metavar="SPEC")], json: Json = False) -> None:
    """Every configuration with n, q, σ, ε, δ, C, U and estimated cost; trains nothing."""
    from raydp.output import print_json
    from raydp.sweep.api import plan as make
    from raydp.sweep.show import show_plan

    table = make(spec)
    print_json(table.to_dict("records")) if json else show_plan(table)


@app.command()
def status(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP")], storage: Storage = "raydp_runs", json: Json = False
) -> None:
    """What ran, failed (why) and is left."""
    from raydp.output import print_json, print_table, stdout
    from raydp.sweep.api import sweep_folder
    from raydp.sweep.points import counts

    found = counts(sweep_folder(sweep, storage))
    if json:
        print_json(found)
        return
    stdout.print(", ".join(f"{found[k]} {k}" for k in ("runs", "finished", "failed", "stopped", "pending")))
    if found["failures"]:
        print_table("failures", found["failures"])


@app.command()
def points(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="FILE.csv or FILE.parquet.")] = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """The points table of a sweep."""
    from analysis import save_points
    from raydp.output import print_json, print_table, stdout
    from raydp.sweep.api import sweep_folder
    from raydp.sweep.points import points_table

    table = points_table(sweep_folder(sweep, storage))
    if output is not None:
        save_points(table, output)
    if json:
        print_json(table.to_dict("records"))
    elif output is not None:
        stdout.print(f"{len(table)} rows written to {output}")
    else:
        shown = [*SETTINGS, "seed", "status", "utility_loss", "score", "model_uri"]
        print_table(str(sweep), table[shown].to_dict("records"))


@app.command()
def calibrate(
    from_: Annotated[Path | None, typer.Option("--from", help="CSV of n,batch_size,num_steps,epsilon,delta.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Training examples.")] = None,
    batch_size: Annotated[int | None, typer.Option()] = None,
    num_steps: Annotated[int | None, typer.Option()] = None,
    epsilon: Annotated[float | None, typer.Option()] = None,
    delta: Annotated[float | None, typer.Option()] = None,
    accountant: Annotated[str, typer.Option(help="prv, pld or rdp.")] = "prv",
    json: Json = False,
) -> None:
    """The smallest noise multiplier that meets (ε, δ)."""
    from raydp.calibrate import calibrate_file, calibrate_one
    from raydp.output import print_json, print_table

    one = {"n": n, "batch_size": batch_size, "num_steps": num_steps, "epsilon": epsilon, "delta": delta}
    if from_ is not None:
        answer: Any = calibrate_file(from_, accountant, given=one)
    else:
        answer = calibrate_one(one, accountant)
    if json:
        print_json(answer)
    else:
        print_table("calibration", answer if isinstance(answer, list) else [answer])


@app.command()
def profile(
    n: Annotated[int, typer.Option("--n", help="Training examples.")],
    batch_size: Annotated[int, typer.Option()],
    num_steps: Annotated[int, typer.Option()],
    noise_multiplier: Annotated[float, typer.Option()],
    deltas: Annotated[str, typer.Option(help="Comma-separated, such as 1e-3,1e-6.")] = "1e-3,1e-4,1e-5,1e-6",
    accountant: Annotated[str, typer.Option(help="prv, pld or rdp.")] = "prv",
    json: Json = False,
) -> None:
    """ε at several δ for one (n, b, T, σ)."""
    from raydp.calibrate import profile_of
    from raydp.output import print_json, print_table, stdout

    answer = profile_of(n, batch_size, num_steps, noise_multiplier, deltas, accountant)
    if json:
        print_json(answer)
        return
    rows = [{"delta": d, "epsilon": e} for d, e in zip(answer["deltas"], answer["epsilons"], strict=True)]
    print_table(f"privacy profile ({answer['accountant']})", rows)
    stdout.print(f"gdp_mu: {answer['gdp_mu'] if answer['gdp_mu'] is not None else answer['gdp_mu_reason']}")


@app.command()
def select(
    points: Source,
    max_loss: Annotated[float | None, typer.Option(help="Highest utility_loss; overrides min_utility_gain.")] = None,
    rule: Annotated[str | None, typer.Option(help="procedure, best-utility, worst-utility or oracle.")] = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """Select one configuration."""
    from analysis import select as choose
    from raydp.output import print_json
    from raydp.sweep.api import points_of
    from raydp.sweep.show import show_selection

    table, options = points_of(points, storage)
    given = {k: v for k, v in {"max_loss": max_loss, "rule": rule}.items() if v is not None}
    selection = choose(table, **{**options, **given})
    print_json(selection.to_dict()) if json else show_selection(selection.to_dict())


def _analysis(points: str, storage: str, function: str, json: bool) -> None:
    import analysis
    from raydp.output import print_json, stdout, strict
    from raydp.sweep.api import points_of

    answer = getattr(analysis, function)(points_of(points, storage)[0])
    if json:
        print_json(answer)
    else:
        stdout.print_json(data=strict(answer))


@analyze_app.command()
def heuristics(points: Source, storage: Storage = "raydp_runs", json: Json = False) -> None:
    """How often each pairwise heuristic is right (Hu et al. 2025, section 4.2)."""
    _analysis(points, storage, "heuristic_accuracy", json)


@analyze_app.command()
def risk(points: Source, storage: Storage = "raydp_runs", json: Json = False) -> None:
    """Privacy risk of each rule against the oracle, averaged over utility thresholds (section 4.3)."""
    _analysis(points, storage, "privacy_risk", json)


@analyze_app.command()
def regression(points: Source, storage: Storage = "raydp_runs", json: Json = False) -> None:
    """Least squares of the score on the logarithms of the hyperparameters (Table 2)."""
    _analysis(points, storage, "regress", json)


@analyze_app.command()
def variance(points: Source, storage: Storage = "raydp_runs", json: Json = False) -> None:
    """Empirical privacy variance: over configurations and over seeds (Table 8)."""
    _analysis(points, storage, "score_variance", json)


@app.command()
def report(
    points: Source,
    output: Annotated[Path, typer.Option("-o", "--output")] = Path("report.html"),
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """A self-contained HTML report."""
    from analysis import select as choose
    from analysis import write_report
    from raydp.output import print_json, stdout
    from raydp.sweep.api import points_of

    table, options = points_of(points, storage)
    rule = options.pop("rule", "procedure")
    write_report(table, [choose(table, rule=r, **options) for r in (rule, "best-utility")], output, title=points)
    print_json({"report": str(output)}) if json else stdout.print(f"report written to {output}")


@models_app.command("find")
def models_find(
    uri: Uri = DEFAULT_URI,
    registered_model: Annotated[str | None, typer.Option(help="Its name in the registry; all by default.")] = None,
    max_epsilon: Annotated[float | None, typer.Option()] = None,
    min_epsilon: Annotated[float | None, typer.Option()] = None,
    max_delta: Annotated[float | None, typer.Option()] = None,
    max_loss: Annotated[float | None, typer.Option()] = None,
    max_score: Annotated[float | None, typer.Option()] = None,
    score: Annotated[str | None, typer.Option(help="Which score is meant by score.")] = None,
    batch_size: Annotated[int | None, typer.Option()] = None,
    num_steps: Annotated[int | None, typer.Option()] = None,
    learning_rate: Annotated[float | None, typer.Option()] = None,
    order_by: Annotated[str, typer.Option(help="score, loss or epsilon.")] = "score",
    limit: Annotated[int | None, typer.Option()] = None,
    json: Json = False,
) -> None:
    """Registered models by ε, δ, utility, score and configuration."""
    from raydp.output import print_json, print_table
    from raydp.tracking import find_models

    conditions = {
        "max_epsilon": max_epsilon, "min_epsilon": min_epsilon, "max_delta": max_delta, "max_loss": max_loss,
        "max_score": max_score, "score": score, "batch_size": batch_size, "num_steps": num_steps,
        "learning_rate": learning_rate, "limit": limit, "registered_model": registered_model,
    }  # fmt: skip
    found = find_models(uri, order_by=order_by, **{k: v for k, v in conditions.items() if v is not None})
    if json:
        print_json(found.to_dict("records"))
        return
    shown = [
        "model_uri",
        "batch_size",
        "num_steps",
        "learning_rate",
        "seed",
        "epsilon",
        "utility_loss",
        "score",
        "aliases",
    ]
    print_table("models", found[[c for c in shown if c in found]].to_dict("records"))


@models_app.command("show")
def models_show(
    model: Annotated[str, typer.Argument(metavar="MODEL")], uri: Uri = DEFAULT_URI, json: Json = False
) -> None:
    """One model with its privacy record."""
    from raydp.output import print_json, stdout, strict
    from raydp.tracking import show_model

    answer = show_model(model, tracking_uri=uri)
    print_json(answer) if json else stdout.print_json(data=strict(answer))


@models_app.command("promote")
def models_promote(
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    alias: Annotated[str, typer.Option()],
    reason: Annotated[str, typer.Option()],
    uri: Uri = DEFAULT_URI,
    json: Json = False,
) -> None:
    """Give a model an alias, with the reason on record."""
    from raydp.output import print_json, stdout
    from raydp.tracking import promote_model

    promote_model(model, alias, reason, tracking_uri=uri)
    answer = {"model": model, "alias": alias, "reason": reason}
    print_json(answer) if json else stdout.print(f"{model} is now {alias!r}")


@spaces_app.command("list")
def spaces_list(json: Json = False) -> None:
    """The named search spaces."""
    from raydp.output import print_json, print_table
    from search_spaces import load_space, space_names

    spaces = [load_space(name) for name in space_names()]
    rows = [{"name": s.name, "points": len(s.configurations), "description": s.description} for s in spaces]
    print_json(rows) if json else print_table("search spaces", rows)


@spaces_app.command("show")
def spaces_show(name: str, json: Json = False) -> None:
    """The configurations of a named search space."""
    from dataclasses import asdict

    from raydp.output import print_json, print_table, stdout
    from search_spaces import load_space

    space = load_space(name)
    rows = [asdict(c) for c in space.configurations]
    if json:
        facts = {k: getattr(space, k) for k in ("name", "description", "source", "max_grad_norm")}
        print_json({**facts, "configurations": rows})
        return
    stdout.print(f"{space.description} Source: {space.source}. max_grad_norm {space.max_grad_norm:g}")
    print_table(space.name, rows)


@app.command()
def schema() -> None:
    """JSON Schema of the spec, for editors."""
    from raydp.output import print_json
    from raydp.spec import json_schema

    print_json(json_schema())


def main() -> None:
    """Run the command; mistakes of the user's exit with 2 and say what to change."""
    try:
        app()
    except ValueError as error:
        from raydp.output import stderr

        stderr.print(f"error: {error}", style="red", markup=False)
        sys.exit(2)


if __name__ == "__main__":
    main()

"""The `raydp` command: reads arguments, calls one function, prints the answer. Imports are lazy: --help is instant."""

from __future__ import annotations

import signal
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from raydp.commands.analyze import analyze_app
from raydp.commands.arguments import By, Json, MaxLoss, MinGain, Rule, Source, Storage, WorstCase
from raydp.commands.audit import audit_app
from raydp.commands.data import data_app
from raydp.commands.errors import InterruptibleGroup, complain, explain
from raydp.commands.lookup import models_app, spaces_app
from raydp.commands.mia import mia
from raydp.commands.pate import pate
from raydp.commands.plan import plan
from raydp.commands.predict import predict
from raydp.commands.report import report
from raydp.commands.score import score
from raydp.commands.secrets import secrets_app
from raydp.commands.variants import variants

app = typer.Typer(
    cls=InterruptibleGroup,
    help="Sweeps under one differential-privacy guarantee, scored for what the models leak.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(analyze_app, name="analyze")
app.add_typer(audit_app, name="audit")
app.add_typer(models_app, name="models")
app.add_typer(secrets_app, name="secrets")
app.add_typer(data_app, name="data")
app.add_typer(spaces_app, name="spaces")

SETTINGS = ("batch_size", "num_steps", "learning_rate")


@app.command()
def sweep(
    spec: Annotated[Path | None, typer.Argument(metavar="[SPEC]", help="Without it: the embedded default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the sweep stopped.")] = False,
    start_or_resume: Annotated[
        bool, typer.Option("--start-or-resume", help="Go on, or start it if it was not begun.")
    ] = False,
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
        result = chosen.run(resume=resume or (start_or_resume and chosen.begun))
    if json:
        print_json(result.document())
    else:
        show_result(chosen, result)
    nothing_to_run = not result.counts["runs"]  # an outcome of a private selection
    if (result.selected is None and not nothing_to_run) or result.interrupted:
        raise typer.Exit(1)


@app.command()
def status(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP")], storage: Storage = "raydp_runs", json: Json = False
) -> None:
    """What ran, failed (why) and is left."""
    from raydp.output import print_json
    from raydp.sweep.api import sweep_folder
    from raydp.sweep.points import counts
    from raydp.sweep.show import show_status

    folder = sweep_folder(sweep, storage)
    found = counts(folder)
    print_json(found) if json else show_status(folder.path, found, folder.read_json("summary.json"))


@app.command()
def points(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="FILE.csv or FILE.parquet.")] = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """The points table of a sweep."""
    from analysis import save_points
    from raydp.output import print_json, print_table, stderr, stdout
    from raydp.sweep.api import sweep_folder
    from raydp.sweep.points import PRIVATE, points_table

    folder = sweep_folder(sweep, storage)
    table = points_table(folder)
    if folder.is_private_selection():
        stderr.print(f"warning: the table shows {PRIVATE}.", markup=False)
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
    sweep: Annotated[str | None, typer.Argument(metavar="[SWEEP]", help="All configurations of a sweep.")] = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", help="CSV of n,batch_size,num_steps and noise_multiplier, or epsilon,delta."),
    ] = None,
    n: Annotated[int | None, typer.Option("--n", help="Training examples.")] = None,
    batch_size: Annotated[int | None, typer.Option()] = None,
    num_steps: Annotated[int | None, typer.Option()] = None,
    noise_multiplier: Annotated[float | None, typer.Option()] = None,
    deltas: Annotated[str | None, typer.Option(help="Comma-separated, such as 1e-3,1e-6.")] = None,
    accountant: Annotated[str, typer.Option(help="prv, pld or rdp: of `epsilons`.")] = "prv",
    expected_runs: Annotated[
        float | None, typer.Option(help="Also ε of releasing the best of a geometric number of such runs, by rdp.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="FILE.html: the profile as a figure.")] = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """ε at several δ for one (n, b, T, σ) and what an attacker can reach; or many runs' curves, by every accountant."""
    from raydp.calibrate import check_given, profile_of, show_profile, write_profile
    from raydp.output import print_json

    one: dict[str, Any] = {
        "n": n, "batch_size": batch_size, "num_steps": num_steps, "noise_multiplier": noise_multiplier,
    }  # fmt: skip
    if sweep is not None or from_ is not None:
        from raydp.profiles import profiles_command

        given = one | {"expected_runs": expected_runs}
        profiles_command(sweep, from_, deltas, accountant, output, given=given, storage=storage, json=json)
        return
    check_given("profile", one, "use --from FILE.csv, or name a SWEEP")
    shown = deltas or "1e-3,1e-4,1e-5,1e-6"
    answer = profile_of(**one, deltas=shown, accountant=accountant, expected_runs=expected_runs)
    if output is not None:
        write_profile(answer, output, f"n = {n}, b = {batch_size}, T = {num_steps}, σ = {noise_multiplier:g}")
    print_json(answer) if json else show_profile(answer, expected_runs)


@app.command()
def select(
    points: Source,
    max_loss: MaxLoss = None,
    min_utility_gain: MinGain = None,
    max_score: Annotated[float | None, typer.Option(help="Highest 95 % upper limit of the score.")] = None,
    at_most: Annotated[list[str] | None, typer.Option(help="COLUMN=VALUE, such as epsilon=8; repeatable.")] = None,
    rule: Rule = None,
    score: By = None,
    worst_case: WorstCase = False,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """Select one configuration, and say how far the data support the choice."""
    from raydp.commands.arguments import bounds
    from raydp.output import print_json
    from raydp.sweep.api import select as choose
    from raydp.sweep.show import show_selection

    by = {"score": score, "worst_case": worst_case}
    limits = {"max_loss": max_loss, "min_utility_gain": min_utility_gain}
    limits |= {"max_score": max_score, "at_most": bounds(at_most)}
    selection = choose(points, storage=storage, rule=rule, **limits, **by)
    print_json(selection.to_dict()) if json else show_selection(selection.to_dict())


@app.command()
def selftest(
    spec: Annotated[Path | None, typer.Argument(metavar="[SPEC]", help="Also checks its task, model, method.")] = None,
    json: Json = False,
) -> None:
    """Check that training does what its ε assumes: sensitivity, noise, sampling and an audit."""
    from raydp.selftest.show import selftest_command

    if not selftest_command(spec, json=json):
        raise typer.Exit(1)


@app.command()
def schema() -> None:
    """JSON Schema of the spec, for editors."""
    from raydp.output import print_json
    from raydp.spec import json_schema

    print_json(json_schema())


app.command()(plan)
app.command()(variants)
app.command()(predict)
app.command()(report)
app.command()(score)
app.command()(mia)
app.command()(pate)


def main() -> None:
    """Run the command; mistakes of the user's exit with 2 and say what to change, failures with 1 and their reason."""
    try:
        app()
    except (ValueError, OSError) as error:
        message, code = explain(error)
        complain(message)
        sys.exit(code)


if __name__ == "__main__":
    main()

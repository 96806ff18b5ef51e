"""The `raydp` command: read arguments, call one function, print the answer.

Imports are lazy, so --help is instant.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from raydp.analysis.tables.renamed import warn_of_old_name
from raydp.cli.analyze import analyze_app
from raydp.cli.arguments import (
    OLD_OPTION,
    By,
    Json,
    MaxLoss,
    MinGain,
    OneSweep,
    Rule,
    Source,
    Storage,
    WorstCase,
)
from raydp.cli.errors import NO_MEMORY, InterruptibleGroup, complain, explain, is_out_of_memory
from raydp.cli.interrupts import stoppable
from raydp.cli.lookup import list_, models_app, spaces_app
from raydp.cli.plan import plan
from raydp.cli.registration import MODELS, PRIVACY, READ, RUN, extra_commands
from raydp.cli.report import report
from raydp.io.imports import own_process
from raydp.io.interrupted import or_partial
from raydp.plugins.registries import DEFAULT_ACCOUNTANT, service
from raydp.search_spaces.configuration import HYPERPARAMETERS

if TYPE_CHECKING:
    from raydp.sweep.api import Sweep
    from raydp.sweep.ending.result import SweepResult

app = typer.Typer(
    cls=InterruptibleGroup,
    help="Sweeps under one differential-privacy guarantee, scored for what the models leak.",
    pretty_exceptions_enable=False,
)
UNCHANGED = "The sweep has ended, and nothing has changed since. This is its result."
NAMESAKE = "raydp"
"""Another project's distribution, which has the same import name."""


def _version(asked: bool) -> None:
    """Print the version of the installed distribution and exit, if requested."""
    if asked:
        from raydp.version import __version__

        typer.echo(f"raydp {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Sweeps under one differential-privacy guarantee, scored for what the models leak."""


@app.command(rich_help_panel=RUN)
def sweep(
    spec: Annotated[
        Path | None, typer.Argument(metavar="SPEC", help="Without it: the embedded default.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue where the sweep stopped.")
    ] = False,
    start_or_resume: Annotated[
        bool,
        typer.Option(
            "--start-or-resume", help="Continue the sweep, or start it if it has not begun."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and plan, train nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Run a sweep: calibrate, train, score, track, select."""
    from raydp.io.output import print_json, stderr
    from raydp.spec.reading import DEMO, draft_spec
    from raydp.sweep.planning.start import check_plan, check_start
    from raydp.sweep.store.folder import SweepFolder
    from raydp.sweep.store.unchanged import is_unchanged, remember

    draft = draft_spec(spec or DEMO)  # mistakes are reported before heavy imports
    # Check what can be checked without heavy imports. A sweep that has ended and has not changed is
    # answered from its folder, without Ray or torch.
    goes_on = resume or (start_or_resume and SweepFolder.exists(draft))
    if goes_on and not dry_run and is_unchanged(draft):
        from raydp.sweep.api import Sweep

        stderr.print(UNCHANGED, markup=False)
        _show_end(Sweep(draft), Sweep(draft).result, json=json, warned=False)
        return
    if dry_run:
        check_plan(draft)
    else:
        check_start(draft, resume=goes_on)
        # what goes on may have nothing left to train
        if not goes_on and (warm_up := service("warm_up", needed_by=None)):
            warm_up(draft.cluster)
    from raydp.cli.show.sweeps import show_plan
    from raydp.sweep.api import Sweep, plan_rows

    # Plan, or run and print.
    with stderr.status("reading the spec and loading the libraries"):
        chosen = Sweep(spec or DEMO)
    if dry_run:
        with stoppable("the plan"):
            table = chosen.plan()
        print_json(plan_rows(table)) if json else show_plan(table)
        return
    with redirect_stdout(sys.stderr):  # Ray prints its own messages to stdout
        result = or_partial(lambda: chosen.run(resume=goes_on))
    # Remembered only if nothing is left to do, and if the runs may be told of at all.
    unfinished = result.interrupted or result.counts.pending or result.counts.failed
    if result.selected is not None and not unfinished and chosen.folder.disclosure().shows_runs:
        remember(draft)
    _show_end(chosen, result, json=json, warned=True)


def _show_end(chosen: Sweep, result: SweepResult, *, json: bool, warned: bool) -> None:
    """Print the end of a sweep (see `show_result`). Exit with 1 if nothing was selected."""
    from raydp.cli.show.sweeps import show_result
    from raydp.io.output import print_json

    if json:
        print_json(result.document())
    else:
        show_result(chosen, result, warned=warned)
    # Exit code 1 for scripts: nothing was selected, or the sweep can go on.
    nothing_to_run = not result.counts.runs  # a valid outcome where the runs are drawn
    if (result.selected is None and not nothing_to_run) or result.interrupted:
        raise typer.Exit(1)


@app.command(rich_help_panel=READ)
def status(sweep: OneSweep, storage: Storage = "raydp_runs", json: Json = False) -> None:
    """Number of finished, failed (with reasons) and pending runs, and how far those in progress
    are."""
    from raydp.cli.show.sweeps import progress_document, show_status
    from raydp.io.output import print_json
    from raydp.sweep.api import sweep_folder
    from raydp.sweep.store.points import counts

    folder = sweep_folder(sweep, storage)
    run_counts, progress = counts(folder), folder.progress()
    if json:
        print_json({**run_counts.to_json(), **progress_document(folder, progress)})
    else:
        show_status(folder, run_counts, progress)


@app.command(rich_help_panel=READ)
def points(
    sweep: OneSweep,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="FILE.csv or FILE.parquet.")
    ] = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """The points table of a sweep."""
    from raydp.analysis import save_points
    from raydp.io.output import print_json, print_table, stderr, stdout
    from raydp.sweep.api import sweep_folder
    from raydp.sweep.store.points import points_table

    # The table of runs that may not be shown may be looked at, but must not leave.
    folder = sweep_folder(sweep, storage)
    table = points_table(folder)
    if (private := folder.disclosure().note) is not None:
        stderr.print(f"warning: the table shows {private}.", markup=False)
    if output is not None:
        save_points(table, output)
    if json:
        print_json(table.to_dict("records"))
    elif output is not None:
        stdout.print(f"{len(table)} rows written to {output}")
    else:
        shown = [*HYPERPARAMETERS, "seed", "status", "utility_loss", "score", "model_uri"]
        print_table(
            folder.path.name, cast("list[dict[str, object]]", table[shown].to_dict("records"))
        )


@app.command(rich_help_panel=PRIVACY)
def calibrate(
    from_: Annotated[
        Path | None, typer.Option("--from", help="CSV of n,batch_size,num_steps,epsilon,delta.")
    ] = None,
    n: Annotated[int | None, typer.Option("--n", help="Training examples.")] = None,
    batch_size: Annotated[int | None, typer.Option()] = None,
    num_steps: Annotated[int | None, typer.Option()] = None,
    epsilon: Annotated[float | None, typer.Option()] = None,
    delta: Annotated[float | None, typer.Option()] = None,
    accountant: Annotated[str, typer.Option(help="pld, prv or rdp.")] = DEFAULT_ACCOUNTANT,
    json: Json = False,
) -> None:
    """The smallest noise multiplier that meets (ε, δ)."""
    from raydp.guarantees.calibrate import calibrate_file, calibrate_one
    from raydp.io.output import print_json, print_table

    one = {
        "n": n,
        "batch_size": batch_size,
        "num_steps": num_steps,
        "epsilon": epsilon,
        "delta": delta,
    }
    with stoppable("the calibration"):
        rows = (
            [calibrate_one(one, accountant)]
            if from_ is None
            else calibrate_file(from_, accountant, given=one)
        )
    if json:
        print_json(rows[0] if from_ is None else rows)
    else:
        print_table("calibration", rows)


@app.command(rich_help_panel=PRIVACY)
def profile(
    sweep: Annotated[
        str | None,
        typer.Argument(metavar="SWEEP", help="Its folder, name or spec: all its configurations."),
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from", help="CSV of n,batch_size,num_steps and noise_multiplier, or epsilon,delta."
        ),
    ] = None,
    n: Annotated[int | None, typer.Option("--n", help="Training examples.")] = None,
    batch_size: Annotated[int | None, typer.Option()] = None,
    num_steps: Annotated[int | None, typer.Option()] = None,
    noise_multiplier: Annotated[float | None, typer.Option()] = None,
    deltas: Annotated[str | None, typer.Option(help="Comma-separated, such as 1e-3,1e-6.")] = None,
    accountant: Annotated[
        str | None,
        typer.Option(
            help="pld, prv or rdp: the table's. By default the sweep's own, or pld. -o and --json have all."
        ),
    ] = None,
    expected_runs: Annotated[
        float | None,
        typer.Option(help="Also ε of releasing only the best of about this many runs."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="FILE.html: the profile as a figure.")
    ] = None,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """ε at several δ for one (n, b, T, σ) and what an attacker can reach; or the curves of many
    runs."""
    from raydp.guarantees.calibrate import check_given, profile_of, show_profile
    from raydp.io.output import print_json

    one: dict[str, Any] = {
        "n": n,
        "batch_size": batch_size,
        "num_steps": num_steps,
        "noise_multiplier": noise_multiplier,
    }
    # Many configurations: a sweep's or a file's.
    if sweep is not None or from_ is not None:
        from raydp.guarantees.profiles import profiles_command

        given = one | {"expected_runs": expected_runs}
        with stoppable("the composition"):
            profiles_command(
                sweep, from_, deltas, accountant, output, given=given, storage=storage, json=json
            )
        return
    # One configuration, given by options.
    check_given("profile", one, "use --from FILE.csv, or name a SWEEP")
    shown = deltas or "1e-3,1e-4,1e-5,1e-6"
    with stoppable("the composition"):
        answer = profile_of(
            **one,
            deltas=shown,
            accountant=accountant or DEFAULT_ACCOUNTANT,
            expected_runs=expected_runs,
        )
    if output is not None:
        service("profile_page", needed_by="-o")(
            answer, output, f"n = {n}, b = {batch_size}, T = {num_steps}, σ = {noise_multiplier:g}"
        )
    print_json(answer) if json else show_profile(answer, expected_runs)


@app.command(rich_help_panel=READ)
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
    from raydp.cli.arguments import bounds
    from raydp.cli.show.sweeps import show_selection
    from raydp.io.output import print_json
    from raydp.sweep.api import select as choose

    selection = choose(
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
    print_json(selection.to_dict()) if json else show_selection(selection)


@app.command(rich_help_panel=RUN)
def selftest(
    spec: Annotated[
        Path | None, typer.Argument(metavar="SPEC", help="Also checks its task, model, method.")
    ] = None,
    json: Json = False,
) -> None:
    """Check that training does what its ε assumes: sensitivity, noise, sampling, records, keys and
    an audit."""
    from raydp.spec.reading import draft_spec

    if spec is not None:
        draft_spec(spec)  # mistakes are reported before heavy imports
    from raydp.cli.show.selftest import selftest_command

    if not selftest_command(spec, json=json):
        raise typer.Exit(1)


@app.command(rich_help_panel=RUN)
def schema(
    of: Annotated[
        Literal["spec", "card"], typer.Option(help="The spec, or a model's privacy.json.")
    ] = "spec",
) -> None:
    """JSON Schema of the spec, for editors, or of a model's privacy card, for programs that read
    it."""
    from raydp.io.output import print_json

    if of == "card":
        from raydp.privacy.records.schema import card_schema

        print_json(card_schema())
        return
    from raydp.spec.reading import json_schema

    print_json(json_schema())


# Commands from other modules, with their section of the help.
for _name, _command, _panel in (
    ("plan", plan, RUN),
    ("list", list_, READ),
    ("report", report, READ),
):
    app.command(_name, rich_help_panel=_panel)(_command)
_groups = {
    "spaces": (spaces_app, RUN),
    "analyze": (analyze_app, READ),
    "models": (models_app, MODELS),
}
for _name, (_group, _panel) in _groups.items():
    app.add_typer(_group, name=_name, rich_help_panel=_panel)
for _name, _extra in extra_commands():
    if isinstance(_extra.run, typer.Typer):
        app.add_typer(_extra.run, name=_name, rich_help_panel=_extra.panel)
        continue
    _app = app if _extra.group is None else _groups[_extra.group][0]
    _app.command(_name, rich_help_panel=None if _extra.group else _extra.panel)(_extra.run)
    # Into its place: a command without a name has its function's.
    _order = [c.name or getattr(c.callback, "__name__", "") for c in _app.registered_commands]
    if _extra.before in _order:
        _app.registered_commands.insert(_order.index(_extra.before), _app.registered_commands.pop())


@cache
def _built() -> Callable[[], object]:
    """Return the command with its options, built once a process: that takes long."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command. User mistakes exit with 2 and a remedy, failures with 1 and their reason."""
    from raydp.io.console_log import shown_records

    with shown_records():
        _warn_of_namesake()
        if any(argument.split("=")[0] == OLD_OPTION for argument in sys.argv[1:]):
            warn_of_old_name("the options")
        try:
            _built()()
        except (ValueError, OSError, MemoryError, RuntimeError, ImportError) as error:
            # Errors that a user can act on become one line. All others keep their traceback: they
            # are bugs.
            if is_out_of_memory(error):
                message, code = NO_MEMORY, 1
            elif isinstance(error, ValueError | OSError):
                message, code = explain(error)
            else:
                raise
            complain(message)
            sys.exit(code)


def _warn_of_namesake() -> None:
    """Warn if Spark's RayDP is installed too: both distributions write into the folder `raydp`."""
    from importlib.metadata import PackageNotFoundError, version

    # The other distribution has the same import name, so only its metadata tell the two apart.
    try:
        other = version(NAMESAKE)
    except PackageNotFoundError:
        return
    logging.getLogger("raydp").warning(
        "Spark's RayDP (%s %s) is installed in the same folder `raydp`, and each overwrites the "
        "other's files. Run `pip uninstall %s` and install raydp-tune again, or use two "
        "environments.",
        NAMESAKE,
        other,
        NAMESAKE,
    )


def command() -> None:
    """Run the command in a process of its own: `raydp`, or `python -m raydp`."""
    if isinstance(sys.stdout, TextIOWrapper):
        # As stderr: a file's name may be no UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")
    with own_process():
        main()


if __name__ == "__main__":
    command()

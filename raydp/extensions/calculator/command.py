"""`raydp calibrate` and `raydp profile`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from raydp.cli.arguments import Json, Storage
from raydp.cli.interrupts import stoppable
from raydp.cli.registration import PRIVACY, ExtraCommand
from raydp.extensions.calculator.calibrate import (
    calibrate_file,
    calibrate_one,
    check_alone,
    check_given,
)
from raydp.extensions.calculator.many_runs import (
    DELTAS,
    TABLE_DELTAS,
    accountant_of,
    profiles_of_file,
    profiles_of_sweep,
    table_rows,
)
from raydp.extensions.calculator.one_run import ACCOUNTANTS, profile_of, show_profile
from raydp.plugins.registries import DEFAULT_ACCOUNTANT, resolve
from raydp.system.output import print_json, print_table


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
    one = {
        "n": n, "batch_size": batch_size, "num_steps": num_steps, "epsilon": epsilon,
        "delta": delta,
    }  # fmt: skip
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
    one = {
        "n": n, "batch_size": batch_size, "num_steps": num_steps,
        "noise_multiplier": noise_multiplier,
    }  # fmt: skip
    if sweep is not None or from_ is not None:
        given = one | {"expected_runs": expected_runs}
        with stoppable("the composition"):
            _show_many(
                sweep, from_, deltas, accountant, output, given=given, storage=storage, json=json
            )
    else:
        check_given("profile", one, "use --from FILE.csv, or name a SWEEP")
        _show_one(one, deltas, accountant or DEFAULT_ACCOUNTANT, expected_runs, output, json=json)


def _show_one(
    run: dict[str, Any],
    deltas: str | None,
    accountant: str,
    expected_runs: float | None,
    output: Path | None,
    *,
    json: bool,
) -> None:
    """Print the profile of one run, and write its page to output."""
    shown = deltas or "1e-3,1e-4,1e-5,1e-6"
    with stoppable("the composition"):
        answer = profile_of(**run, deltas=shown, accountant=accountant, expected_runs=expected_runs)
    if output is not None:
        from raydp.extensions.calculator.pages import write_profile  # loads plotly

        n, b, steps, sigma = run.values()
        write_profile(answer, output, f"n = {n}, b = {b}, T = {steps}, σ = {sigma:g}")
    print_json(answer) if json else show_profile(answer, expected_runs)


def _show_many(
    sweep: str | None,
    path: Path | None,
    deltas: str | None,
    accountant: str | None,
    output: Path | None,
    *,
    given: Mapping[str, object],
    storage: str,
    json: bool,
) -> None:
    """Print the curves of a sweep or of a CSV file, and write their page to output.

    The printed table shows the curves of one accountant; the page and the document hold all.
    """
    # An unknown accountant is refused before any curve is computed.
    if accountant is not None:
        resolve("accountants", accountant, field="accountant")
    check_alone(
        "--from" if sweep is None else "SWEEP", {**given, "from": None if sweep is None else path}
    )
    # The leading accountant comes first. A printed table shows this accountant only, so no other is
    # computed.
    leading = accountant or (
        accountant_of(str(sweep), storage) if path is None else DEFAULT_ACCOUNTANT
    )
    accountants = sorted(ACCOUNTANTS, key=lambda a: a.name != leading)
    if table_only := output is None and not json:
        accountants = accountants[:1]
    default = TABLE_DELTAS if table_only else DELTAS
    # Compute, then write the page and print.
    if path is not None:
        answers = profiles_of_file(path, deltas or default, accountants)
    else:
        answers = profiles_of_sweep(str(sweep), storage, deltas, accountants, default=default)
    if output is not None:
        from raydp.extensions.calculator.pages import write_profile_page

        write_profile_page(
            answers, output, f"Privacy profiles: {path.name if path is not None else sweep}"
        )
    if json:
        print_json(answers)
    else:
        print_table(f"ε at each δ, {leading}", table_rows(answers, leading))


CALIBRATE = ExtraCommand(run=calibrate, panel=PRIVACY, before="select")
PROFILE = ExtraCommand(run=profile, panel=PRIVACY, before="select")

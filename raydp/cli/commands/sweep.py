"""`raydp sweep`: run a sweep, continue it, or check it."""

from __future__ import annotations

import sys
import time
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated

import typer

from raydp.cli.arguments import Json, SpecOrDemo
from raydp.cli.interrupts import stoppable
from raydp.cli.registration import RUN, ExtraCommand
from raydp.plugins.registries import service
from raydp.spec.reading import DEMO, draft_spec
from raydp.sweep.planning.start import check_plan, check_start
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.unchanged import is_unchanged, remember
from raydp.system.interruption import or_partial
from raydp.system.output import print_json, stderr

if TYPE_CHECKING:
    from raydp.spec.document import SweepSpec
    from raydp.sweep.api import Sweep
    from raydp.sweep.ending.result import SweepResult

UNCHANGED = "The sweep has ended, and nothing has changed since. This is its result."


def sweep(
    spec: SpecOrDemo = None,
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
    draft = draft_spec(spec or DEMO)  # mistakes are reported before heavy imports
    # Check what can be checked without heavy imports. A sweep that has ended and has not changed is
    # answered from its folder, without Ray or torch.
    goes_on = resume or (start_or_resume and SweepFolder.exists(draft))
    ended = goes_on and not dry_run and is_unchanged(draft)
    if ended:
        stderr.print(UNCHANGED, markup=False)
    elif dry_run:
        check_plan(draft)
    else:
        check_start(draft, resume=goes_on)
        # what goes on may have nothing left to train
        if not goes_on and (warm_up := service("warm_up", needed_by=None)):
            warm_up(draft.cluster)
    from raydp.cli.show.sweeps import show_plan, show_result
    from raydp.sweep.api import Sweep, plan_rows

    # Plan, or run and print.
    if ended:
        chosen = Sweep(draft)
    else:
        with stderr.status("reading the spec and loading the libraries"):
            chosen = Sweep(spec or DEMO)
    if dry_run:
        with stoppable("the plan"):
            table = chosen.plan()
        print_json(plan_rows(table)) if json else show_plan(table)
        return
    begun = time.monotonic()
    result = chosen.result if ended else _run(chosen, draft, resume=goes_on)
    seconds = None if ended else time.monotonic() - begun
    print_json(result.document()) if json else show_result(chosen, result, seconds=seconds)
    # Exit code 1 for scripts: nothing was selected, or the sweep can go on.
    nothing_to_run = not result.counts.runs  # a valid outcome where the runs are drawn
    if (result.selected is None and not nothing_to_run) or result.interrupted:
        raise typer.Exit(1)


def _run(chosen: Sweep, draft: SweepSpec, *, resume: bool) -> SweepResult:
    """Run a sweep. Remember that it has ended if nothing is left to do."""
    with redirect_stdout(sys.stderr):  # Ray prints its own messages to stdout
        result = or_partial(lambda: chosen.run(resume=resume))
    # Remembered only if nothing is left to do, and if the runs may be shown at all.
    unfinished = result.interrupted or result.counts.pending or result.counts.failed
    if result.selected is not None and not unfinished and chosen.folder.disclosure().shows_runs:
        remember(draft)
    return result


COMMAND = ExtraCommand(run=sweep, panel=RUN)

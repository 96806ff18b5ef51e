"""Printed output of the commands about sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import pandas as pd

from raydp.cli.show.explanation import NAMED, figures
from raydp.cli.show.verdict import head_of, show_verdict, source_of
from raydp.plugins.registries import service
from raydp.search_spaces.configuration import HYPERPARAMETERS
from raydp.system.output import print_table, print_warning, stdout
from raydp.system.shell import command_line

if TYPE_CHECKING:
    from raydp.sweep.api import Sweep
    from raydp.sweep.ending.result import SweepResult
    from raydp.sweep.store.folder import SweepFolder
    from raydp.sweep.store.state import DriverProgress, SearchEnd
    from raydp.sweep.store.summary import RunCounts, RunFailure


def show_plan(table: pd.DataFrame) -> None:
    """Print the plan as a table, what is doubtful, what the data are, and what was left out."""
    rows = cast("list[dict[str, object]]", table.to_dict("records"))
    print_table("", rows, spare=("cost_tokens", "updates", "compute"))
    # The first sentences on the meaning of ε and σ.
    for sentence in table.attrs["remarks"][:NAMED]:
        stdout.print(sentence, markup=False)
    if len(table.attrs["remarks"]) > NAMED:
        stdout.print("and the like for other configurations", markup=False)
    # The facts that are a word and a value fill a paragraph; a caveat has a line of its own.
    facts = table.attrs["facts"].sentences()
    caveats = [fact for fact in facts if fact.startswith("caveat: ")]
    stdout.print("; ".join(fact for fact in facts if fact not in caveats), markup=False)
    for caveat in caveats:
        stdout.print(caveat, markup=False)
    for warning in table.attrs["warnings"]:
        print_warning(warning)
    if table.attrs["note"] is not None:
        stdout.print(table.attrs["note"], markup=False)
    for reason in table.attrs["rejected"]:
        stdout.print(f"left out: {reason}", markup=False)


def progress_document(folder: SweepFolder, progress: DriverProgress | None) -> dict[str, object]:
    """Return {"progress": ...} for `raydp status --json`; {} if no driver runs the sweep."""
    if progress is None:
        return {}
    # A run in progress may be of the untrained base model, which is no trial.
    trials = {trial.run_id: trial for trial in folder.plan().trials}
    running = [
        {
            **{k: getattr(trials.get(run_id), k, None) for k in (*HYPERPARAMETERS, "seed")},
            **(
                {"settings": dict(trials[run_id].settings)}
                if run_id in trials and trials[run_id].settings
                else {}
            ),
            "run_id": run_id,
            "step": step,
        }
        for run_id, (step, _) in progress.running.items()
    ]
    return {
        "progress": {
            "sentence": progress.sentence,
            "seconds_ago": progress.seconds_ago,
            "running": running,
        }
    }


def show_status(folder: SweepFolder, counts: RunCounts, progress: DriverProgress | None) -> None:
    """Print the progress of a sweep, None if no driver runs it, and the sweep's result."""
    # How far the sweep is, then its failures, then its result or how to go on.
    summary, path = folder.summary(), folder.path
    if counts.note is not None:
        stdout.print(counts.note, markup=False)
    stdout.print(f"{path}: {counts.sentence}", markup=False)
    if progress is not None:
        _show_progress(folder, progress)
    show_ends(counts)
    if counts.failures:
        print_table(
            "failures", [failure.to_json() for failure in counts.failures], keep=("reason",)
        )
    if summary is not None:
        stdout.print(
            f"selected: {figures(summary.selected)}, {summary.selected.model_uri}", markup=False
        )
        stdout.print(f"report: {folder.report}", markup=False)
    elif counts.pending and progress is None:
        _show_kept(folder, counts, "If no process runs this sweep, go on with")


def _show_kept(folder: SweepFolder, counts: RunCounts, go_on: str) -> None:
    """Print what an interrupted sweep has kept, and after `go_on` the command that resumes it."""
    # How many runs there were may be private.
    if folder.disclosure().shows_runs:
        steps = folder.checkpointed()
        ended = counts.finished + counts.stopped
        named = ", ".join(map(str, list(steps.values())[:NAMED]))
        more = ", ..." if len(steps) > NAMED else ""
        begun = f" and {len(steps)} checkpointed (at step {named}{more})" if steps else ""
        kept = f"{ended} of {counts.runs} runs are done{begun}"
        others = "; all of this is kept. Other runs" if ended or steps else ". All"
        stdout.print(f"{kept}{others} begin at their first step.", markup=False)
    command = command_line("sweep", folder.spec_file, "--resume")
    stdout.print(f"{go_on}: {command}", markup=False, soft_wrap=True)


def _show_progress(folder: SweepFolder, progress: DriverProgress) -> None:
    """Print how far the sweep and each run in progress are."""
    stdout.print(f"{progress.seconds_ago:.0f} s ago: {progress.sentence}", markup=False)
    names = {trial.run_id: str(trial) for trial in folder.plan().trials}
    for run_id, (step, of) in progress.running.items():
        stdout.print(
            f"  {names.get(run_id, 'the untrained base model')}  step {step}/{of or '?'}",
            markup=False,
        )


def show_result(sweep: Sweep, result: SweepResult, *, seconds: float | None = None) -> None:
    """Print the end of a sweep: the choice and what limits it, or what was kept.

    Args:
        sweep: the sweep.
        result: what it came to.
        seconds: how long it took; None if it had ended before.
    """
    folder, selected = sweep.folder, result.selected
    shows_runs = folder.disclosure().shows_runs
    ended = head_of(result.counts, seconds, interrupted=result.interrupted)
    head = ended if shows_runs else str(result.counts.note)
    # Where the runs may not be shown, nothing is told of them, how many failed neither.
    failures = result.counts.failures if shows_runs else ()
    if selected is not None:
        best, name = result.best_utility if shows_runs else None, source_of(folder)
        more = [f"{len(failures)} runs failed: {command_line('status', name)}"]
        first = more if failures else []
        show_verdict(selected, best, source=name, folder=folder, head=head, first=first)
    else:
        stdout.print(head, style="bold", markup=False)
        show_failures(failures)
    _show_logs(sweep)
    # What was kept, and how to go on.
    if result.interrupted:
        late = "" if selected is None else " after the selection: --resume records the rest"
        stdout.print(f"interrupted{late}", style="bold")
        _show_kept(folder, result.counts, "Go on with")
    if selected is None:
        stdout.print(f"nothing selected: {result.reason}", style="bold", markup=False)


def _show_logs(sweep: Sweep) -> None:
    """Print the commands that show the run logs, if there are any."""
    loggers = sweep.spec.tracking.loggers
    log_commands = service("log_commands", needed_by=None) if loggers else None
    if log_commands is None:
        return
    stdout.print("run logs:", style="bold")
    for command in log_commands(sweep.folder, loggers):
        stdout.print(f"  {command}", markup=False, soft_wrap=True)


def show_ends(counts: RunCounts) -> None:
    """Print how a search or adaptive seeds have ended, if they have."""
    if counts.search is not None:
        show_search(counts.search)
    if counts.seeds is not None:
        stdout.print(counts.seeds.sentence(), markup=False)


def show_search(search: SearchEnd) -> None:
    """Print why a search has ended, and the first configurations that it did not run."""
    skipped = search.skipped
    stdout.print(
        f"the search has ended: {search.reason}; {len(skipped)} configurations skipped",
        markup=False,
    )
    for configuration, reason in list(skipped.items())[:NAMED]:
        stdout.print(f"  {configuration}: {reason}", markup=False)
    if len(skipped) > NAMED:
        stdout.print("  `raydp status --json` lists them all", markup=False)


def show_failures(failures: Sequence[RunFailure]) -> None:
    """Print a line for each failed run, with its reason."""
    for failure in failures:
        stdout.print(
            f"failed {failure.configuration} seed {failure.seed}, run {failure.run_id}: "
            f"{failure.reason}",
            markup=False,
        )

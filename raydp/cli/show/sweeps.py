"""Printed output of the commands about sweeps."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pandas as pd

from raydp.analysis import configuration_means, score_names
from raydp.analysis.selection.selected import LEAKAGE_NOT_CHECKED
from raydp.analysis.selection.wording import in_words
from raydp.analysis.tables.columns import known
from raydp.analysis.tables.per_secret import PREFIX
from raydp.analysis.tables.points import column_means, configurations
from raydp.plugins.registries import service
from raydp.privacy import remarks
from raydp.search_spaces.configuration import HYPERPARAMETERS
from raydp.sweep.ending.notes import promise_of, together_notes
from raydp.system.output import print_table, print_warning, stdout
from raydp.system.shell import shell_line
from raydp.tracking.records import PRIVACY_PREFERRED

if TYPE_CHECKING:
    from raydp.analysis import Selection
    from raydp.privacy import Caution
    from raydp.spec.document import SweepSpec
    from raydp.sweep.api import Sweep
    from raydp.sweep.ending.result import SweepResult
    from raydp.sweep.store.folder import SweepFolder
    from raydp.sweep.store.state import DriverProgress, SearchEnd
    from raydp.sweep.store.summary import RunCounts, RunFailure, SelectedConfiguration

BOUNDS = ("threshold", "bound")
"""Endings of the names of selection steps that apply a bound."""
NAMED = 3
"""The largest number of configurations that a line names. `--json` has all of them."""


def show_plan(table: pd.DataFrame) -> None:
    """Print the plan as a table, with warnings and the configurations that were left out."""
    # What the data are, and what is doubtful, comes before the table.
    for note in table.attrs["facts"].sentences():
        stdout.print(note, markup=False)
    for warning in table.attrs["warnings"]:
        print_warning(warning)
    if table.attrs["note"] is not None:
        stdout.print(table.attrs["note"], markup=False)
    rows = cast("list[dict[str, object]]", table.to_dict("records"))
    print_table("plan", rows, spare=("cost_tokens", "updates", "compute"))
    _show_remarks(table.attrs["remarks"])
    for reason in table.attrs["rejected"]:
        stdout.print(f"left out: {reason}", markup=False)


def _show_remarks(remarks: Sequence[str]) -> None:
    """Print the first sentences on the meaning of ε and σ."""
    for sentence in remarks[:NAMED]:
        stdout.print(sentence, markup=False)
    if len(remarks) > NAMED:
        stdout.print("and the like for other configurations", markup=False)


def show_selection(selection: Selection) -> None:
    """Print the selected configuration, how sure it is, and how the rule came to it."""
    _show_decision(selection)
    _show_steps(selection)


def _show_decision(selection: Selection, said: Sequence[Caution] = ()) -> None:
    """Print the selected configuration, how sure it is, the alternatives, and the warnings.

    Args:
        selection: the selection.
        said: warnings that the command has printed before. They are named in one line.
    """
    # The decision in one line, then how sure it is.
    stdout.print(f"selected by {selection.rule}: {_figures(selection)}", style="bold", markup=False)
    for sentence in in_words(selection):
        stdout.print(sentence, markup=False)
    for warning in selection.warnings:
        if warning not in map(str, said):
            print_warning(warning)
    # Warnings of the start are named again, because the sweep may have taken days since.
    if said:
        print_warning(
            f"what was said at the start holds for this choice: {'; '.join(c.short for c in said)}."
        )


def _show_steps(selection: Selection) -> None:
    """Print the configurations that each step of the rule kept."""
    if selection.explanation is not None:
        stdout.print(selection.explanation, markup=False)
    for step in selection.steps:
        left = step.survivors
        if step.rule == LEAKAGE_NOT_CHECKED:
            stdout.print(f"{step.name} {step.rule}", markup=False)
            continue
        names = ", ".join(map(str, left[:NAMED])) + (", ..." if len(left) > NAMED else "")
        # The rules of other steps are long. The rule of a bound holds a figure that the reader may
        # want to reuse.
        bound = f" ({step.rule})" if step.name.endswith(BOUNDS) else ""
        stdout.print(
            f"{step.name}{bound}: {len(step.dropped)} dropped, {len(left)} left: {names}",
            markup=False,
        )
        if len(left) == 1:
            break  # the other steps change nothing


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
    """Print the progress of a sweep and its result.

    Args:
        folder: the sweep's folder.
        counts: the numbers of runs by status.
        progress: how far the sweep is, None if no driver runs it.
    """
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
            f"selected: {_figures(summary.selected)}, {summary.selected.model_uri}", markup=False
        )
        stdout.print(f"report: {folder.report}", markup=False)
    elif counts.pending and progress is None:
        _show_kept(folder, counts, "If no process runs this sweep, go on with")


def _show_kept(folder: SweepFolder, counts: RunCounts, go_on: str) -> None:
    """Print what an interrupted sweep has kept, and the command that resumes it.

    Args:
        folder: the sweep's folder.
        counts: the numbers of runs by status.
        go_on: the words before the command.
    """
    # How many runs there were may be private.
    if folder.disclosure().shows_runs:
        steps = folder.checkpointed()
        ended, named = (
            counts.finished + counts.stopped,
            ", ".join(map(str, list(steps.values())[:NAMED])),
        )
        more = ", ..." if len(steps) > NAMED else ""
        begun = f" and {len(steps)} checkpointed (at step {named}{more})" if steps else ""
        kept = f"{ended} of {counts.runs} runs are done{begun}"
        stdout.print(
            f"{kept}; all of this is kept. Other runs begin at their first step.", markup=False
        )
    command = shell_line("raydp", "sweep", folder.spec_file, "--resume")
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


def show_result(sweep: Sweep, result: SweepResult, *, warned: bool = False) -> None:
    """Print the end of a sweep: decision, configurations, guarantee, and how to load the model.

    Args:
        sweep: the sweep.
        result: what it came to.
        warned: whether the command has printed the warnings of the plan at its start.
    """
    # Where the runs may not be shown, tell of the released model alone.
    private = not sweep.folder.disclosure().shows_runs
    selected = result.selected
    if selected is not None:
        _show_decision(selected, sweep.folder.plan().warnings if warned else ())
    if selected is not None and result.best_utility is not None and not private:
        same = result.best_utility.configuration == selected.configuration
        best = (
            "It also has the best utility."
            if same
            else f"best utility instead: {_figures(result.best_utility)}"
        )
        stdout.print(best, markup=False)
    if private:
        stdout.print(str(result.counts.note), markup=False)
    else:
        _show_counts(result)
    _show_logs(sweep)
    # What was kept, before anything else about an unfinished sweep.
    if result.interrupted:
        stdout.print("interrupted", style="bold")
        _show_kept(sweep.folder, result.counts, "Go on with")
    if selected is None or result.best_utility is None:
        stdout.print(f"nothing selected: {result.reason}", style="bold")
        return
    # The table, how the rule came to its choice, and what the guarantee is.
    if not private:
        _show_configurations(sweep, result)
    _show_steps(selected)
    _show_guarantee(sweep)
    stdout.print(f"report: {result.report}", markup=False)
    stdout.print("look it up and load it:", style="bold")
    for command in lookup_commands(sweep.spec):
        stdout.print(f"  {command}", markup=False, soft_wrap=True)
    if not private:
        _show_loaded(sweep, selected)


def _show_loaded(sweep: Sweep, selected: Selection) -> None:
    """Print which of several models of the selected configuration is loaded, and its own score."""
    points = sweep.points()
    # Only finished models of the selected configuration, of which one is loaded.
    points = points[points["status"] == "finished"]
    points = points[[each == selected.configuration for each in configurations(points)]]
    own = points[points["model_uri"] == selected.model_uri]
    if len(points) == 1 or len(own) != 1:
        return
    sentence = f"What is loaded is the model of seed {own['seed'].iloc[0]}"
    if selected.score is not None:
        score = float(own["score"].iloc[0])
        sentence += f", whose own score is {score:.4g}. {selected.score:.4g} is the mean of {len(points)} seeds"
    stdout.print(f"{sentence}.", markup=False)


def _show_guarantee(sweep: Sweep) -> None:
    """Print the guarantee of ε, or why there is none. Its limits are on each model's card."""
    record = sweep.folder.plan().record
    # Without an ε the guarantee's place is taken by a warning.
    if math.isinf(record.accounted.epsilon):
        for sentence in [
            *remarks(record),
            "privacy-preferred is not set: it is for models with a guarantee.",
        ]:
            print_warning(sentence)
        return
    not_certified = [f"Not certified: {reason}." for reason in record.not_certified_because]
    for sentence in [promise_of(record), *not_certified, *together_notes(sweep.folder.released())]:
        stdout.print(sentence, markup=False)
    stdout.print(
        "`raydp models show MODEL` lists what this guarantee does not cover.", markup=False
    )


def _show_logs(sweep: Sweep) -> None:
    """Print the commands that show the run logs, if there are any."""
    loggers = sweep.spec.tracking.loggers
    log_commands = service("log_commands", needed_by=None) if loggers else None
    if log_commands is None:
        return
    stdout.print("run logs:", style="bold")
    for command in log_commands(sweep.folder, loggers):
        stdout.print(f"  {command}", markup=False, soft_wrap=True)


def _show_counts(result: SweepResult) -> None:
    counts = result.counts
    numbers = {name: number for name, number in counts.numbers.items() if name != "stopped"}
    # The runs that were not needed are named by the sentence on the seeds.
    if counts.seeds is not None:
        numbers["runs"] -= numbers.pop("skipped", 0)
    stdout.print(", ".join(f"{n} {name}" for name, n in numbers.items()))
    show_ends(counts)
    show_failures(counts.failures)


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


def lookup_commands(spec: SweepSpec) -> list[str]:
    """Return shell commands that list the sweep's models and load the selected one.

    A non-private sweep has no preferred model, so its best-utility model is loaded instead.
    """
    # MLflow's alias is how the selected model is found later.
    tracking = spec.tracking
    alias = PRIVACY_PREFERRED if spec.method.params.private else "best-utility"
    uri, store = (
        json.dumps(text) for text in (f"models:/{tracking.registered_model}@{alias}", tracking.uri)
    )
    load = f"import raydp; m = raydp.load_model({uri}, tracking_uri={store}); print(m)"
    found = ("--uri", tracking.uri, "--registered-model", tracking.registered_model)
    return [
        f"{_program('raydp')} {shell_line('models', 'find', *found)}",
        f"{_program('python')} {shell_line('-c', load)}",
    ]


def _program(name: str) -> str:
    """Return the shell command of a program of this environment: its name, or else its path.

    The name counts only if the shell finds this very program.
    """
    own = shutil.which(name, path=str(Path(sys.executable).parent))
    if own is None:
        # Installed without scripts: the module can still be run.
        return f"{_from_here(Path(sys.executable))}{' -m raydp' if name == 'raydp' else ''}"
    in_shell = shutil.which(name)
    on_path = in_shell is not None and Path(in_shell).absolute() == Path(own).absolute()
    return name if on_path else _from_here(Path(own))


def _from_here(path: Path) -> str:
    """Quote a path for the shell, relative if it is inside the current folder."""
    path, here = path.absolute(), Path.cwd()
    return shell_line(path.relative_to(here) if path.is_relative_to(here) else path)


def _show_configurations(sweep: Sweep, result: SweepResult) -> None:
    """Print one row per configuration, means over seeds, with marks for two of them.

    The two are the selected and the best-utility one.
    """
    # Means over the seeds of each configuration.
    points = sweep.points()
    base = points["base_utility_loss"].iloc[0]
    finished = points[points["status"] == "finished"]
    means = configuration_means(finished, scored=False)
    scores = {name: column_means(finished, PREFIX + name) for name in score_names(finished)}
    score = sweep.spec.select.score
    listed = configurations(means)
    # Every field that the sweep varies gets a column.
    paths = sorted({path for configuration in listed for path in configuration.settings})
    rows = [
        {
            **{k: row[k] for k in HYPERPARAMETERS},
            **{path: listed[position].settings.get(path) for path in paths},
            "seeds": row["num_seeds"],
            "utility_loss": row["utility_loss"],
            "utility_gain": base - row["utility_loss"],
            **({} if score is None else {"score": row["score"], "score std": row["score_std"]}),
            **{name: known(values[position]) for name, values in scores.items() if name != score},
        }
        for position, row in enumerate(means.to_dict("records"))
    ]
    # A configuration may be both selected and best in utility.
    marks: dict[int, str] = {}
    for selection, mark in ((result.best_utility, "best utility"), (result.selected, "selected")):
        for position, configuration in enumerate(listed):
            if selection and selection.configuration == configuration:
                marks[position] = f"{marks[position]}, {mark}" if position in marks else mark
    by = (
        "no score was measured" if score is None else f"the score is {score}, its std is over seeds"
    )
    title = f"{sweep.spec.name}: the base model's loss is {base:.4f}; {by}"
    print_table(title, rows, marks=marks, spare=("score std", "seeds", "utility_gain"))


def show_failures(failures: Sequence[RunFailure]) -> None:
    """Print a line for each failed run, with its reason."""
    for failure in failures:
        stdout.print(
            f"failed {failure.configuration} seed {failure.seed}, run {failure.run_id}: "
            f"{failure.reason}",
            markup=False,
        )


def _figures(selection: Selection | SelectedConfiguration) -> str:
    """Return the selected configuration with its utility loss and its score."""
    score = "no score" if selection.score is None else f"score {selection.score:.4g}"
    return f"{selection.configuration} utility_loss {selection.utility_loss:.4f}, {score}"

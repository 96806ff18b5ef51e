"""Why a configuration was selected: the decision, the rule's steps, and all configurations."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from raydp.analysis import configuration_means, score_names
from raydp.analysis.selection.rules import LEAKAGE_CHECK
from raydp.analysis.selection.selected import LEAKAGE_NOT_CHECKED
from raydp.analysis.selection.wording import in_words
from raydp.analysis.tables.columns import known
from raydp.analysis.tables.per_secret import PREFIX
from raydp.analysis.tables.points import column_means, configurations
from raydp.plugins.parameters import constant
from raydp.privacy import remarks
from raydp.search_spaces.configuration import HYPERPARAMETERS
from raydp.sweep.ending.notes import promise_of, together_notes
from raydp.sweep.store.points import points_table
from raydp.system.output import print_table, print_warning, stdout
from raydp.system.shell import command_line, program, shell_line
from raydp.tracking.records import PRIVACY_PREFERRED

if TYPE_CHECKING:
    from raydp.analysis import Selection
    from raydp.spec.sections import TrackingSpec
    from raydp.sweep.store.folder import SweepFolder
    from raydp.sweep.store.summary import SelectedConfiguration

BOUNDS = ("threshold", "bound", LEAKAGE_CHECK)
"""Endings of the names of selection steps whose rule is told."""
NAMED = 3
"""The largest number of configurations that a line names. `--json` has all of them."""


def show_explanation(
    selection: Selection, best: Selection | None, folder: SweepFolder | None
) -> None:
    """Print the decision, the rule's steps, and, of a sweep, its configurations and guarantee.

    Args:
        selection: the selection.
        best: the selection by utility alone; None if it may not be shown.
        folder: the sweep; None for a file of points that belongs to none.
    """
    _show_decision(selection)
    if best is not None:
        same = best.configuration == selection.configuration
        text = "It also has the best utility." if same else f"best utility instead: {figures(best)}"
        stdout.print(text, markup=False)
    if folder is not None and folder.disclosure().shows_runs:
        _show_configurations(folder, selection, best)
    _show_steps(selection)
    # What the sweep's models guarantee, and how they are found and loaded.
    if folder is None:
        return
    _show_guarantee(folder)
    stdout.print("look it up and load it:", style="bold")
    for command in lookup_commands(folder.tracking(), str(folder.names()["method"])):
        stdout.print(f"  {command}", markup=False, soft_wrap=True)


def _show_decision(selection: Selection) -> None:
    """Print the selected configuration, how sure it is, the alternatives, and the warnings."""
    # The decision in one line, then how sure it is.
    stdout.print(f"selected by {selection.rule}: {figures(selection)}", style="bold", markup=False)
    for sentence in in_words(selection):
        stdout.print(sentence, markup=False)
    if (own := selection.own_score) is not None:
        of = f"{selection.num_seeds} seeds, whose own score is {own:.4g}"
        stdout.print(f"What is loaded is one of {of}. {selection.score:.4g} is their mean.")
    for warning in selection.warnings:
        print_warning(warning)


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
        # Other rules are long. These hold a figure that a reader may reuse.
        bound = f" ({step.rule})" if step.name.endswith(BOUNDS) else ""
        stdout.print(
            f"{step.name}{bound}: {len(step.dropped)} dropped, {len(left)} left: {names}",
            markup=False,
        )
        if len(left) == 1:
            break  # the other steps change nothing


def _show_guarantee(folder: SweepFolder) -> None:
    """Print the guarantee of ε, or why there is none. Its limits are on each model's card."""
    record = folder.plan().record
    # Without an ε the guarantee's place is taken by a warning.
    if math.isinf(record.accounted.epsilon):
        for sentence in [
            *remarks(record),
            "privacy-preferred is not set: it is for models with a guarantee.",
        ]:
            print_warning(sentence)
        return
    not_certified = [f"Not certified: {reason}." for reason in record.not_certified_because]
    for sentence in [promise_of(record), *not_certified, *together_notes(folder.released())]:
        stdout.print(sentence, markup=False)
    stdout.print(
        "`raydp models show MODEL` lists what this guarantee does not cover.", markup=False
    )


def lookup_commands(tracking: TrackingSpec, method: str) -> list[str]:
    """Return shell commands that list the sweep's models and load the selected one.

    A non-private sweep has no preferred model, so its best-utility model is loaded instead.
    """
    # MLflow's alias is how the selected model is found later.
    private = constant("methods", method, "private")
    alias = PRIVACY_PREFERRED if private else "best-utility"
    uri, store = (
        json.dumps(text) for text in (f"models:/{tracking.registered_model}@{alias}", tracking.uri)
    )
    load = f"import raydp; m = raydp.load_model({uri}, tracking_uri={store}); print(m)"
    found = ("--uri", tracking.uri, "--registered-model", tracking.registered_model)
    return [command_line("models", "find", *found), f"{program('python')} {shell_line('-c', load)}"]


def _show_configurations(folder: SweepFolder, selected: Selection, best: Selection | None) -> None:
    """Print means over seeds by configuration, and mark the selected and the best-utility one."""
    # Means over the seeds of each configuration.
    points = points_table(folder)
    base = points["base_utility_loss"].iloc[0]
    finished = points[points["status"] == "finished"]
    means = configuration_means(finished, scored=False)
    scores = {name: column_means(finished, PREFIX + name) for name in score_names(finished)}
    score = folder.select().score
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
    for selection, mark in ((best, "best utility"), (selected, "selected")):
        for position, configuration in enumerate(listed):
            if selection and selection.configuration == configuration:
                marks[position] = f"{marks[position]}, {mark}" if position in marks else mark
    by = (
        "no score was measured" if score is None else f"the score is {score}, its std is over seeds"
    )
    title = f"{folder.names()['sweep']}: the base model's loss is {base:.4f}; {by}"
    print_table(title, rows, marks=marks, spare=("score std", "seeds", "utility_gain"))


def figures(selection: Selection | SelectedConfiguration) -> str:
    """Return the selected configuration with its utility loss and its score."""
    score = "no score" if selection.score is None else f"score {selection.score:.4g}"
    return f"{selection.configuration} utility_loss {selection.utility_loss:.4f}, {score}"

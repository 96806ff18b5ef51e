"""`raydp delete`: a sweep with its models and runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from raydp.cli.arguments import OneSweep, Storage
from raydp.cli.registration import READ, ExtraCommand
from raydp.system.imports import imported
from raydp.system.output import stderr, stdout


def delete(
    sweep: OneSweep,
    keep_selected: Annotated[
        bool, typer.Option("--keep-selected", help="Keep the selected model and its run.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    storage: Storage = "raydp_runs",
) -> None:
    """Delete a sweep: its folder and key, and its runs and models in MLflow. It asks first.

    With --keep-selected the selected model stays registered, so that all others can be deleted,
    as the joint ε of all models suggests.
    """
    with stderr.status("looking for the runs and models of the sweep"):
        deletion = imported("raydp.extensions.deletion.sweep_deletion")
        folder = imported("raydp.sweep.api").sweep_folder(sweep, storage)
        remains = deletion.SweepRemains.of(folder, keep_selected=keep_selected)
    for sentence in remains.sentences:
        stdout.print(sentence, markup=False)
    # Without a terminal nobody can answer.
    if not yes and not sys.stdin.isatty():
        raise ValueError(
            "--yes must be given where nobody can be asked, got neither it nor a terminal. Add it."
        )
    if not yes and not typer.confirm("Delete it?", err=True):
        stdout.print("nothing is deleted")
        raise typer.Exit(1)
    with stderr.status("deleting") as status:
        remains.delete(lambda done, steps: status.update(f"deleting: {done} of {steps} steps"))
    stdout.print(f"{folder.path} is deleted", markup=False)


COMMAND = ExtraCommand(run=delete, panel=READ)

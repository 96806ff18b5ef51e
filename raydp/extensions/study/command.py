"""`raydp study` and `raydp analyze epsilon`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydp.analysis.selection.equivalents import CONFIDENCE
from raydp.cli.arguments import By, Json, MaxLoss, MinGain, Storage, check_new
from raydp.cli.registration import READ, RUN, ExtraCommand
from raydp.plugins.registries import service
from raydp.privacy import bound_in_words
from raydp.system.imports import imported
from raydp.system.output import print_json, print_table, print_warning, stderr, stdout
from raydp.system.shell import command_line

if TYPE_CHECKING:
    from raydp.extensions.study.answers import Answered
    from raydp.extensions.study.document import Study
    from raydp.extensions.study.run import JointModels


def study(
    file: Annotated[Path, typer.Argument(metavar="STUDY", help="A spec with the section axes.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Plan and cost it; train nothing.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it stopped.")] = False,
    simulate: Annotated[
        str | None, typer.Option(help="With --dry-run: how long it takes, as `raydp plan` has it.")
    ] = None,
    json: Json = False,
) -> None:
    """Run a sweep for each combination of ε, model, data or method, and compare them."""
    with stderr.status("reading the study and loading the libraries"):
        run = imported("raydp.extensions.study.run")
        chosen = imported("raydp.extensions.study.document").Study.read(file)
    if simulate is not None and not dry_run:
        raise ValueError("--simulate must go with --dry-run, got it alone. Add --dry-run.")
    if dry_run:
        _plan(chosen, simulate, json=json)
        return
    try:
        ends = run.run_study(chosen, resume=resume, console=stderr)
    except KeyboardInterrupt:
        go_on = command_line("study", file, "--resume")
        stderr.print(
            f"All that has ended is kept. Go on with: {go_on}", markup=False, soft_wrap=True
        )
        raise
    tables = imported("raydp.extensions.study.points")
    files = tables.files_of(chosen)
    with stderr.status("writing the points of all sweeps"):
        tables.write_study_tables(chosen)
    rows = run.cell_rows(ends)
    # Without results of every sweep, or with one sweep, there is nothing to compare.
    compare = service("comparison", needed_by=None)
    if compare is not None and len(ends) > 1 and all(end.state == "finished" for end in ends):
        with stderr.status("comparing the sweeps"):
            compare([str(files["points"])], files["comparison"], by="cell")
    with stderr.status("fitting the scores of all ε"):
        which = imported("raydp.extensions.study.answers").answer_of(chosen, files)
    with stderr.status("adding up all models"):
        joint = run.joint_epsilon(chosen)
    files = {name: file for name, file in files.items() if file.exists()}
    _tell(chosen.name, rows, files, joint, which, json=json)
    if not json and not isinstance(which, str) and which is not None and which.in_doubt():
        for sentence in run.left_open(chosen):
            stdout.print(sentence, markup=False)
    # Exit code 1 for scripts: a sweep has failed, and can be run again by --resume.
    if any(end.state != "finished" for end in ends):
        raise typer.Exit(1)


def _plan(chosen: Study, simulate: str | None, *, json: bool) -> None:
    """Print the plan of a study, and how long it takes on the hardware that is simulated."""
    budget, simulation = imported("raydp.extensions.budget.estimate"), None
    hardware = None if simulate is None else budget.Hardware.parse(simulate)
    run = imported("raydp.extensions.study.run")
    with stderr.status("planning") as status:
        cells = run.plan_study(chosen, status.update)
    rows = [cell.row() for cell in cells]
    if hardware is not None:
        sweeps = [(each.cell.spec, each.plan.first_pass) for each in cells]
        simulation = budget.simulation_of(sweeps, hardware)
    for caution in [] if json else run.cautions_of(chosen):
        print_warning(caution)
    if json:
        print_json(rows if simulation is None else {"sweeps": rows, "simulation": simulation})
        return
    print_table(f"{len(rows)} sweeps, the largest first", rows)
    if simulation is not None:
        imported("raydp.extensions.budget.show").show_simulation(simulation)


def _tell(
    name: str,
    rows: list[dict[str, object]],
    files: Mapping[str, Path],
    joint: Mapping[str, JointModels],
    which: Answered | str | None,
    *,
    json: bool,
) -> None:
    """Print the sweeps with what they selected, which ε keeps to the limit, and the joint cost."""
    if json:
        told = which if which is None or isinstance(which, str) else which.to_json()
        print_json({"cells": rows, **files, "joint": joint, "epsilon": told})
        return
    hidden = set() if any(row["reason"] for row in rows) else {"reason"}
    print_table(name, [{k: v for k, v in row.items() if k not in hidden} for row in rows])
    for cost in joint.values():
        first, *others = cost["sweeps"]
        of = f"{first} and {len(others)} more on its data" if others else first
        total = f"all {cost['models']} models of {of}, together"
        said = bound_in_words(cost["epsilon"], cost["delta"]) or "ε is not known"
        stdout.print(f"{total}: {said}", markup=False)
    if isinstance(which, str):
        stdout.print(which, markup=False)
    elif which is not None:
        _show(which)
    for kind, file in files.items():
        stdout.print(f"{kind.capitalize():<11}{file}", markup=False, soft_wrap=True)


def epsilon(
    points: Annotated[str, typer.Argument(metavar="POINTS", help="The points of a study.")],
    max_leak: Annotated[
        float | None, typer.Option(help="The largest score that is allowed.")
    ] = None,
    max_loss: MaxLoss = None,
    min_gain_share: MinGain = None,
    score: By = None,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.999)] = CONFIDENCE,
    storage: Storage = "raydp_runs",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A new page.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the page.")] = False,
    json: Json = False,
) -> None:
    """The largest ε whose leak keeps to a limit, and the largest one up to which every
    configuration does (ε^gold; Hu et al. 2025, Fig. 4)."""
    if output is not None:
        check_new(output, force=force)
    if max_leak is not None and not math.isfinite(max_leak):
        raise ValueError(
            f"--max-leak must be finite, got {max_leak:g}. Change it, or leave it out."
        )
    source = imported("raydp.sweep.api").source_of(points, storage)
    with stderr.status("fitting the scores of all ε"):
        found = imported("raydp.extensions.study.answers").answered(
            source, max_leak=max_leak, max_loss=max_loss, min_gain_share=min_gain_share,
            confidence=confidence, score=score,
        )  # fmt: skip
    if output is not None:
        found.write(output, Path(points).stem)
    print_json(found.to_json()) if json else _show(found)


def _show(found: Answered) -> None:
    """Print each answer in words, then a row for each ε."""
    page = imported("raydp.extensions.study.page")
    for _, answer in found.parts:
        for place, sentence in enumerate(found.sentences(answer)):
            stdout.print(sentence, style=None if place else "bold", markup=False)
        print_table("ε", page.level_rows(answer))


STUDY = ExtraCommand(run=study, panel=RUN)
EPSILON = ExtraCommand(run=epsilon, panel=READ, group="analyze")

"""`raydp study` and `raydp analyze epsilon`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydp.cli.arguments import By, Json, MaxLoss, MinGain, Storage
from raydp.cli.registration import READ, RUN, ExtraCommand
from raydp.plugins.registries import service
from raydp.privacy.records.card import bound
from raydp.system.imports import imported
from raydp.system.output import print_json, print_table, stderr, stdout
from raydp.system.shell import command_line

if TYPE_CHECKING:
    from raydp.extensions.study.run import JointModels
    from raydp.extensions.study.safe_epsilon import SafeEpsilon


def study(
    file: Annotated[Path, typer.Argument(metavar="STUDY", help="A spec with the section axes.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Plan and cost it; train nothing.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it stopped.")] = False,
    json: Json = False,
) -> None:
    """Run a sweep for each combination of ε, model, data or method, and compare them."""
    with stderr.status("reading the study and loading the libraries"):
        run = imported("raydp.extensions.study.run")
        chosen = imported("raydp.extensions.study.document").Study.read(file)
    if dry_run:
        with stderr.status("planning") as status:
            cells = run.plan_study(chosen, status.update)
        rows = [cell.row() for cell in cells]
        print_json(rows) if json else print_table(f"{len(rows)} sweeps, the largest first", rows)
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
        points = tables.write_study_tables(chosen)
    rows = run.cell_rows(ends)
    # Without results of every sweep there is nothing to compare.
    compare = service("comparison", needed_by=None)
    if compare is not None and all(end.state == "finished" for end in ends):
        with stderr.status("writing the report"):
            compare([str(files["points"])], files["comparison"], by="cell")
    with stderr.status("adding up all models"):
        joint = run.joint_epsilon(chosen, points)
    files = {name: file for name, file in files.items() if file.exists()}
    _tell(chosen.name, rows, files, joint, json=json)
    # Exit code 1 for scripts: a sweep has failed, and can be run again by --resume.
    if any(end.state != "finished" for end in ends):
        raise typer.Exit(1)


def _tell(
    name: str,
    rows: list[dict[str, object]],
    files: Mapping[str, Path],
    joint: Mapping[str, JointModels],
    *,
    json: bool,
) -> None:
    """Print the sweeps with what they selected, and what all models cost together."""
    if json:
        print_json({"cells": rows, **files, "joint": joint})
        return
    print_table(name, rows)
    for cost in joint.values():
        total = f"all {cost['models']} models on these data together"
        stdout.print(f"{total}: ε ≤ {bound(cost['epsilon'])}", markup=False)
    for kind, file in files.items():
        stdout.print(f"{kind.capitalize():<11}{file}", markup=False, soft_wrap=True)


def epsilon(
    points: Annotated[str, typer.Argument(metavar="POINTS", help="The points of a study.")],
    max_leak: Annotated[float, typer.Option(help="The largest score that is allowed.")],
    max_loss: MaxLoss = None,
    min_gain_share: MinGain = None,
    score: By = None,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.999)] = 0.95,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """The largest ε whose leak keeps to a limit, and the largest one up to which every
    configuration does (ε^gold; Hu et al. 2025, Fig. 4)."""
    api = imported("raydp.sweep.api")
    source = api.source_of(points, storage)
    with stderr.status("fitting the scores of all ε"):
        answer = imported("raydp.extensions.study.safe_epsilon").safe_epsilon(
            source.points(score=score),
            max_leak=max_leak, max_loss=max_loss, min_gain_share=min_gain_share,
            confidence=confidence, secrets=source.by_secret(score),
        )  # fmt: skip
    print_json(asdict(answer)) if json else _show(answer)


def _show(answer: SafeEpsilon) -> None:
    """Print the answer in words, then a row for each ε."""
    sure = f"{100 * answer.confidence:g} %"
    limit = f"a leak of at most {answer.max_leak:g}"
    if answer.configuration is None:
        stdout.print(f"No ε has a configuration that keeps to {limit} with {sure}.", style="bold")
    else:
        c = answer.configuration
        stdout.print(
            f"ε = {answer.epsilon:g} is the largest that keeps to {limit} with {sure}: b = "
            f"{c['batch_size']}, T = {c['num_steps']}, η = {c['learning_rate']:g}.",
            style="bold",
            markup=False,
        )
    gold = (
        "At no measured ε does every useful configuration keep to it"
        if answer.gold is None
        else f"Up to ε = {answer.gold:g} every useful configuration keeps to it"
    )
    stdout.print(f"{gold} (ε^gold).", markup=False)
    rows = []
    for level in answer.levels:
        safest, interval = level["safest"], level["highest_interval"]
        rows.append(
            {
                "ε": level["epsilon"],
                "useful": f"{level['admissible']} of {level['configurations']}",
                "lowest leak": level["lowest"],
                "highest leak": level["highest"],
                "at most": None if interval is None else interval[1],
                "safest keeps": None if safest is None else safest["probability"],
                "all keep": level["probability_all"],
            }
        )
    print_table("ε", rows)


STUDY = ExtraCommand(run=study, panel=RUN)
EPSILON = ExtraCommand(run=epsilon, panel=READ, group="analyze")

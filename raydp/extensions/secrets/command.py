"""`raydp secrets`: extract secrets from data, and filter them.

The output shows counts and names, never a secret.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypedDict

import typer

from raydp.cli.arguments import DEFAULT_URI, Json, Storage, Uri
from raydp.cli.errors import CommandGroup
from raydp.cli.registration import DATA, ExtraCommand

secrets_app = typer.Typer(cls=CommandGroup, help="Secrets of data: extraction and filters.")

Output = Annotated[Path, typer.Option("-o", "--output", help="A new file; written with mode 0600.")]
Show = Annotated[bool, typer.Option("--show", help="Also print the secrets, to a terminal only.")]


class SplitOptions(TypedDict):
    """How the training part of data is found."""

    heldout_fraction: float
    split_seed: int


@secrets_app.command("extract")
def extract(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="JSON Lines or CSV, gzipped or not.")
    ],
    output: Output,
    kind: Annotated[
        Literal["mail", "chat", "qa"],
        typer.Option(
            help="Texts, conversations (what the assistant says), or question/answer rows by author."
        ),
    ] = "mail",
    tokenizer: Annotated[
        str | None, typer.Option(help="Model whose tokens are counted (mail, chat).")
    ] = None,
    column: Annotated[str, typer.Option(help="The column with the text (mail).")] = "content",
    n: Annotated[
        int | None,
        typer.Option(
            "--n", min=2, help="Tokens of an n-gram (mail, chat); 50, 20 and 10 by default."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="n-grams that are merged (mail, chat).")] = 500,
    min_count: Annotated[
        int, typer.Option(min=1, help="Texts that a secret must be in (mail, chat).")
    ] = 2,
    detect: Annotated[
        str, typer.Option(help="Detectors, comma-separated; '' for none (mail, chat).")
    ] = ("phone,email,address,key,number"),
    order: Annotated[
        Literal["secret", "count"],
        typer.Option(
            help="List what looks secret first, without boilerplate; or all, the commonest first (mail, chat)."
        ),
    ] = "secret",
    max_detected: Annotated[
        int, typer.Option(min=1, help="Secrets of each detector, the commonest (mail, chat).")
    ] = 100,
    region: Annotated[
        str, typer.Option(help="Country of phone numbers without a code (mail, chat).")
    ] = "US",
    heldout_fraction: Annotated[
        float, typer.Option(min=0, max=1, help="As in the task: not read.")
    ] = 0.1,
    split_seed: Annotated[int, typer.Option(help="As in the task (mail, chat).")] = 0,
    template: Annotated[
        str | None, typer.Option(help="As in the task: model, alpaca, chatml or plain (chat).")
    ] = None,
    rows_per_author: Annotated[int, typer.Option(min=2, help="As in the task (qa).")] = 20,
    review: Annotated[
        Path | None, typer.Option(help="Also a file for task.review, to complete (qa).")
    ] = None,
    show: Show = False,
    json: Json = False,
) -> None:
    """Write a secrets file from the training part of data: frequent n-grams and detected values, or
    authors' genres."""
    from raydp.extensions.secrets.detectors import KINDS
    from raydp.extensions.secrets.files import require_column

    if kind == "mail":
        require_column(data, column)  # mistakes are reported before heavy imports
    from raydp.extensions.secrets import commands
    from raydp.extensions.secrets.mail import MailOptions

    if kind == "qa":
        answer = commands.extract_from_answers(
            data,
            output,
            review,
            {"heldout_fraction": heldout_fraction, "rows_per_author": rows_per_author},
        )
    else:
        # A misspelt detector would silently find nothing.
        wanted = [word.strip() for word in detect.split(",") if word.strip()]
        if unknown := [word for word in wanted if word not in KINDS]:
            raise ValueError(
                f"--detect must be of {', '.join(KINDS)}, got {unknown[0]!r}. Correct it."
            )
        # Frequency is counted in the tokens of the model that will be trained.
        if tokenizer is None:
            raise ValueError(
                f"--tokenizer must be given with --kind {kind}, got nothing. Name the model to be "
                "trained."
            )
        options = MailOptions(
            n=n,
            top=top,
            min_count=min_count,
            detect=tuple(k for k in KINDS if k in wanted),
            max_detected=max_detected,
            region=region,
            order=order,
        )
        split: SplitOptions = {"heldout_fraction": heldout_fraction, "split_seed": split_seed}
        if kind == "chat":
            answer = commands.extract_from_chat(
                data, output, tokenizer, options, {**split, "template": template}
            )
        else:
            answer = commands.extract_from_mail(
                data, output, tokenizer, options, column=column, **split
            )
    _answer(answer, output, show, json)


@secrets_app.command("filter")
def filter_(
    secrets: Annotated[Path, typer.Argument(metavar="SECRETS", help="A secrets file.")],
    output: Output,
    model: Annotated[
        list[str] | None, typer.Option(help="models:/NAME/VERSION without privacy; repeatable.")
    ] = None,
    sweep: Annotated[str | None, typer.Option(help="A finished sweep without privacy.")] = None,
    train: Annotated[
        Path | None, typer.Option(help="SPEC with method nonprivate: train it now.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="The base model, if its recorded name is not valid here.")
    ] = None,
    acr: Annotated[
        bool, typer.Option("--acr", help="Also by adversarial compression (slow).")
    ] = False,
    min_acr: Annotated[float, typer.Option(help="Least ACR of the runs' models.")] = 1.5,
    max_base_acr: Annotated[float, typer.Option(help="Largest ACR of the base model.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Seed of the search for prompts.")] = 0,
    uri: Uri = DEFAULT_URI,
    storage: Storage = "raydp_runs",
    show: Show = False,
    json: Json = False,
) -> None:
    """Keep the secrets that a model without privacy generates greedily and the base model does
    not."""
    from raydp.spec.reading import draft_spec
    from raydp.tasks.secret import read_secrets

    read_secrets(secrets, "SECRETS")  # mistakes are reported before heavy imports
    if train is not None:
        draft_spec(train)
    from raydp.extensions.secrets import commands

    answer = commands.filter_file(
        secrets,
        output,
        models=model or [],
        store=uri,
        sweep=sweep,
        storage=storage,
        train=train,
        base=base,
        acr=acr,
        min_acr=min_acr,
        max_base_acr=max_base_acr,
        seed=seed,
    )
    _answer(answer, output, show, json)


def _answer(answer: dict[str, object], output: Path, show: bool, json: bool) -> None:
    """Print counts and a table by type, or a document; and the secrets themselves if requested."""
    from raydp.extensions.secrets import commands
    from raydp.io.output import print_json, print_table, stdout
    from raydp.search_spaces.names import count_in_words

    if json:
        print_json(answer)
        return
    # Counts and names only; secrets need --show and a terminal.
    for key, value in answer.items():
        if not isinstance(value, list) and value is not None:
            shown = f"{value:.4g}" if isinstance(value, float) else value
            stdout.print(f"{count_in_words(key)}: {shown}", markup=False)
    if isinstance(types := answer.get("types"), list):
        print_table("by type", types)
    if show:
        commands.show(output)


COMMAND = ExtraCommand(run=secrets_app, panel=DATA)

"""`raydp secrets`: extract secrets from data, and filter them.

The output shows counts and names, never a secret.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from raydp.cli.arguments import DEFAULT_URI, Json, Storage, Uri
from raydp.cli.groups import CommandGroup
from raydp.cli.registration import DATA, ExtraCommand
from raydp.extensions.secrets.detectors import KINDS, Kind
from raydp.extensions.secrets.files import require_column
from raydp.search_spaces.names import count_in_words
from raydp.spec.reading import draft_spec
from raydp.system.output import print_json, print_table, stdout
from raydp.tasks.secret import read_secrets

secrets_app = typer.Typer(cls=CommandGroup, help="Secrets of data: extraction and filters.")

Output = Annotated[Path, typer.Option("-o", "--output", help="A new file; written with mode 0600.")]
Show = Annotated[bool, typer.Option("--show", help="Also print the secrets, to a terminal only.")]


Data = Annotated[Path, typer.Argument(metavar="DATA", help="JSON Lines or CSV, gzipped or not.")]
Source = Annotated[
    Literal["mail", "chat", "qa"],
    typer.Option(
        help="Texts, conversations (what --loss trains on), or question/answer rows by author."
    ),
]
Tokenizer = Annotated[str | None, typer.Option(help="Model whose tokens are counted (mail, chat).")]
Column = Annotated[str, typer.Option(help="The column with the text (mail).")]
Length = Annotated[
    int | None,
    typer.Option("--n", min=2, help="Tokens of an n-gram (mail, chat); 50, 20 and 10 by default."),
]
Top = Annotated[int, typer.Option(min=1, help="n-grams that are merged (mail, chat).")]
MinCount = Annotated[int, typer.Option(min=1, help="Rows that a secret must be in (mail, chat).")]
Detect = Annotated[str, typer.Option(help="Detectors, comma-separated; '' for none (mail, chat).")]
Order = Annotated[
    Literal["secret", "count"],
    typer.Option(
        help="List what looks secret first, without boilerplate; or all, the commonest first (mail, chat)."
    ),
]
MaxDetected = Annotated[
    int, typer.Option(min=1, help="Secrets of each detector, the commonest (mail, chat).")
]
Region = Annotated[str, typer.Option(help="Country of phone numbers without a code (mail, chat).")]
Heldout = Annotated[float, typer.Option(min=0, max=1, help="As in the task: not read.")]
SplitSeed = Annotated[int, typer.Option(help="As in the task (mail, chat).")]
OfUsers = Annotated[
    str | None, typer.Option(help="As in the task: a user is held out as a whole (mail, chat).")
]
Template = Annotated[
    str | None, typer.Option(help="As in the task: model, alpaca, chatml or plain (chat).")
]
Loss = Annotated[
    Literal["assistant", "all"],
    typer.Option(help="As in the task: `all` reads what users say, too (chat)."),
]
RowsPerAuthor = Annotated[int, typer.Option(min=2, help="As in the task (qa).")]
Review = Annotated[Path | None, typer.Option(help="Also a file for task.review, to complete (qa).")]


@secrets_app.command("extract")
def extract(
    data: Data,
    output: Output,
    kind: Source = "mail",
    tokenizer: Tokenizer = None,
    column: Column = "content",
    n: Length = None,
    top: Top = 500,
    min_count: MinCount = 2,
    detect: Detect = "phone,email,address,key,number",
    order: Order = "secret",
    max_detected: MaxDetected = 100,
    region: Region = "US",
    heldout_fraction: Heldout = 0.1,
    split_seed: SplitSeed = 0,
    user_column: OfUsers = None,
    template: Template = None,
    loss: Loss = "assistant",
    rows_per_author: RowsPerAuthor = 20,
    review: Review = None,
    show: Show = False,
    json: Json = False,
) -> None:
    """Write a secrets file from the training part of data: frequent n-grams and detected values, or
    authors' genres."""
    if kind == "mail":
        require_column(data, column)  # mistakes are reported before heavy imports
    from raydp.extensions.secrets import commands
    from raydp.extensions.secrets.mail import MailOptions

    if kind == "qa":
        authors = {"heldout_fraction": heldout_fraction, "rows_per_author": rows_per_author}
        answer = commands.extract_from_answers(data, output, review, authors)
        _answer(answer, output, show, json)
        return
    options = MailOptions(
        n=n, top=top, min_count=min_count, detect=_kinds(detect), max_detected=max_detected,
        region=region, order=order,
    )  # fmt: skip
    # Frequency is counted in the tokens of the model that will be trained.
    if tokenizer is None:
        raise ValueError(
            f"--tokenizer must be given with --kind {kind}, got nothing. Name the model to be "
            "trained."
        )
    if kind == "chat":
        split = {"heldout_fraction": heldout_fraction, "split_seed": split_seed}
        of_task = {**split, "template": template, "loss": loss, "user_column": user_column}
        try:
            answer = commands.extract_from_chat(data, output, tokenizer, options, of_task)
        except commands.NoSecretFoundError as error:
            hint = " `--loss all` reads what users say, too." if loss == "assistant" else ""
            raise ValueError(f"{error}{hint}") from None
        except ValueError as error:
            raise ValueError(_by_options(str(error))) from None
    else:
        texts = (column, heldout_fraction, split_seed, user_column)
        answer = commands.extract_from_mail(data, output, tokenizer, options, *texts)
    _answer(answer, output, show, json)


def _by_options(message: str) -> str:
    """Return a message of a task with its fields named as options, and its path as the argument."""
    named = message.replace("task.path", "DATA")
    return re.sub(r"task\.(\w+)", lambda found: f"--{found[1].replace('_', '-')}", named)


def _kinds(detect: str) -> tuple[Kind, ...]:
    """Return the kinds of values that a list names. A misspelt one would silently find nothing."""
    wanted = [word.strip() for word in detect.split(",") if word.strip()]
    if unknown := [word for word in wanted if word not in KINDS]:
        raise ValueError(f"--detect must be of {', '.join(KINDS)}, got {unknown[0]!r}. Correct it.")
    return tuple(kind for kind in KINDS if kind in wanted)


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

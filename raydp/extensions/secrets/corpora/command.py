"""`raydp data`: preparation of data sets for a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer
from rich.progress import Progress

from raydp.cli.arguments import Json
from raydp.cli.groups import CommandGroup
from raydp.cli.registration import DATA, ExtraCommand
from raydp.extensions.secrets.corpora.absent import FileMatches, Needles, find_in_corpus
from raydp.search_spaces.names import count_in_words
from raydp.spec.sections import ModelSpec
from raydp.system.output import print_json, print_table, stderr, stdout
from raydp.tasks.row_files import read_column
from raydp.tasks.secret import read_secrets

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedTokenizerBase


data_app = typer.Typer(cls=CommandGroup, help="Data sets made ready for a sweep.")

Data = Annotated[Path, typer.Argument(metavar="DATA", help="JSON Lines or CSV, gzipped or not.")]
Secrets = Annotated[Path | None, typer.Option(help="A secrets file.")]


@data_app.command("enron")
def enron(
    raw: Annotated[
        Path,
        typer.Argument(metavar="RAW", help="maildir folder, its .tar.gz, or Kaggle's emails.csv."),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A new FILE.jsonl.gz; written with mode 0600.")
    ],
    tokenizer: Annotated[str, typer.Option(help="Model whose tokens are counted.")],
    top: Annotated[
        int, typer.Option(min=1, help="Senders, and receivers, that count as frequent.")
    ] = 100,
    min_tokens: Annotated[int, typer.Option(min=1)] = 30,
    validation_fraction: Annotated[float, typer.Option(min=0, max=0.9)] = 0.07,
    test_fraction: Annotated[float, typer.Option(min=0, max=0.9)] = 0.035,
    split_seed: Annotated[int, typer.Option()] = 0,
    secrets: Secrets = None,
    json: Json = False,
) -> None:
    """The Enron e-mails in Hu et al.'s four steps, as the task enron reads them."""
    from raydp.extensions.secrets.corpora.enron import EnronOptions, prepare_enron
    from raydp.models.base_models import load_tokenizer

    options = EnronOptions(
        top=top,
        min_tokens=min_tokens,
        validation_fraction=validation_fraction,
        test_fraction=test_fraction,
        split_seed=split_seed,
    )
    known = read_secrets(secrets, "--secrets") if secrets else []
    with _status("reading") as progress:
        of_model = load_tokenizer(tokenizer)
        notes = prepare_enron(raw, output, of_model, options, known, progress=progress)
    _lines({"output": str(output), **notes}, json)


@data_app.command("paraphrase")
def paraphrase(
    data: Data,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="JSON Lines; an unfinished file is continued.")
    ],
    model: Annotated[str, typer.Option(help="An instruct model with a chat template.")],
    num: Annotated[int, typer.Option(min=1, help="Paraphrases of each answer.")] = 7,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Rows at a time; does not change the draws.")
    ] = 8,
    temperature: Annotated[float, typer.Option(min=0.01)] = 1.0,
    top_k: Annotated[int, typer.Option(min=1)] = 50,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 120,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first rows.")] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Type of the model's weights.")
    ] = "float32",
    json: Json = False,
) -> None:
    """Paraphrases of answers by a local instruct model, for task.paraphrases (Hu et al.,
    App. B.4)."""
    from raydp.extensions.secrets.corpora import paraphrase as rewording
    from raydp.models.base_models import LoadedModel, load_base

    options = rewording.ParaphraseOptions(
        num=num,
        seed=seed,
        batch_size=batch_size,
        temperature=temperature,
        top_k=top_k,
        max_new_tokens=max_new_tokens,
    )

    # Loaded only if rows are left to paraphrase.
    def load() -> LoadedModel:
        base = load_base(ModelSpec.model_validate({"name": model, "dtype": dtype}))
        return LoadedModel(
            model=base.model, tokenizer=cast("PreTrainedTokenizerBase", base.tokenizer)
        )

    rows = rewording.read_question_rows(data)
    with Progress(console=stderr, transient=True) as bar:
        task = bar.add_task("rows")
        notes = rewording.paraphrase_file(
            rows,
            output,
            load,
            model,
            options,
            limit=limit,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    _lines({"output": str(output), **notes}, json)


@data_app.command("absent")
def absent(
    data: Data,
    corpus: Annotated[
        list[Path],
        typer.Option(help="Public text: .txt, .jsonl or .csv, also with .gz; repeatable."),
    ],
    column: Annotated[str, typer.Option(help="The column with the text.")] = "content",
    keyword: Annotated[
        list[str] | None, typer.Option(help="Counted in any case; repeatable.")
    ] = None,
    secrets: Secrets = None,
    json: Json = False,
) -> None:
    """Look for samples, secrets and keywords in public text (Hu et al., App. B.5). Exit code 1 if
    one is there."""
    texts = read_column(data, column, "DATA", column_field="--column")
    known = read_secrets(secrets, "--secrets") if secrets else []
    needles = Needles.of(texts, known, keyword or [])
    with _status("reading") as progress:
        files = find_in_corpus(needles, corpus, progress=progress)
    is_present = any(row["samples_found"] or row["secrets_found"] for row in files)
    answer = {
        "samples": len(needles.samples),
        "secrets": len(needles.secrets),
        "absent": not is_present,
        "files": files,
    }
    if json:
        print_json(answer)
    else:
        _lines({k: v for k, v in answer.items() if k != "files"}, json)
        print_table("public text", [_flat(row) for row in files])
    if is_present:
        raise typer.Exit(1)


def _flat(row: FileMatches) -> dict[str, object]:
    """Flatten a row of the document into a row of a printed table."""
    words = ", ".join(f"{word} {count}" for word, count in row["keywords"].items())
    return {**row, "secrets_found": ", ".join(row["secrets_found"]) or 0, "keywords": words or None}


@contextmanager
def _status(first: str) -> Iterator[Callable[[str], None]]:
    """Show a line on stderr that names the current activity."""
    with stderr.status(first) as status:
        yield status.update


def _lines(answer: Mapping[str, object], json: bool) -> None:
    """Print counts, as one JSON document or one line each."""
    if json:
        print_json(answer)
        return
    for key, value in answer.items():
        stdout.print(f"{count_in_words(key)}: {value}", markup=False)


COMMAND = ExtraCommand(run=data_app, panel=DATA)

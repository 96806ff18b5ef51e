"""`raydp models`: registered models."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Annotated, cast

import typer

from raydp import tracking
from raydp.cli.arguments import DEFAULT_URI, Json, Model, TrustedKey, Uri
from raydp.cli.groups import CommandGroup
from raydp.cli.registration import MODELS, ExtraCommand
from raydp.search_spaces.settings import Settings, settings_in_words
from raydp.system.output import print_document, print_json, print_table, stderr, stdout

if TYPE_CHECKING:
    import pandas as pd

models_app = typer.Typer(cls=CommandGroup, help="The model registry.")

Verify = Annotated[
    bool,
    typer.Option("--verify", help="Also read the models' files and compare them with their seal."),
]
PAGE_COLUMNS = 100
"""The columns of a page that a person reads from a pipe or a file."""
SHOWN = (
    "model_uri",
    "sweep",
    "batch_size",
    "num_steps",
    "learning_rate",
    "seed",
    "epsilon",
    "utility_loss",
    "score",
)
SPARE = ("sweep", "seed", "epsilon", "aliases", "learning_rate", "num_steps", "batch_size")
"""Columns that a narrow terminal omits, in this order."""


@models_app.command("find")
def models_find(
    uri: Uri = DEFAULT_URI,
    registered_model: Annotated[
        str | None, typer.Option(help="Its name in the registry; all by default.")
    ] = None,
    alias: Annotated[str | None, typer.Option(help="Only versions with this alias.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="COLUMN OPERATOR VALUE, such as 'score.vmr < 0.05'; repeatable."),
    ] = None,
    max_epsilon: Annotated[float | None, typer.Option()] = None,
    min_epsilon: Annotated[float | None, typer.Option()] = None,
    max_delta: Annotated[float | None, typer.Option()] = None,
    max_loss: Annotated[float | None, typer.Option()] = None,
    max_score: Annotated[float | None, typer.Option()] = None,
    score: Annotated[
        str | None, typer.Option(help="Name of the score to filter and sort by.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option()] = None,
    num_steps: Annotated[int | None, typer.Option()] = None,
    learning_rate: Annotated[float | None, typer.Option()] = None,
    order_by: Annotated[
        str, typer.Option(help="score, loss, epsilon or another column.")
    ] = "score",
    limit: Annotated[int | None, typer.Option()] = None,
    trusted_key: TrustedKey = None,
    verify: Verify = False,
    json: Json = False,
) -> None:
    """Registered models by ε, δ, utility, score and configuration."""
    with stderr.status("opening the tracking store and searching its models"):
        tracking.check_store(uri, create=False)  # before MLflow, which takes a second
        models = tracking.find_models(
            uri,
            registered_model=registered_model,
            alias=alias,
            where=where or (),
            min_epsilon=min_epsilon,
            max_epsilon=max_epsilon,
            max_delta=max_delta,
            max_loss=max_loss,
            score=score,
            max_score=max_score,
            batch_size=batch_size,
            num_steps=num_steps,
            learning_rate=learning_rate,
            order_by=order_by,
            limit=limit,
            trusted_keys=trusted_key,
            verify=verify,
        )
    _tell_of_missing(models)
    print_json(models.to_dict("records")) if json else _show(models)


def _tell_of_missing(models: pd.DataFrame) -> None:
    """Print on stderr what the table lacks: models without a guarantee, and unreadable values."""
    if left_out := models.attrs["left_out"]:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
        stderr.print(
            f"left out {sum(left_out.values())}, whose guarantee does not hold: {reasons}",
            markup=False,
        )
    if unreadable := models.attrs["unreadable"]:
        counts = ", ".join(f"{count} in {column}" for column, count in sorted(unreadable.items()))
        stderr.print(
            f"values in the registry that cannot be read, shown as null: {counts}", markup=False
        )


def _show(models: pd.DataFrame) -> None:
    """Print the models as a table."""
    # The sweep's name is left out if no model has one. Further fields become one column of words.
    columns = [name for name in SHOWN if name != "sweep" or not models[name].isna().all()]
    rows = cast("list[dict[str, object]]", models[columns].to_dict("records"))
    settings = models["settings"].fillna("") if "settings" in models else [""] * len(models)
    for row, aliases, own in zip(rows, models["aliases"], settings, strict=True):
        if any(settings):
            row["further fields"] = settings_in_words(Settings.parse(own))
        row["aliases"] = ", ".join(aliases)
    print_table("models", rows, keep=SHOWN[:1], spare=SPARE)


@models_app.command("show")
def models_show(
    model: Model,
    uri: Uri = DEFAULT_URI,
    trusted_key: TrustedKey = None,
    verify: Verify = False,
    json: Json = False,
) -> None:
    """One model with its privacy record, who signed it, and its promotions."""
    answer = tracking.show_model(model, tracking_uri=uri, trusted_keys=trusted_key, verify=verify)
    # COLUMNS, the width of the terminal, else that of a page.
    width = shutil.get_terminal_size((PAGE_COLUMNS, 0)).columns
    print_json(answer) if json else print_document(answer, width=width)


@models_app.command("promote")
def models_promote(
    model: Model,
    alias: Annotated[str, typer.Option()],
    reason: Annotated[str, typer.Option()],
    by: Annotated[
        str | None, typer.Option(help="Who promotes it; by default the name you are logged in by.")
    ] = None,
    uri: Uri = DEFAULT_URI,
    trusted_key: TrustedKey = None,
    json: Json = False,
) -> None:
    """Give a model an alias, with the reason on record."""
    made = tracking.promote_model(
        model, alias, reason, tracking_uri=uri, by=by, trusted_keys=trusted_key
    )
    answer = {
        "model": model,
        **{k: made[k] for k in ("alias", "reason", "by", "at", "previous_version")},
    }
    print_json(answer) if json else stdout.print(f"{model} is now {alias!r}", markup=False)


COMMAND = ExtraCommand(run=models_app, panel=MODELS)

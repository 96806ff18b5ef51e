"""`raydp list`, `models` and `spaces`: sweeps, registered models and named search spaces."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from raydp.cli.arguments import DEFAULT_URI, Json, Storage, Uri
from raydp.cli.errors import CommandGroup

models_app = typer.Typer(cls=CommandGroup, help="The model registry.")
spaces_app = typer.Typer(cls=CommandGroup, help="Named search spaces.")


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="models:/NAME/VERSION, models:/NAME@ALIAS or models:/m-ID."
    ),
]
TrustedKey = Annotated[
    list[str] | None,
    typer.Option(
        help="Only what this key has signed: ed25519:... or a file of public keys; repeatable."
    ),
]
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


def list_(storage: Storage = "raydp_runs", json: Json = False) -> None:
    """The sweeps under a storage folder: their runs, the selected configuration, when they
    changed."""
    from raydp.io.output import print_json
    from raydp.sweep.listing import list_sweeps, show_sweeps

    sweeps = list_sweeps(storage)
    print_json([sweep.to_json() for sweep in sweeps]) if json else show_sweeps(storage, sweeps)


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
    from raydp.io.output import print_json, print_table, stderr
    from raydp.search_spaces.settings import Settings, settings_in_words

    conditions = {
        "max_epsilon": max_epsilon,
        "min_epsilon": min_epsilon,
        "max_delta": max_delta,
        "max_loss": max_loss,
        "max_score": max_score,
        "score": score,
        "batch_size": batch_size,
        "num_steps": num_steps,
        "learning_rate": learning_rate,
        "limit": limit,
        "registered_model": registered_model,
        "alias": alias,
        "where": where,
        "trusted_keys": trusted_key,
    }
    # Only what was given, so that `find_models` keeps its own defaults.
    given = {name: value for name, value in conditions.items() if value is not None}
    with stderr.status("opening the tracking store and searching its models"):
        from raydp.tracking import find_models

        models = find_models(uri, order_by=order_by, verify=verify, **given)
    # What is missing from the table is said on stderr: models without a reliable guarantee, and
    # values that could not be read.
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
    if json:
        print_json(models.to_dict("records"))
        return
    # The sweep's name is left out if no model has one. Further fields become one column of words.
    rows = models[
        [name for name in SHOWN if name != "sweep" or not models[name].isna().all()]
    ].to_dict("records")
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
    from raydp.io.output import print_document, print_json
    from raydp.tracking import show_model

    answer = show_model(model, tracking_uri=uri, trusted_keys=trusted_key, verify=verify)
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
    from raydp.io.output import print_json, stdout
    from raydp.tracking import promote_model

    made = promote_model(model, alias, reason, tracking_uri=uri, by=by, trusted_keys=trusted_key)
    answer = {
        "model": model,
        **{k: made[k] for k in ("alias", "reason", "by", "at", "previous_version")},
    }
    print_json(answer) if json else stdout.print(f"{model} is now {alias!r}", markup=False)


@spaces_app.command("list")
def spaces_list(json: Json = False) -> None:
    """The named search spaces."""
    from raydp.io.output import print_json, print_table
    from raydp.search_spaces import load_space, space_names

    spaces = [load_space(name) for name in space_names()]
    rows = [
        # Names and sizes; `spaces show` has the configurations.
        {"name": s.name, "points": len(s.configurations), "description": s.description}
        for s in spaces
    ]
    print_json(rows) if json else print_table("search spaces", rows, keep=("description",))


@spaces_app.command("show")
def spaces_show(name: str, json: Json = False) -> None:
    """The configurations of a named search space."""
    from raydp.io.output import print_json, print_table, stdout
    from raydp.search_spaces import load_space

    space = load_space(name)
    rows = [c.to_json() for c in space.configurations]
    if json:
        facts = {k: getattr(space, k) for k in ("name", "description", "source", "max_grad_norm")}
        print_json({**facts, "configurations": rows})
        return
    stdout.print(
        f"{space.description} Source: {space.source}. max_grad_norm {space.max_grad_norm:g}"
    )
    print_table(space.name, rows)

"""`raydp models export`, `keygen`, `seal` and `push`: signed models in folders or on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from raydp.cli.arguments import DEFAULT_URI, Json, Model, TrustedKey, Uri
from raydp.cli.registration import MODELS, ExtraCommand
from raydp.extensions.publishing.signing import new_key
from raydp.system.output import print_json, stderr, stdout

Merge = Annotated[
    bool, typer.Option("--merge", help="With the adapter merged into the base model.")
]
WithBase = Annotated[
    bool, typer.Option("--with-base", help="With the base model's files beside the adapter.")
]
Base = Annotated[str | None, typer.Option(help="Name or folder of the base model, if it moved.")]
Dtype = Annotated[str | None, typer.Option(help="float32 or bfloat16; as recorded by default.")]
MergedKey = Annotated[Path | None, typer.Option(help="Private key to sign the merged model with.")]
License = Annotated[
    str | None, typer.Option(help="The model's licence for README.md, such as apache-2.0.")
]
WithFigures = Annotated[
    bool,
    typer.Option(
        "--with-figures", help="Utility and scores in README.md too, which ε does not cover."
    ),
]
OpenSSFKey = Annotated[
    Path | None,
    typer.Option(
        "--openssf-key", help="EC private key: also sign as OpenSSF Model Signing does, model.sig."
    ),
]


def export(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="A new folder.")],
    merge: Merge = False,
    with_base: WithBase = False,
    base: Base = None,
    dtype: Dtype = None,
    signing_key: MergedKey = None,
    license: License = None,
    with_figures: WithFigures = False,
    openssf_key: OpenSSFKey = None,
    uri: Uri = DEFAULT_URI,
    trusted_key: TrustedKey = None,
    json: Json = False,
) -> None:
    """Write a model to a folder for transformers, peft, vLLM or `mlflow models serve`."""
    from raydp.extensions.publishing.export import export_model  # loads torch

    export_model(
        model,
        output,
        tracking_uri=uri,
        merge=merge,
        with_base=with_base,
        base=base,
        dtype=dtype,
        trusted_keys=trusted_key,
        signing_key=signing_key,
        license=license,
        with_figures=with_figures,
        openssf_key=openssf_key,
    )
    files = sorted(path.name for path in output.iterdir())
    answer = {"model": model, "folder": output, "merged": merge, "files": files}
    print_json(answer) if json else stdout.print(
        f"{model} is in {output}: {', '.join(files)}", markup=False
    )


def push(
    model: Model,
    to: Annotated[
        str,
        typer.Option(
            help="hub:OWNER/NAME of a repository on the Hugging Face hub, or a new folder."
        ),
    ],
    merge: Merge = False,
    with_base: WithBase = False,
    base: Base = None,
    dtype: Dtype = None,
    signing_key: MergedKey = None,
    license: License = None,
    with_figures: WithFigures = False,
    openssf_key: OpenSSFKey = None,
    public: Annotated[
        bool, typer.Option("--public", help="Make or take a repository that everybody can read.")
    ] = False,
    uncertified: Annotated[
        bool, typer.Option("--uncertified", help="Also a model whose guarantee is not certified.")
    ] = False,
    uri: Uri = DEFAULT_URI,
    trusted_key: TrustedKey = None,
    json: Json = False,
) -> None:
    """Send a model with its card and privacy record to the Hugging Face hub, or write it to a
    folder."""
    from raydp.extensions.publishing.export import export_model  # loads torch
    from raydp.extensions.publishing.hub import HUB, push_model

    options: dict[str, Any] = {
        "merge": merge, "with_base": with_base, "base": base, "dtype": dtype,
        "signing_key": signing_key, "license": license, "with_figures": with_figures,
        "openssf_key": openssf_key, "tracking_uri": uri, "trusted_keys": trusted_key,
    }  # fmt: skip
    if to.startswith(HUB):
        with stderr.status(f"checking {model} and sending it to {to}"):
            where = push_model(
                model, to.removeprefix(HUB), public=public, uncertified=uncertified, **options
            )
    else:
        where = str(export_model(model, Path(to), **options))
    answer = {"model": model, "to": to, "address": where}
    print_json(answer) if json else stdout.print(f"{model} is at {where}", markup=False)


def keygen(
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="File of the private key; FILE.pub is the public one."),
    ],
    json: Json = False,
) -> None:
    """Make a key to sign models with: tracking.signing_key names it, --trusted-key takes its public
    half."""
    public = new_key(output)
    answer = {"signing_key": output, "trusted_key": public}
    print_json(answer) if json else stdout.print(
        f"{output} (keep it secret), {output}.pub: {public}", markup=False
    )


def seal(
    model: Model,
    signing_key: Annotated[
        Path | None, typer.Option(help="Private key; without it the seal is not signed.")
    ] = None,
    unseen: Annotated[
        bool,
        typer.Option(
            "--unseen", help="Also where there is no seal, or one that the files do not fit."
        ),
    ] = False,
    uri: Uri = DEFAULT_URI,
    json: Json = False,
) -> None:
    """Sign a model after a review, or seal one that was registered without."""
    from raydp.extensions.publishing.resealing import seal_model  # loads MLflow

    made = seal_model(model, tracking_uri=uri, signing_key=signing_key, unseen=unseen)
    by = made["signed_by"] or "nobody: no --signing-key was given"
    print_json({"model": model, **made}) if json else stdout.print(
        f"{model} is sealed, signed by {by}", markup=False
    )


EXPORT = ExtraCommand(run=export, panel=MODELS, group="models")
KEYGEN = ExtraCommand(run=keygen, panel=MODELS, group="models", before="push")
PUSH = ExtraCommand(run=push, panel=MODELS, group="models")
SEAL = ExtraCommand(run=seal, panel=MODELS, group="models", before="push")

"""`raydp score`: measure leakage of trained models after training."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from raydp.cli.arguments import DEFAULT_URI, Json, Storage, Uri
from raydp.cli.registration import MODELS, ExtraCommand
from raydp.extensions.later_scores.requests import requests_from
from raydp.spec.reading import draft_spec
from raydp.system.interruption import or_partial
from raydp.system.output import print_json, stderr

Source = Annotated[
    str,
    typer.Argument(
        metavar="SWEEP|MODEL", help="A sweep, or its spec; or models:/..., a folder (--task)."
    ),
]
Names = Annotated[str | None, typer.Option("--score", help="Comma-separated, such as vmr,air.")]
Params = Annotated[list[str] | None, typer.Option("--param", help="key=value, or score.key=value.")]
File = Annotated[
    Path | None, typer.Option("--scores", help="FILE.yaml: a list of {name, label, ...}.")
]
Label = Annotated[str | None, typer.Option(help="Name of a second measurement of one score.")]
OfModel = Annotated[
    Path | None, typer.Option(help="For a MODEL: SPEC.yaml with its task and base model.")
]
Seed = Annotated[
    int | None, typer.Option(min=0, help="Seed of all draws; each run's own by default.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes side by side; as many as fit.")]


def score(
    source: Source,
    names: Names = None,
    params: Params = None,
    file: File = None,
    label: Label = None,
    task: OfModel = None,
    seed: Seed = None,
    workers: Workers = None,
    uri: Uri = DEFAULT_URI,
    storage: Storage = "raydp_runs",
    json: Json = False,
) -> None:
    """Measure the models of a sweep, or one model, with new or other scores."""
    if task is not None:
        draft_spec(task)  # mistakes are reported before heavy imports

    # The measurements that are asked for, by options or from a file.
    requests = requests_from(names, params or (), label=label, file=file)
    if task is not None or source.startswith("models:/"):
        from raydp.extensions.later_scores.one_model import score_model
        from raydp.extensions.later_scores.show import show_model_scores

        of_model = score_model(
            source, requests, task=task, tracking_uri=uri, seed=seed or 0, console=stderr
        )
        print_json(of_model) if json else show_model_scores(of_model)
        return
    # All models of a sweep, in worker processes.
    from raydp.extensions.later_scores.show import show_sweep_scores
    from raydp.extensions.later_scores.sweep import score_sweep
    from raydp.sweep.api import sweep_folder

    with redirect_stdout(sys.stderr):  # Ray prints its own messages to stdout
        answer = or_partial(
            lambda: score_sweep(
                sweep_folder(source, storage), requests, seed=seed, workers=workers, console=stderr
            )
        )
    print_json(answer) if json else show_sweep_scores(answer)
    # Partial results are printed, but a script must see that something is missing.
    if answer["interrupted"] or any(s.get("failed") for s in answer["scores"].values()):
        raise typer.Exit(1)


COMMAND = ExtraCommand(run=score, panel=MODELS, before="import")

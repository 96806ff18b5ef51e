"""`raydp score MODEL`: measure one trained model, from the registry or a folder, on a task."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from raydp.extensions.later_scores.requests import ScoreRequest
from raydp.extensions.later_scores.sets import TrainedModels
from raydp.models import base_models as models
from raydp.models.pretrained import PretrainedModel
from raydp.plugins.registries import resolve
from raydp.scores.score import Context, Measurement
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.spec.sections import ModelSpec
from raydp.spec.sections.privacy import IGNORED
from raydp.tasks.task import Task, task_of
from raydp.tasks.wrappers.twins import for_seed
from raydp.tracking import fetch_model, log_scores, show_model
from raydp.tracking.portable import ADAPTER_CONFIG


def score_model(
    source: str,
    requests: list[ScoreRequest],
    *,
    task: Path | None,
    tracking_uri: str | None,
    seed: int,
    console: Console,
) -> dict[str, Any]:
    """Measure one model.

    Args:
        source: models:/..., or a folder written by save_pretrained: an adapter, or a whole model.
        requests, console: the scores to measure; where the current status is shown.
        task, tracking_uri: a sweep's spec, for its task and base model; the store of models:/...
            addresses.
        seed: seed of the draws; also the seed of the run that trained a model in a folder, which
            decides the planted twins that it saw. A registered model's record has its
            own.

    A registered model gets the values as metrics only if it was trained on this task and does not
    have the metric yet. An existing value is never replaced: give --label to log a second one. For
    a model whose ε covers a choice among runs, no value is logged, because a score depends on the
    private secrets.

    Returns:
        The document of `raydp score MODEL --json`: {"model", "scores": {label: {"score", "value",
        "std_error", "num_samples", "per_secret", "per_control", "details", "cost", "seed"}},
        "logged": [labels], "note" (None, or why a value was not logged)}.

    Raises:
        ValueError: model, task or base cannot be loaded or do not fit, or a score does not fit the
            task.
    """
    spec = _spec(source, requests, task)
    registered = source.startswith("models:/")
    record = show_model(source, tracking_uri=tracking_uri) if registered else {}
    # Measure.
    measured: dict[str, Measurement] = {}
    with _folder_of(source, tracking_uri) as folder:
        with console.status("reading data and loading the model"):
            # The twins are those that the model's own run saw.
            built = for_seed(_task(spec, requests), record.get("seed", seed))
            one = TrainedModels(_base(spec, folder, record), {source: folder})
        for request in requests:
            with console.status(f"measuring {request.label}"):
                params, context = request.plugin.params, Context()
                of_models = params.measure_many(one, built, seed=seed, context=context)
                measured[request.label] = next(iter(of_models))[1]
    # Log the values of a registered model.
    logged, note = list[str](), None
    if registered:
        logged, note = _log(source, record, measured, built.facts().content_hash, tracking_uri)
    names = {request.label: request.plugin.name for request in requests}
    return {
        "model": source,
        "scores": {label: {"score": names[label], **m.document()} for label, m in measured.items()},
        "logged": logged,
        "note": note,
    }


def _spec(source: str, requests: list[ScoreRequest], task: Path | None) -> SweepSpec:
    """Read the spec, after checking that it is given and that the scores are of one model."""
    if task is None:
        raise ValueError(
            f"--task must be given with a model, got {source!r} without. Name the sweep's "
            "SPEC.yaml."
        )
    spec = load_spec(task)
    for request in requests:
        if request.plugin.params.of_a_set:
            raise ValueError(
                f"score must measure one model, got {request.plugin.name!r}. Use it on a sweep."
            )
    return spec


def _task(spec: SweepSpec, requests: list[ScoreRequest]) -> Task:
    """Build the task, after checking that the scores fit it."""
    built = task_of(spec, models.tokenizer_if_any(spec.model.name))
    for request in requests:
        request.plugin.params.check(built)
    return built


def _base(spec: SweepSpec, folder: Path, record: dict[str, Any]) -> PretrainedModel:
    """Load the spec's base model, which must be the base that a registered model was trained on."""
    full = not (folder / ADAPTER_CONFIG).is_file()
    bases = {(own.model.dtype, own.model.quantization) for own in spec.run_specs()}
    if not record and not full and len(bases) > 1:
        raise ValueError(
            "MODEL must be a registered one where model.dtype or model.quantization varies in the "
            f"space, got {str(folder)!r}, which does not say on which base it was trained. Name it "
            "by models:/NAME/VERSION."
        )
    # An adapter needs the precision of its base. A whole model is loaded as it is.
    recorded = record["base"].get("dtype") if record else None
    dtype = "float32" if full else recorded or spec.run_specs()[0].model.dtype
    quantization = (
        record["base"].get("quantization") if record else spec.run_specs()[0].model.quantization
    )
    base = models.load_base(
        ModelSpec.model_validate(
            {
                "name": spec.model.name,
                "dtype": dtype,
                "quantization": None if full else quantization,
            }
        )
    )
    # On another base, an adapter is another model.
    if record and base.weight_hash != record["base"]["weight_hash"]:
        raise ValueError(
            f"model.name must be the base that MODEL was trained on, {record['base']['name']!r} "
            f"with the SHA-256 {record['base']['weight_hash'][:12]}..., got {spec.model.name!r} "
            f"with {base.weight_hash[:12]}.... Correct the spec."
        )
    return base


@contextmanager
def _folder_of(source: str, tracking_uri: str | None) -> Iterator[Path]:
    """Provide the model's folder during the block."""
    if source.startswith("models:/"):
        with tempfile.TemporaryDirectory(prefix="raydp-") as scratch:
            yield fetch_model(source, Path(scratch) / "model", tracking_uri=tracking_uri)
        return
    folder = Path(source)
    if not folder.is_dir() or not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"MODEL must be models:/... or a folder with safetensors weights, got {source!r}. Save "
            "it with save_pretrained, or correct the path."
        )
    yield folder


def _log(
    source: str,
    record: dict[str, Any],
    measured: dict[str, Measurement],
    task_hash: str,
    tracking_uri: str | None,
) -> tuple[list[str], str | None]:
    """Log the new and comparable values. Return their labels, and why others were not logged."""
    # A score reads the private secrets, which the ε of the released model does not cover.
    tuning = record["privacy"].get("tuning", IGNORED)
    if tuning != IGNORED:
        return [], resolve("policies", tuning).disclosure(None).keeps_score
    if record.get("task_hash") != task_hash:
        return [], "not logged: the task is not the one that the model was trained on"
    # A logged value is never replaced, so that a record stays what others have read.
    new = [label for label in measured if f"score.{label}" not in record]
    values = {
        **{f"score.{label}": measured[label].value for label in new},
        **{f"score.{label}.std_error": measured[label].std_error for label in new},
    }
    if new:
        log_scores({source: values}, tracking_uri=tracking_uri)
    old = [label for label in measured if label not in new]
    if not old:
        return new, None
    return (
        new,
        f"The model already has a value of {', '.join(old)}, which is kept. Give --label to log "
        "another one.",
    )

"""Reads and checks the inputs of a sweep: the task with its data, the model and the scores."""

from __future__ import annotations

from dataclasses import dataclass, field

from raydp.models import base_models as models
from raydp.models.families import ModelFamily, family_of
from raydp.plugins.registries import resolve
from raydp.spec.document import SweepSpec
from raydp.tasks.task import Task, task_of
from raydp.training.architecture import check_architecture, check_rounding
from raydp.training.observers import ObservingTask

SIZES = {"adapter": {"r", "alpha", "lora_dropout", "num_virtual_tokens"}}
"""Fields of a model's section that change no layer's kind.

Models that differ in them alone are probed once.
"""


@dataclass
class KnownInputs:
    """What was read and checked for other sweeps.

    Attributes:
        tasks: section of the task, model and unit -> the task.
        checked: sections of models that were checked.
        probed: what `check_architecture` has probed.
    """

    tasks: dict[str, Task] = field(default_factory=dict)
    checked: set[str] = field(default_factory=set)
    probed: set[str] = field(default_factory=set)


def build_task(
    spec: SweepSpec, known: KnownInputs | None = None, *, threads: int | None = None
) -> tuple[Task, str]:
    """Read and tokenise the task's data, after a check that the model and its adapter fit.

    A few examples show that the examples of model and task do not depend on each other
    (`raydp.training.probe`).

    Args:
        known: what other sweeps share with this one. New inputs are added.
        threads: threads of a worker on this processor; None leaves the rounding of models in 16
            bits to the workers' own check.

    Returns:
        The task, and the hash of the base weights.

    Raises:
        ValueError: the model, the data or the secrets are not usable, or a score has nothing to
            measure.
    """
    for score in spec.scores:
        # The value of one model depends on models that are not trained yet.
        if score.params.of_a_set:
            raise ValueError(
                f"scores must measure one model, got {score.name!r}, which compares the models of "
                f"a whole sweep. Leave it out, and run `raydp score {spec.name} --score "
                f"{score.name}` after the sweep."
            )
    known = KnownInputs() if known is None else known
    sharded = spec.cluster.sharding == "full"
    # The name of a family's model states the shape of the data, so the data come first. Texts need
    # the tokenizer of the model, so the model comes first.
    model = spec.model.model_dump_json(exclude={"adapter"})
    same = f"{spec.model_dump_json(include={'task'})} {model} {spec.privacy.unit}"
    of_family = spec.task.params.model_family is not None or family_of(spec.model.name) is not None
    if of_family and same not in known.tasks:
        known.tasks[same] = _task_of_family(spec)
    tokenizer, weight_hash = models.check(spec.model, sharded=sharded)
    if same not in known.tasks:
        known.tasks[same] = task_of(spec, tokenizer)
    task = known.tasks[same]
    # Check every model and method of the space, but each kind once: a check may take seconds.
    for own in [spec, *spec.run_specs()]:
        _check_model(own, task, known, threads)
        if isinstance(task, ObservingTask):
            task.check_run(own)
        _check_dropout(own)
        _check_between_steps(own)
        own.method.params.check(own, task)
    # A score needs something to measure in the data, such as secrets.
    for score in spec.scores:
        score.params.check(task)
    return task, weight_hash


def _check_model(spec: SweepSpec, task: Task, known: KnownInputs, threads: int | None) -> None:
    """Check the adapter, the longest example and the independence of examples of one model."""
    section = f"{id(task)} {spec.model.model_dump_json()}"
    if section not in known.checked:
        models.check(spec.model, sharded=spec.cluster.sharding == "full")
        if family_of(spec.model.name) is None:
            longest = int(max(task.lengths().max(), task.heldout_lengths().max()))
            models.check_length(spec.model, longest)
        known.checked.add(section)
    clipped = spec.method.params.max_grad_norm is not None
    kind = f"{id(task)} {clipped} {spec.model.model_dump_json(exclude=SIZES)}"
    if kind not in known.probed:
        check_architecture(spec.model, task, clipped=clipped)
        if threads is not None and spec.model.dtype != "float32":
            check_rounding(spec.model, task, clipped=clipped, threads=threads)
        known.probed.add(kind)


def _check_between_steps(spec: SweepSpec) -> None:
    """Refuse a look at weights between steps if the method has none there, or none with noise."""
    for section in ("stopping", "evaluate_every"):
        if getattr(spec, section) is not None and not spec.method.params.covers_each_step:
            raise ValueError(
                f"{section} must be left out with method {spec.method.name}: it would look at "
                "weights between two steps, which the method does not release. Remove it."
            )


def _task_of_family(spec: SweepSpec) -> Task:
    """Build a task for a model of a family, after a check that the model takes its inputs."""
    wanted, given = spec.task.params.model_family, family_of(spec.model.name)
    if wanted is None:
        assert given is not None, "the task or the model is of a family"
        raise ValueError(
            f"model.name must be a language model for the task {spec.task.name!r}, got "
            f"{spec.model.name!r}. Name one, such as tiny, or {given.for_tasks}."
        )
    task: Task = task_of(spec, None)
    family: ModelFamily = resolve("models", wanted)
    family.check_task(spec.model.name, task)
    return task


def _check_dropout(spec: SweepSpec) -> None:
    """Refuse dropout with a method that trains without the masks."""
    share = spec.model.adapter.lora_dropout
    if share and not spec.method.params.traits.drops_inputs:
        raise ValueError(
            f"model.adapter.lora_dropout must be 0 with the method {spec.method.name!r}, got "
            f"{share:g}: the method does not draw the masks. Leave it out."
        )

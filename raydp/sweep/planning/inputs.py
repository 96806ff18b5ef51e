"""Reads and checks the inputs of a sweep: the task with its data, the model and the scores."""

from __future__ import annotations

from raydp.models import base_models as models
from raydp.models.networks import ARCHITECTURES, NetworkName
from raydp.spec.document import SweepSpec
from raydp.tasks.base import Task, TaskFacts, task_of
from raydp.tasks.classification.labelled import ClassificationTask
from raydp.tasks.wrappers.canaries import with_gradient_canaries
from raydp.training.architecture import check_architecture
from raydp.training.gradients.canaries import check_room

SIZES = {"adapter": {"r", "alpha", "lora_dropout", "num_virtual_tokens"}}
"""Fields of a model's section that change no layer's kind. Models that differ in them alone are probed once."""


def build_task(spec: SweepSpec) -> tuple[Task, str]:
    """Read and tokenise the task's data, after a check that the model exists and the adapter fits the model.

    A few examples show that the examples of model and task do not depend on each other (`raydp.training.probe`).

    Returns:
        The task, and the hash of the base weights.

    Raises:
        ValueError: the model, the data or the secrets are not usable, or a score has nothing to measure.
    """
    for score in spec.scores:
        if score.params.of_a_set:  # the value of one model depends on models that are not trained yet
            raise ValueError(
                f"scores must measure one model, got {score.name!r}, which compares the models of a whole sweep. Leave "
                f"it out, and run `raydp score {spec.name} --score {score.name}` after the sweep."
            )
    sharded = spec.cluster.sharding == "full"
    if _takes_a_network(spec) or NetworkName.parse(spec.model.name) is not None:
        task = _classification(spec)
        _, weight_hash = models.check(spec.model, sharded=sharded)
    else:
        tokenizer, weight_hash = models.check(spec.model, sharded=sharded)
        task = task_of(spec, tokenizer)
    checked, probed = set[str](), set[str]()
    for own in [spec, *spec.run_specs()]:
        section = own.model.model_dump_json()
        if section not in checked:
            _check_model(own, task, sharded=sharded)
            checked.add(section)
        clipped = own.method.params.max_grad_norm is not None
        kind = f"{clipped} {own.model.model_dump_json(exclude=SIZES)}"
        if kind not in probed:
            check_architecture(own.model, task, clipped=clipped)
            probed.add(kind)
        _check_canaries(own, task)
        _check_dropout(own)
        _check_between_steps(own)
        own.method.params.check(own, task)
    for score in spec.scores:
        score.params.check(task)
    return task, weight_hash


def _check_model(spec: SweepSpec, task: Task, *, sharded: bool) -> None:
    """Check that a model's adapter fits it, and that a language model can read the task's longest example."""
    models.check(spec.model, sharded=sharded)
    if NetworkName.parse(spec.model.name) is None:
        models.check_length(spec.model, int(max(task.lengths().max(), task.heldout_lengths().max())))


def _check_between_steps(spec: SweepSpec) -> None:
    """Refuse to look at weights between the steps of a method that has no such weights, or none with noise."""
    for section in ("stopping", "evaluate_every"):
        if getattr(spec, section) is not None and not spec.method.params.covers_each_step:
            raise ValueError(
                f"{section} must be left out with method {spec.method.name}: it would look at weights between two "
                "steps, which the method does not release. Remove it."
            )


def _takes_a_network(spec: SweepSpec) -> bool:
    """Return whether the task needs a classification network. A language model classifies texts."""
    task = spec.task.params
    return bool(task.classifies and not task.of_texts)


def _classification(spec: SweepSpec) -> Task:
    """Build a classification task, after a check that the network takes its inputs."""
    given = NetworkName.parse(spec.model.name)
    if not _takes_a_network(spec):
        raise ValueError(
            f"model.name must be a language model for the task {spec.task.name!r}, got {spec.model.name!r}. Name one, "
            "such as tiny, or a classification task, such as digits."
        )
    task: Task = task_of(spec, None)
    assert isinstance(task, ClassificationTask), "a task section that classifies builds a classification task"
    architecture = spec.model.name.partition(":")[0]
    fitting = NetworkName(
        architecture=architecture if architecture in ARCHITECTURES else "mlp",
        input_shape=task.input_shape,
        num_classes=task.num_classes,
    )
    if given != fitting:
        raise ValueError(
            f"model.name must be a network for inputs of {'x'.join(map(str, task.input_shape))} and "
            f"{task.num_classes} classes, got {spec.model.name!r}. Write {str(fitting)!r}; there are "
            f"{', '.join(ARCHITECTURES)}."
        )
    return task


def _check_dropout(spec: SweepSpec) -> None:
    """Refuse dropout with a method that trains without the masks."""
    share = spec.model.adapter.lora_dropout
    if share and not spec.method.params.traits.drops_inputs:
        raise ValueError(
            f"model.adapter.lora_dropout must be 0 with the method {spec.method.name!r}, got {share:g}: the method "
            "does not draw the masks. Leave it out."
        )


def _check_canaries(spec: SweepSpec, task: Task) -> None:
    """Refuse canaries with a private selection, and canaries that the model or the method cannot have.

    The embeddings learn new tokens. Gradient canaries are clipped by the method and seen in the whole noisy sum. A
    model of canaries is never released.
    """
    facts = task.facts()
    if not facts.num_canaries:
        return
    if with_gradient_canaries(task) is not None:
        _check_gradient_canaries(spec, facts)
    if facts.num_new_tokens and spec.model.adapter.type != "none":
        raise ValueError(
            f"model.adapter.type must be none with the task {spec.task.name!r}, got {spec.model.adapter.type!r}: new "
            "tokens are learnt in the embeddings. Write `adapter: {type: none}`."
        )
    spec.privacy.require_ignored_tuning(
        f"with the task {spec.task.name!r}", "Audit one run at its own ε (single_run_epsilon of `raydp plan`)."
    )


def _check_gradient_canaries(spec: SweepSpec, facts: TaskFacts) -> None:
    """Refuse gradient canaries if a step does not add noise to a whole sum of clipped gradients, or has no room."""
    traits = spec.method.params.traits
    if not spec.method.params.private or traits.clipping not in ("flat", "automatic"):
        raise ValueError(
            f"method.name must be dp_sgd, dp_adam or dp_mf without adaptive clipping for gradient canaries, got "
            f"{spec.method.name!r}. Audit it with access to losses: --canary new_token."
        )
    if traits.reference_weight is not None:
        raise ValueError(
            f"method.reference_weight must be left out for gradient canaries, got {traits.reference_weight:g}. "
            "Leave it out."
        )
    if spec.cluster.sharding != "none":
        raise ValueError(
            f"cluster.sharding must be none for gradient canaries, got {spec.cluster.sharding}. Leave it out."
        )
    check_room(facts.num_canaries, models.num_trained(spec.model))

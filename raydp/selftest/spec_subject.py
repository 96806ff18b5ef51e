"""A spec's own task, model, adapter and method, to run the sensitivity checks on."""

from __future__ import annotations

import tempfile
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.analysis.tables.coordinates import is_numeric
from raydp.models import base_models as models
from raydp.models.pretrained import PretrainedModel
from raydp.models.quantization import quantise
from raydp.models.reduced import renamed, with_few_layers, with_few_tokens
from raydp.plugins.registries import service
from raydp.search_spaces.settings import settings_in_words
from raydp.selftest.subjects import NUM_EXAMPLES, ROUNDING, Subject, typed_training_context
from raydp.spec.document import SweepSpec
from raydp.tasks.task import Task, task_of
from raydp.tasks.text.language import LanguageModelingTask
from raydp.tasks.wrappers.twins import with_fixed_twins
from raydp.training.comm import LocalComm
from raydp.training.gradients.microbatches import Units
from raydp.training.trial import TrainingContext

SINGLE = 10 * ROUNDING[torch.float32]
"""Relative error of a trained model's gradient that rounding explains in single precision.

It was 8.5e-6 for three tokens of SmolLM2, whose weights differ more in size than the toys' weights.
"""


def kinds_of_runs(spec: SweepSpec) -> list[SweepSpec]:
    """Return the spec of the first run of each kind, under a name that says what it sets.

    Runs that differ in numbers alone, such as the clipping norm or the rank, go through the same
    code and are of one kind.
    """
    first: dict[str, SweepSpec] = {}
    for fields in spec.field_combinations() or [{}]:
        others = {path: value for path, value in fields.items() if not is_numeric([value])}
        named = f"{spec.name}{', ' if others else ''}{settings_in_words(others)}"
        first.setdefault(named, spec.of_run(fields).model_copy(update={"name": named}))
    return list(first.values())


def spec_subjects(spec: SweepSpec) -> list[Subject]:
    """Return the subjects of a spec: units of all lengths, of its own task and kinds of layers.

    The model has its weights, type and adapter, and of each kind of layer two (see
    `raydp.models.reduced`). The tokens that do not occur in the chosen units are left out. If the
    spec's sweep uses a frozen prefix, so does the first subject. The second one computes every
    layer, in float32, because the layers of the prefix must not mix examples either. It is left out
    for a quantised model.

    Raises:
        ValueError: the model or the data is not usable, or the method has no guarantee to check.
    """
    if not spec.method.params.private:
        raise ValueError(
            f"method.name must be a private method, got {spec.method.name!r}. Without a guarantee "
            "there is nothing to check; run `raydp selftest` without SPEC."
        )
    # Load the task, and choose units of evenly spread lengths.
    task: Task = with_fixed_twins(task_of(spec, models.tokenizer_if_any(spec.model.name)))
    pretrained = models.load_base(spec.model, new_tokens=task.facts().num_new_tokens)
    units = Units.of(task)
    by_length = units.share(np.arange(len(units)), LocalComm())
    indices = by_length[
        np.unique(np.linspace(0, len(by_length) - 1, NUM_EXAMPLES).round().astype(np.int64))
    ]
    if task.facts().num_reference:
        # One unit of each set: the second set comes last.
        indices = np.union1d(indices, [0, len(units) - 1])
    # Leave out layers and tokens.
    if isinstance(task, LanguageModelingTask):
        task, indices = _of_few(task, indices), np.arange(len(indices))
        task = _with_few_tokens(task, pretrained)
    # A check compares the clipped sum with autograd's, which has no dropout masks.
    adapter = spec.model.adapter.model_copy(update={"lora_dropout": 0.0})
    adapter = with_few_layers(pretrained.model, adapter)
    quantise(pretrained)
    model = spec.model.model_copy(update={"adapter": adapter})
    subject = Subject(
        name=f"{spec.name}: {spec.model.name}",
        context=typed_training_context(pretrained, model, spec.cluster.microbatch_size),
        task=task,
        method=spec.method.params,
        indices=indices,
        tolerance=ROUNDING[getattr(torch, spec.model.dtype)],
    )
    # A sweep with a frozen prefix trains from cached states, so this is checked too.
    if not isinstance(task, LanguageModelingTask) or not spec.cluster.prefix_cache_gib:
        return [subject]
    prefixed = _prefixed(task, subject.context)
    if prefixed.train_hidden is None:
        return [subject]
    below = [] if spec.model.quantization else [_in_single_precision(subject)]
    return [replace(subject, task=prefixed), *below]


def _in_single_precision(subject: Subject) -> Subject:
    """Return a copy of the subject with all weights in float32, which computes every layer.

    In single precision rounding explains much less of the difference between an example alone and
    in company.
    """
    # A copy, because the other subject keeps the spec's type.
    model = deepcopy(subject.context.model).float()
    parameters = {name: model.get_parameter(name) for name in subject.context.parameters}
    context = replace(subject.context, model=model, parameters=parameters, autocast=None)
    name = f"{subject.name}, every layer"
    return replace(subject, name=name, context=context, tolerance=SINGLE)


def _of_few(task: LanguageModelingTask, indices: NDArray[np.int64]) -> LanguageModelingTask:
    """Return the chosen units as a task of their own."""
    few = task.train.select(Units.of(task).examples(indices))
    sizes = task.unit_sizes()
    referenced = int((indices >= task.task_facts.num_training).sum())
    facts = replace(
        task.task_facts, num_examples=len(few), num_units=len(indices), num_reference=referenced
    )
    return replace(
        task,
        train=few,
        heldout=few,
        sizes=None if sizes is None else sizes[indices],
        task_facts=facts,
    )


def _with_few_tokens(
    task: LanguageModelingTask, pretrained: PretrainedModel
) -> LanguageModelingTask:
    """Leave out the model's tokens that the task lacks, and return the task with the new ids."""
    ids = with_few_tokens(pretrained.model, task.train.token_ids, int(task.lengths().max()))
    if ids is None:
        return task
    train = replace(task.train, token_ids=renamed(task.train.token_ids, ids))
    return replace(task, train=train, heldout=train)


def _prefixed(task: LanguageModelingTask, context: TrainingContext) -> LanguageModelingTask:
    """Return the task with the hidden states of its frozen prefix, if there is one."""
    if (keep_states := service("keep_states", needed_by=None)) is None:
        return task
    # The mapped files stay readable after their deletion.
    with tempfile.TemporaryDirectory() as folder:
        kept: LanguageModelingTask = keep_states(
            task,
            context.model,
            context.parameters,
            weight_hash="",
            folder=Path(folder),
            max_bytes=float("inf"),
            say=lambda sentence: None,
        )
        return kept

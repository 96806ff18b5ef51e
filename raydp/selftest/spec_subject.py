"""A spec's own task, model, adapter and method, to run the sensitivity checks on."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.models import base_models as models
from raydp.models.quantization import quantise
from raydp.selftest.subjects import NUM_EXAMPLES, ROUNDING, Subject, typed_trainee
from raydp.spec.document import SweepSpec
from raydp.tasks.base import Task, task_of
from raydp.tasks.text.language import LanguageModelingTask
from raydp.tasks.wrappers.twins import with_fixed_twins
from raydp.training.comm import LocalComm
from raydp.training.gradients.microbatches import Units
from raydp.training.gradients.prefix import with_frozen_prefix
from raydp.training.trial import TrainingContext


def spec_subject(spec: SweepSpec) -> Subject:
    """Return the subject of a spec: units from the longest to the shortest, with the frozen prefix of its sweep.

    Raises:
        ValueError: the model or the data is not usable, or the method has no guarantee to check.
    """
    if not spec.method.params.private:
        raise ValueError(
            f"method.name must be a private method, got {spec.method.name!r}. Without a guarantee there is "
            "nothing to check; run `raydp selftest` without SPEC."
        )
    # Load the task and the model with its adapter.
    task: Task = with_fixed_twins(task_of(spec, models.tokenizer_if_any(spec.model.name)))
    pretrained = models.load_base(spec.model, new_tokens=task.facts().num_new_tokens)
    quantise(pretrained)
    # A check compares the clipped sum with autograd's, which has no dropout masks.
    adapter = spec.model.adapter.model_copy(update={"lora_dropout": 0.0})
    model = spec.model.model_copy(update={"adapter": adapter})
    context = typed_trainee(pretrained, model, spec.cluster.microbatch_size)
    # Choose units of evenly spread lengths.
    units = Units.of(task)
    by_length = units.share(np.arange(len(units)), LocalComm())
    indices = by_length[np.unique(np.linspace(0, len(by_length) - 1, NUM_EXAMPLES).round().astype(np.int64))]
    if task.facts().num_reference:
        indices = np.union1d(indices, [0, len(units) - 1])  # one unit of each set; reference data come last
    if isinstance(task, LanguageModelingTask) and spec.cluster.prefix_cache_gib:
        task, indices = _prefixed(task, indices, context), np.arange(len(indices))
    return Subject(
        name=f"{spec.name}: {spec.model.name}",
        context=context,
        task=task,
        method=spec.method.params,
        indices=indices,
        tolerance=ROUNDING[getattr(torch, spec.model.dtype)],
    )


def _prefixed(task: LanguageModelingTask, indices: NDArray[np.int64], context: TrainingContext) -> LanguageModelingTask:
    """Return the chosen units as a task of their own, because the prefix of all units would take minutes."""
    few = task.train.select(Units.of(task).examples(indices))
    sizes = task.unit_sizes()
    referenced = int((indices >= task.task_facts.num_training).sum())
    facts = replace(task.task_facts, num_examples=len(few), num_units=len(indices), num_reference=referenced)
    few_task = replace(task, train=few, heldout=few, sizes=None if sizes is None else sizes[indices], task_facts=facts)
    with tempfile.TemporaryDirectory() as folder:  # the mapped files stay readable after their deletion
        return with_frozen_prefix(
            few_task, context.model, context.parameters, weight_hash="", folder=Path(folder),
            max_bytes=float("inf"), say=lambda sentence: None,
        )  # fmt: skip

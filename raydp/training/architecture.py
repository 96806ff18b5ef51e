"""Checks a model before a sweep starts: few layers with random weights, and its rounding.

It runs `raydp.training.probe` on both.
"""

from __future__ import annotations

import logging
import re
import traceback

import torch
from torch import nn

from raydp.models.adapters import attach_adapter, trainable_parameters
from raydp.models.base_models import config_of, load_base, trained_form
from raydp.models.families import family_of
from raydp.models.pretrained import PretrainedModel
from raydp.models.quantization import quantise
from raydp.models.reduced import random_form
from raydp.spec.sections.model import ALL_LINEAR, AdapterSpec, ModelSpec
from raydp.tasks.task import Task
from raydp.tasks.text.language import LanguageModelingTask
from raydp.training.gradients.memory import is_out_of_memory
from raydp.training.probe import LONG_TOKENS, check, losses_of_a_few, start_training_context
from raydp.training.trial import TrainingContext

VOCABULARY = 256
"""Number of tokens of an architecture that is tried on a language modelling task."""
MOST_WEIGHTS = 1 << 30
"""Largest number of weights that are made up to try an architecture."""
MOST_LONG_TOKENS = 2048
"""Largest width of the long rows. Their attention then takes some 100 MB."""
MOST_PRODUCTS = 1 << 37
"""Largest number of weights times tokens of a long row: some seconds of two cores."""
BROKEN = (RuntimeError, TypeError, AttributeError, LookupError)
"""Errors of a model that cannot be built with few layers, or be called as it is trained."""
_ADAPTER_FAILS = (
    "model.adapter must let {model!r} train, got {adapter!r}: {layer} fails on a few examples "
    "({kind}), and the model without the adapter does not. {remedy}"
)


def check_architecture(spec: ModelSpec, task: Task, *, clipped: bool) -> None:
    """Check a model with few layers and random weights, on a few examples of its task.

    The weights of a language model are not read. A model of a family is checked as it is.
    Three models are not checked here, but by the worker: one that cannot be built with few layers,
    one that fails without its adapter, and one whose few layers have more than `MOST_WEIGHTS`
    weights.

    Args:
        clipped: whether the gradient of each example is clipped.

    Raises:
        DependentExamples: the examples depend on each other, or the loss is not the model's own.
        ValueError: a trained layer has no per-example gradients, or fails with its adapter.
    """
    # Kept outside the try, so that a failure can be traced to a layer of the model.
    context = None
    try:
        made = few_layers(spec, task)
        if made is None:
            return
        base, adapter = made
        _name_frozen_experts(base, adapter)
        context = start_training_context(base, adapter)
        weights = sum(parameter.numel() for parameter in context.model.parameters())
        most_tokens = min(MOST_LONG_TOKENS, MOST_PRODUCTS // weights)
        check(context, task, model=spec.name, clipped=clipped, most_tokens=most_tokens)
    except BROKEN as error:
        logging.getLogger(__name__).debug("%s: %s", spec.name, error)
        # Only the adapter may be blamed here: a model that fails without it too is left to the
        # worker.
        if is_out_of_memory(error) or not _runs_without_adapter(spec, task):
            return
        values = {"kind": type(error).__name__, "layer": _failed_layer(error, context)}
        values |= {"adapter": spec.adapter.type, "remedy": "Use type 'lora'."}
        if spec.adapter.type in ("lora", "ia3"):
            values["remedy"] = "Leave that layer out of target_modules."
        raise ValueError(_ADAPTER_FAILS.format(model=spec.name, **values)) from error


def check_rounding(spec: ModelSpec, task: Task, *, clipped: bool, threads: int) -> None:
    """Check a model in 16 bits with its weights, as a worker on this processor does.

    A model that takes more than some seconds, or that fails, is left to the worker.

    Args:
        threads: number of a worker's threads. Rounding depends on it.

    Raises:
        DependentExamples: products in 16 bits round too far.
    """
    weights = sum(parameter.numel() for parameter in trained_form(spec).parameters())
    # The rows are not cut: the worker's tokens differ from those of a narrower batch.
    if weights * max(LONG_TOKENS, int(task.lengths().max())) > MOST_PRODUCTS:
        return
    own_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        base = load_base(spec, new_tokens=task.facts().num_new_tokens)
        quantise(base)
        model = attach_adapter(base, spec.adapter)
        trained = trainable_parameters(model, spec.adapter)
        autocast = torch.bfloat16 if spec.autocasts_on("cpu") else None
        context = TrainingContext(model=model, parameters=trained, autocast=autocast)
        check(context, task, model=spec.name, clipped=clipped)
    except BROKEN as error:
        logging.getLogger(__name__).debug("%s: %s", spec.name, error)
    finally:
        torch.set_num_threads(own_threads)


def few_layers(spec: ModelSpec, task: Task) -> tuple[PretrainedModel, AdapterSpec] | None:
    """Return a model with few layers and its adapter; None if these have too many weights."""
    if family_of(spec.name) is not None:
        return load_base(spec, new_tokens=task.facts().num_new_tokens), spec.adapter
    config = config_of(spec.name)
    if isinstance(task, LanguageModelingTask):  # its losses read no token by its id
        text = config.get_text_config()
        # A full vocabulary would be most of the weights that are made up.
        text.vocab_size = min(text.vocab_size, VOCABULARY)
        if (getattr(text, "pad_token_id", None) or 0) >= text.vocab_size:
            text.pad_token_id = 0
    made = random_form(config, spec.adapter, MOST_WEIGHTS)
    if made is None:
        return None
    return PretrainedModel(name=spec.name, model=made[0], tokenizer=None, weight_hash=""), made[1]


def _name_frozen_experts(base: PretrainedModel, adapter: AdapterSpec) -> None:
    """Warn of fused experts, which `all-linear` leaves out."""
    modules = (m for m in base.model.modules() if not isinstance(m, nn.Conv1d))
    experts = [m for m in modules if any(p.dim() == 3 for p in m.parameters(recurse=False))]
    if experts and adapter.target_modules == ALL_LINEAR and adapter.type in ("lora", "ia3"):
        logging.getLogger(__name__).warning(
            "model.adapter.target_modules all-linear leaves out the experts of %s (%s): their "
            "weights are fused in one tensor, which is no linear layer, and stay frozen.",
            base.name,
            type(experts[0]).__name__,
        )


def _runs_without_adapter(spec: ModelSpec, task: Task) -> bool:
    """Return whether a model with few layers has losses on a few examples without its adapter."""
    try:
        made = few_layers(spec, task)
        assert made is not None
        model = made[0].model
        # The weights' values do not matter, only whether a pass runs.
        context = TrainingContext(model=model, parameters=dict(model.named_parameters()))
        losses_of_a_few(context, task)
    except BROKEN:
        return False
    return True


def _failed_layer(error: Exception, context: TrainingContext | None) -> str:
    """Return the name of the innermost layer of the base model in which an error was raised."""
    modules = () if context is None else context.model.named_modules()
    names = {id(module): name for name, module in modules}
    # The layer whose `forward` is innermost on the traceback is the one that failed.
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    failed = [names.get(id(frame.f_locals.get("self")), "") for frame in frames]
    name = next((name for name in reversed(failed) if name), "the model")
    return re.split(r"\.(?:lora|ia3)_", name.removeprefix("base_model.model."))[0]

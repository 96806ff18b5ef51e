"""The frozen prefix: with adapters on the last layers only, the hidden states below these layers never change.

They are computed once per data set, model and layer, and kept on disk under a name that is made from their content.
Every trial of every sweep maps them into memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import nn

from raydp.io.cache import stored_once
from raydp.models.adapters import causal_model, decoder_layers
from raydp.tasks.text.examples import HiddenStates, TokenizedExamples, batches_by_length
from raydp.tasks.text.language import LanguageModelingTask

BUILD_TOKENS = 2048
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Largest difference of a per-example loss (nats) that rounding order explains, by dtype of the base weights."""


def first_trained_layer(model: nn.Module, parameters: dict[str, nn.Parameter]) -> int:
    """Return the position of the first decoder layer with a trained weight.

    It is 0 if something before the layers is trained, or if the layers are not known.
    """
    backbone_and_layers = decoder_layers(model)
    if backbone_and_layers is None:
        return 0
    _, layers = backbone_and_layers
    trained = {id(p) for p in parameters.values()}
    inside = [i for i, layer in enumerate(layers) if any(id(p) in trained for p in layer.parameters())]
    in_layers = {id(p) for layer in layers for p in layer.parameters()}
    return min(inside) if inside and trained <= in_layers else 0


def with_frozen_prefix(
    task: LanguageModelingTask,
    model: nn.Module,
    parameters: dict[str, nn.Parameter],
    *,
    weight_hash: str,
    folder: Path,
    max_bytes: float,
    say: Callable[[str], None],
    progress: Callable[[float], object] = lambda share: None,
) -> LanguageModelingTask:
    """Return the task with batches that carry the hidden states that enter the first trained layer.

    Args:
        model: the model with its adapter; the adapter's weights do not matter here.
        folder: where the hidden states are kept.
        max_bytes: largest size of the hidden states; above it the task is returned unchanged.
        say: called with a sentence if the prefix is not used although it could save time.
        progress: called with the share of the tokens whose hidden states are computed, if this process computes them.
    """
    # Nothing to cache, or too much of it.
    layer = first_trained_layer(model, parameters)
    if layer == 0:
        return task
    width = causal_model(model).config.hidden_size
    dtype = next(causal_model(model).parameters()).dtype
    size = (len(task.all_examples().token_ids) + len(task.heldout.token_ids)) * width * dtype.itemsize
    if size > max_bytes:
        say(f"the frozen prefix is not cached: {size / 2**30:.1f} GiB exceed cluster.prefix_cache_gib")
        return task
    # Build the cache once, under a hash of what defines it.
    content = [task.facts().content_hash, weight_hash, layer, str(dtype), transformers.__version__, 1]
    path = folder / hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]
    stored_once(path, lambda part: _build(task, model, layer, dtype, part, progress))
    parts = (("train.bin", task.all_examples()), ("heldout.bin", task.heldout))
    cached = task.with_hidden(*(_mapped(path / name, examples, width, dtype, layer) for name, examples in parts))
    # Use it only if the losses agree.
    difference = _largest_difference(task, cached, model)
    if not difference <= TOLERANCE[dtype]:
        say(f"the frozen prefix is not used: losses from it differ by {difference:.2g} nats for this architecture")
        return task
    return cached


class _Reached(Exception):  # noqa: N818 - a way out of the forward pass, not an error
    """Carries the hidden states that enter the layer out of the forward pass."""


def _build(
    task: LanguageModelingTask,
    model: nn.Module,
    layer: int,
    dtype: torch.dtype,
    path: Path,
    progress: Callable[[float], object],
) -> None:
    """Compute and write both splits, on all cores, because all other processes wait for them."""
    total = len(task.all_examples().token_ids) + len(task.heldout.token_ids)
    done = 0

    def count(tokens: int) -> None:
        nonlocal done
        done += tokens
        progress(done / total)

    threads = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    path.mkdir()
    try:
        for name, examples in (("train.bin", task.all_examples()), ("heldout.bin", task.heldout)):
            with (path / name).open("wb") as stream:
                stream.truncate(len(examples.token_ids) * causal_model(model).config.hidden_size * dtype.itemsize)
            out = _array(path / name, causal_model(model).config.hidden_size, dtype, "r+")
            _fill(examples, model, layer, out, count)
    finally:
        torch.set_num_threads(threads)


def _fill(
    examples: TokenizedExamples,
    model: nn.Module,
    layer: int,
    out: NDArray[np.generic],
    count: Callable[[int], None],
) -> None:
    """Compute the hidden states that enter a layer, for all examples, and write them into `out`.

    Args:
        count: called with the number of tokens after each micro-batch.
    """
    causal = causal_model(model)
    device = next(causal.parameters()).device
    backbone_and_layers = decoder_layers(model)
    assert backbone_and_layers is not None

    def stop(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        raise _Reached(args[0])

    handle = backbone_and_layers[1][layer].register_forward_pre_hook(stop)
    try:
        for indices in batches_by_length(examples.lengths(), BUILD_TOKENS):
            ids = examples.batch(indices).input_ids.to(device)
            positions = torch.arange(ids.shape[1], device=device).expand(ids.shape)
            try:
                with torch.inference_mode():
                    causal(input_ids=ids, position_ids=positions, use_cache=False)
            except _Reached as reached:
                hidden = reached.args[0].cpu()
            raw = (hidden.view(torch.int16) if hidden.dtype == torch.bfloat16 else hidden).numpy()
            for row, i in enumerate(indices):
                start, end = examples.offsets[i], examples.offsets[i + 1]
                out[start:end] = raw[row, : end - start]
            count(int(examples.lengths()[indices].sum()))
    finally:
        handle.remove()


def _array(path: Path, width: int, dtype: torch.dtype, mode: str) -> NDArray[np.generic]:
    plain = np.int16 if dtype == torch.bfloat16 else re.sub(r"torch\.", "", str(dtype))
    flat: NDArray[np.generic] = np.memmap(path, dtype=plain, mode=mode)  # type: ignore[call-overload]
    return flat.reshape(-1, width)


def _mapped(path: Path, examples: TokenizedExamples, width: int, dtype: torch.dtype, layer: int) -> HiddenStates:
    values = _array(path, width, dtype, "r")
    return HiddenStates(values=values, starts=examples.offsets[:-1], dtype=dtype, first_layer=layer)


def _largest_difference(plain: LanguageModelingTask, cached: LanguageModelingTask, model: nn.Module) -> float:
    """Return the largest difference (nats) between the losses of a few examples with and without the cached prefix."""
    indices = np.argsort(-plain.lengths(), kind="stable")[:4]
    device = next(model.parameters()).device

    def losses(task: LanguageModelingTask) -> torch.Tensor:
        with torch.inference_mode():
            return task.per_example_loss(model, task.batch(indices).to(device))

    try:
        return float((losses(plain) - losses(cached)).abs().max())
    except (RuntimeError, TypeError, ValueError, IndexError):
        return float("inf")  # an architecture that cannot start from hidden states

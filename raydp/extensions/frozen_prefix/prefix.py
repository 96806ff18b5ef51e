"""The frozen prefix: hidden states below the first trained layer, which never change.

With adapters on the last layers only, the layers below compute the same states in every step. These
are computed once per data set, model and layer, by all processes that need them, and kept on disk
under a name that is made from their content. Every trial of every sweep maps them into memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import nn

from raydp.extensions.frozen_prefix.shares import (
    Share,
    compute_together,
    remove_abandoned_shares,
    shares_of,
    tokens_left,
)
from raydp.models.adapters import causal_model, decoder_layers
from raydp.system.cache import remove_abandoned
from raydp.tasks.text.examples import HiddenStates, TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask
from raydp.training.trial_plan import TrialPlan

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Dtype of the base's weights -> largest difference of an example's loss (nats) by rounding."""


def first_trained_layer(model: nn.Module, parameters: dict[str, nn.Parameter]) -> int:
    """Return the position of the first decoder layer with a trained weight.

    It is 0 if something before the layers is trained, or if the layers are not known.
    """
    backbone_and_layers = decoder_layers(model)
    if backbone_and_layers is None:
        return 0
    _, layers = backbone_and_layers
    trained = {id(p) for p in parameters.values()}
    inside = [
        i for i, layer in enumerate(layers) if any(id(p) in trained for p in layer.parameters())
    ]
    in_layers = {id(p) for layer in layers for p in layer.parameters()}
    # A trained embedding or final norm lies outside the layers; then no layer counts as frozen.
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
    planned_tokens: float = float("inf"),
) -> LanguageModelingTask:
    """Return the task with batches that carry the hidden states that enter the first trained layer.

    Args:
        model: the model with its adapter; the adapter's weights do not matter here.
        folder: where the hidden states are kept.
        max_bytes: largest size of the hidden states; above it the task is returned unchanged.
        say: called with a sentence if the prefix is not used although it could save time.
        progress: called with the share of the tokens whose hidden states are computed, by all
            processes together.
        planned_tokens: how many tokens would go through the layers of the prefix without it. If it
            is not more than the tokens whose hidden states are not yet computed, the task is
            returned unchanged.
    """
    # Nothing to cache, or too much of it.
    if (layer := first_trained_layer(model, parameters)) == 0:
        return task
    width = causal_model(model).config.hidden_size
    dtype = next(causal_model(model).parameters()).dtype
    splits = {"train.bin": task.all_examples(), "heldout.bin": task.heldout}
    sizes = {file: len(own.token_ids) * width * dtype.itemsize for file, own in splits.items()}
    if (size := sum(sizes.values())) > max_bytes:
        gib = f"{size / 2**30:.1f} GiB"
        say(f"the frozen prefix is not cached: {gib} exceed cluster.prefix_cache_gib")
        return task
    # Compute it once, under a hash of what defines it, if it saves more than it costs.
    path, shares = folder / _name(task, weight_hash, layer, dtype), shares_of(splits)
    left = tokens_left(path, shares)
    if left >= planned_tokens:
        return task
    # A cheap test on a few examples, before the states of all are computed. A task that trains on
    # other examples than it caches is tested only afterwards.
    tried = left and task.all_examples() is task.train
    if tried and _differs(_tried(task, model, layer, dtype), dtype, say):
        return task
    remove_abandoned(folder)  # parts that earlier versions began
    remove_abandoned_shares(folder)

    def compute(share: Share, file: Path, count: Callable[[int], None]) -> None:
        out = _array(file, width, dtype, "r+")
        _fill(splits[share.file], share.batches, model, layer, out, count)

    compute_together(path, sizes, shares, compute, progress)
    states = (_mapped(path / name, each, width, dtype, layer) for name, each in splits.items())
    cached = task.with_hidden(*states)
    # Use it only if the losses agree.
    return task if _differs(_largest_difference(task, cached, model), dtype, say) else cached


def _name(task: LanguageModelingTask, weight_hash: str, layer: int, dtype: torch.dtype) -> str:
    """Return a name made from what defines the hidden states."""
    # The last number is the version of this format: raise it if the states are computed otherwise.
    content = task.facts().content_hash, weight_hash, layer, str(dtype), transformers.__version__, 1
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _differs(difference: float, dtype: torch.dtype, say: Callable[[str], None]) -> bool:
    """Return whether losses differ by more than rounding explains, and say so."""
    if difference <= TOLERANCE[dtype]:
        return False
    say(
        f"the frozen prefix is not used: losses from it differ by {difference:.2g} nats for this "
        "architecture"
    )
    return True


def planned_tokens(
    task: LanguageModelingTask,
    plans: Sequence[TrialPlan],
    evaluations_fn: Callable[[TrialPlan], int],
) -> float:
    """Return how many tokens planned runs put through the model, in expectation.

    Tokens of scores do not count.

    Args:
        evaluations_fn: returns how often a run measures its utility. The untrained model's is
            measured once.
    """
    per_unit = float(task.lengths().sum()) / task.facts().num_units
    trained = sum(plan.batch_size * plan.num_steps for plan in plans if plan.source is None)
    evaluations = 1 + sum(evaluations_fn(plan) for plan in plans)
    return trained * per_unit + evaluations * float(task.heldout_lengths().sum())


class _Reached(Exception):  # noqa: N818 - a way out of the forward pass, not an error
    """Carries the hidden states that enter the layer out of the forward pass."""


def _fill(
    examples: TokenizedExamples,
    batches: Sequence[NDArray[np.int64]],
    model: nn.Module,
    layer: int,
    out: NDArray[np.generic],
    count: Callable[[int], None],
) -> None:
    """Compute the hidden states that enter a layer, for some examples, and write them into `out`.

    Args:
        batches: positions of the examples.
        count: called with the number of tokens after each micro-batch.
    """
    causal = causal_model(model)
    device = next(causal.parameters()).device
    backbone_and_layers = decoder_layers(model)
    assert backbone_and_layers is not None

    # Stop at the first trained layer: the layers above it are not needed.
    def stop(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        raise _Reached(args[0])

    handle = backbone_and_layers[1][layer].register_forward_pre_hook(stop)
    try:
        for indices in batches:
            ids = examples.batch(indices).input_ids.to(device)
            positions = torch.arange(ids.shape[1], device=device).expand(ids.shape)
            try:
                with torch.inference_mode():
                    causal(input_ids=ids, position_ids=positions, use_cache=False)
            except _Reached as reached:
                hidden = reached.args[0].cpu()
            # NumPy has no bfloat16, so its bits are kept as integers.
            raw = (hidden.view(torch.int16) if hidden.dtype == torch.bfloat16 else hidden).numpy()
            # Only the tokens of the example: padding is not kept.
            for row, i in enumerate(indices):
                start, end = examples.offsets[i], examples.offsets[i + 1]
                out[start:end] = raw[row, : end - start]
            count(int(examples.lengths()[indices].sum()))
    finally:
        handle.remove()
    if isinstance(out, np.memmap):
        out.flush()  # a share counts as finished only once it is on the disk


def _array(path: Path, width: int, dtype: torch.dtype, mode: str) -> NDArray[np.generic]:
    flat: NDArray[np.generic] = np.memmap(path, dtype=_plain(dtype), mode=mode)  # type: ignore[call-overload]
    return flat.reshape(-1, width)


def _plain(dtype: torch.dtype) -> np.dtype[np.generic]:
    """Return the type of NumPy that hidden states are kept in; bfloat16 is kept as its 16 bits."""
    return np.dtype("int16" if dtype == torch.bfloat16 else str(dtype).removeprefix("torch."))


def _mapped(
    path: Path, examples: TokenizedExamples, width: int, dtype: torch.dtype, layer: int
) -> HiddenStates:
    values = _array(path, width, dtype, "r")
    return HiddenStates(values=values, starts=examples.offsets[:-1], dtype=dtype, first_layer=layer)


def _tried(task: LanguageModelingTask, model: nn.Module, layer: int, dtype: torch.dtype) -> float:
    """Return the largest difference of losses (nats) of a few examples, before all are computed."""
    chosen = _longest(task)
    some = task.train.select(chosen)
    values = np.zeros((len(some.token_ids), causal_model(model).config.hidden_size), _plain(dtype))
    _fill(some, [np.arange(len(some))], model, layer, values, lambda tokens: None)
    # The task looks a state up by the example's position, so the few are put at theirs.
    starts = np.zeros(len(task.train), np.int64)
    starts[chosen] = some.offsets[:-1]
    states = HiddenStates(values=values, starts=starts, dtype=dtype, first_layer=layer)
    return _largest_difference(task, task.with_hidden(states, states), model)


def _longest(task: LanguageModelingTask) -> NDArray[np.int64]:
    """Return the positions of a few examples, the longest ones."""
    return np.argsort(-task.lengths(), kind="stable")[:4]


def _largest_difference(
    plain: LanguageModelingTask, cached: LanguageModelingTask, model: nn.Module
) -> float:
    """Return the largest difference (nats) of a few losses with and without the cached prefix."""
    indices = _longest(plain)
    device = next(model.parameters()).device

    def losses(task: LanguageModelingTask) -> torch.Tensor:
        with torch.inference_mode():
            return task.per_example_loss(model, task.batch(indices).to(device))

    try:
        return float((losses(plain) - losses(cached)).abs().max())
    except (RuntimeError, TypeError, ValueError, IndexError):
        return float("inf")  # an architecture that cannot start from hidden states

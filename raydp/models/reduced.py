"""A base model with few layers and tokens, for checks that need its kinds of layers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from raydp.spec.sections.model import AdapterSpec

LAYERS_OF_A_KIND = 2
"""Number of layers of each kind that stay.

One of two frozen layers, or one of two trained ones, is then never the only layer between the
embeddings and the output.
"""
SIMPLE = (bool, int, float, str, type(None))


def random_form(
    config: PreTrainedConfig, adapter: AdapterSpec, most_weights: int
) -> tuple[PreTrainedModel, AdapterSpec] | None:
    """Return a model of an architecture with few layers and random weights, frozen.

    The weights are float32, and the model is in eval mode.

    Only the weights of the layers that stay are made (see `with_few_layers`). They are the same in
    every call.

    Returns:
        The model, and the adapter for its layers; None if these have more than `most_weights`
        weights.
    """
    # The device "meta" has shapes alone: the weights of removed layers are never allocated.
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    fewer = with_few_layers(model, adapter)
    if sum(parameter.numel() for parameter in model.parameters()) > most_weights:
        return None
    model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.detach().zero_()  # architectures initialise no tensor that a checkpoint always has
    # The seed is fixed, and the process's generator stays as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.initialize_weights()
    # to_empty gave tied weights separate memory.
    model.tie_weights()
    return model.requires_grad_(False).eval(), fewer


def with_few_layers(model: PreTrainedModel, adapter: AdapterSpec) -> AdapterSpec:
    """Remove decoder layers in place, down to two of each kind.

    Return the adapter for the layers that are left.

    Two layers are of one kind if three conditions hold. Their modules have the same classes,
    settings, hooks, and shapes and types of weights. The adapter has both or neither. Both or
    neither are below the first layer of the adapter. A layer that shares a tensor with another
    module stays. A model whose layers are not in one list stays whole, as does a model under an
    adapter that names layers by their full path.
    """
    # Layers must be in one list, and the adapter must not name a layer by its number.
    layers = _layers(model)
    targets = adapter.target_modules
    names = [*targets, *adapter.modules_to_save] if isinstance(targets, tuple) else []
    if layers is None or any(re.search(r"\.\d+\.", f".{name}.") for name in names):
        return adapter
    # Remove from the end, so that positions stay valid.
    count, chosen = len(layers), adapter.layers_to_transform
    kept = _kept_layers(layers, chosen, _shared_tensors(model, layers))
    for position in sorted(set(range(count)) - set(kept), reverse=True):
        del layers[position]
    # Cut what the configuration says of each layer.
    for name, value in list(vars(model.config).items()):
        if isinstance(value, list) and len(value) == count:
            setattr(model.config, name, [value[position] for position in kept])
    model.config.num_hidden_layers = len(kept)
    # A layer knows its position, under which caches keep its keys and values.
    for position, layer in enumerate(layers):
        for module in layer.modules():
            if isinstance(getattr(module, "layer_idx", None), int):
                vars(module)["layer_idx"] = position
    # Number the adapter's layers anew.
    if chosen is None:
        return adapter
    return adapter.model_copy(
        update={"layers_to_transform": tuple(i for i, old in enumerate(kept) if old in chosen)}
    )


def _layers(model: PreTrainedModel) -> nn.ModuleList | None:
    """Return a model's layers; None if they are not in one list."""
    count = getattr(model.config, "num_hidden_layers", None)
    every = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    lists = [layers for layers in every if len(layers) == count]
    return lists[0] if len(lists) == 1 else None


def _kept_layers(
    layers: nn.ModuleList, chosen: Sequence[int] | None, shared: set[int]
) -> list[int]:
    """Return the positions of the layers that stay."""
    first = min(chosen) if chosen else 0
    kept, seen = list[int](), Counter[object]()
    # Two of a kind stay, and every layer whose tensors are used elsewhere.
    for position, layer in enumerate(layers):
        kind = _kind(layer), chosen is None or position in chosen, position < first
        if seen[kind] < LAYERS_OF_A_KIND or any(id(p) in shared for p in layer.parameters()):
            kept.append(position)
            seen[kind] += 1
    return kept


def _kind(layer: nn.Module) -> tuple[object, ...]:
    """Return what distinguishes a layer from others, besides its place and tensor values."""
    # Compare classes, hooks, plain settings, and the shapes of weights and buffers.
    return tuple(
        (
            name,
            type(module),
            "forward" in vars(module),
            len(module._forward_hooks) + len(module._forward_pre_hooks),
            tuple(
                (n, repr(v))
                for n, v in sorted(vars(module).items())
                if isinstance(v, SIMPLE) and n != "layer_idx"
            ),
            tuple((n, tuple(t.shape), t.dtype) for n, t in module.named_parameters(recurse=False)),
            tuple((n, tuple(t.shape), t.dtype) for n, t in module.named_buffers(recurse=False)),
        )
        for name, module in layer.named_modules()
    )


def _shared_tensors(model: nn.Module, layers: nn.ModuleList) -> set[int]:
    """Return the identities of parameters that two layers, or a layer and others, share."""
    inside = {id(module) for module in layers.modules()}
    outside = [
        p for m in model.modules() if id(m) not in inside for p in m.parameters(recurse=False)
    ]
    owners = Counter(
        id(p) for owned in (outside, *(list(layer.parameters()) for layer in layers)) for p in owned
    )
    return {identity for identity, number in owners.items() if number > 1}


def with_few_tokens(
    model: PreTrainedModel, used: NDArray[np.int32], longest: int
) -> dict[int, int] | None:
    """Remove the rows of tokens that do not occur from embeddings and output layer, in place.

    Some rows of unused tokens stay. With them, the gradient engine takes the norm of the output
    layer's gradient in the same way as in the whole model. At least as many unused rows stay as
    there are used ones, so that most of a softmax is on tokens that are no targets.

    Args:
        used: token ids that occur.
        longest: number of tokens of the longest example.

    Returns:
        The new id of each used token; None if the model has no plain output layer, so that nothing
        was changed.
    """
    # Only a plain output layer of the same rows can be cut with the embeddings.
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    if not isinstance(embeddings, nn.Embedding) or type(head) is not nn.Linear:
        return None
    rows, width = embeddings.num_embeddings, head.in_features
    if head.out_features != rows or embeddings.weight.shape[0] != rows:
        return None
    # Keep the padding's id: embeddings treat it specially.
    padding = [] if embeddings.padding_idx is None else [embeddings.padding_idx]
    needed = np.unique([0, *padding, *used.tolist()])  # 0 is the id of the padding of a batch
    # Keep twice the needed rows, and more until the gradient engine chooses as in the whole model.
    count = min(rows, 2 * len(needed))
    while count < rows and _writes_out(longest, width, count) != _writes_out(longest, width, rows):
        count = min(rows, 2 * count)
    others = np.setdiff1d(np.arange(rows), needed)[: count - len(needed)]
    kept = np.concatenate([needed, others])
    index = torch.from_numpy(kept)
    # A tied output layer must stay tied.
    tied = head.weight is embeddings.weight
    embeddings.weight = _rows(embeddings.weight, index)
    head.weight = embeddings.weight if tied else _rows(head.weight, index)
    if head.bias is not None:
        head.bias = _rows(head.bias, index)
    new_ids = {int(old): new for new, old in enumerate(kept)}
    # The padding id moves with its row.
    if padding:
        embeddings.padding_idx = new_ids[padding[0]]
    embeddings.num_embeddings = head.out_features = model.config.vocab_size = len(kept)
    return new_ids


def _writes_out(positions: int, inputs: int, outputs: int) -> bool:
    """Return whether `raydp.training.gradients.layers` writes a matrix's gradients out."""
    return positions * (inputs + outputs) >= inputs * outputs


def _rows(tensor: torch.Tensor, index: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach()[index].clone(), requires_grad=tensor.requires_grad)


def renamed(token_ids: NDArray[np.int32], new_ids: dict[int, int]) -> NDArray[np.int32]:
    """Return token ids under their new names."""
    return cast("NDArray[np.int32]", np.array([new_ids[int(i)] for i in token_ids], np.int32))

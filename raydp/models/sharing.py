"""One copy of the base weights, shared by all processes of a node."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from raydp.models.base_models import load_base
from raydp.models.pretrained import PretrainedModel
from raydp.spec.sections.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class SharedModel:
    """A base model as a skeleton and arrays, of which the processes of a node share one copy."""

    skeleton: PretrainedModel
    arrays: tuple[tuple[str, str, str, np.ndarray], ...]


Loaded = dict[tuple[str, str, int], SharedModel]
"""Section of a base model without its adapter, type of the weights, new tokens -> the model."""


def base_models(
    sections: Iterable[ModelSpec], *, new_tokens: int, loaded: Loaded | None = None
) -> dict[str, SharedModel]:
    """Load the base model of some sections to share it, once for each type of its weights.

    The result is type -> model.

    Args:
        sections: sections on one base model.
        new_tokens: as for `raydp.models.base_models.load_base`.
        loaded: the models that were loaded before. New ones are added.

    Raises:
        ValueError: as `load_base`.
    """
    # Sections may differ in dtype alone; each dtype needs arrays of its own.
    by_type: dict[str, ModelSpec] = {}
    for section in sections:
        by_type.setdefault(section.weight_dtype, section)
    loaded = {} if loaded is None else loaded
    models = {}
    for dtype, section in by_type.items():
        key = (section.model_dump_json(exclude={"adapter"}), dtype, new_tokens)
        if key not in loaded:
            loaded[key] = disassemble(load_base(section, new_tokens=new_tokens))
        models[dtype] = loaded[key]
    return models


def disassemble(base: PretrainedModel) -> SharedModel:
    """Take the tensors out of a model. The model is empty afterwards."""
    arrays = []
    owners: dict[int, int] = {}
    for path, module in base.model.named_modules():
        for kind, tensors in (("_parameters", module._parameters), ("_buffers", module._buffers)):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                dtype = str(tensor.dtype).removeprefix("torch.")
                if id(tensor) in owners:  # a tied weight refers to its first occurrence
                    arrays.append(
                        (f"{path}|{kind}|{name}", "tied", dtype, np.array(owners[id(tensor)]))
                    )
                    continue
                owners[id(tensor)] = len(arrays)
                # numpy has no bfloat16: share its bits as int16.
                plain = tensor.detach().contiguous()
                raw = plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain
                arrays.append((f"{path}|{kind}|{name}", "own", dtype, raw.numpy()))
    shared = SharedModel(skeleton=base, arrays=tuple(arrays))
    # Empty the skeleton, so that pickling it copies no weight.
    for module in base.model.modules():
        for tensors in (module._parameters, module._buffers):
            for name in tensors:
                tensors[name] = None
    return shared


def assemble(shared: SharedModel) -> PretrainedModel:
    """Put the tensors, which may be read-only shared memory, back into a copy of the skeleton."""
    skeleton = replace(shared.skeleton, model=copy.deepcopy(shared.skeleton.model))
    modules = dict(skeleton.model.named_modules())
    tensors: list[torch.Tensor] = []
    # The arrays are read-only on purpose: no process may write into another's weights.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        for key, ownership, dtype, array in shared.arrays:
            path, kind, name = key.split("|")
            # A tied weight is the same tensor object again.
            if ownership == "tied":
                tensor = tensors[int(array)]
            else:
                tensor = torch.from_numpy(array)
                tensor = tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor
                tensor = (
                    nn.Parameter(tensor, requires_grad=False) if kind == "_parameters" else tensor
                )
            tensors.append(tensor)
            getattr(modules[path], kind)[name] = tensor
    return skeleton

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
from raydp.spec.sections import ModelSpec


@dataclass(frozen=True, kw_only=True)
class SharedModel:
    """A base model cut into a skeleton and arrays, so that the processes of a node can share one copy of the arrays."""

    skeleton: PretrainedModel
    arrays: tuple[tuple[str, str, str, np.ndarray], ...]


def base_models(sections: Iterable[ModelSpec], *, new_tokens: int) -> dict[str, SharedModel]:
    """Load the base model of some sections, to be shared, once for each type of its weights: type -> model.

    Args:
        sections: sections on one base model.
        new_tokens: as for `raydp.models.base_models.load_base`.

    Raises:
        ValueError: as `load_base`.
    """
    by_type: dict[str, ModelSpec] = {}
    for section in sections:
        by_type.setdefault(section.weight_dtype, section)
    return {dtype: disassemble(load_base(section, new_tokens=new_tokens)) for dtype, section in by_type.items()}


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
                    arrays.append((f"{path}|{kind}|{name}", "tied", dtype, np.array(owners[id(tensor)])))
                    continue
                owners[id(tensor)] = len(arrays)
                plain = tensor.detach().contiguous()
                raw = plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain
                arrays.append((f"{path}|{kind}|{name}", "own", dtype, raw.numpy()))
    shared = SharedModel(skeleton=base, arrays=tuple(arrays))
    for module in base.model.modules():
        for tensors in (module._parameters, module._buffers):
            for name in tensors:
                tensors[name] = None
    return shared


def assemble(shared: SharedModel) -> PretrainedModel:
    """Put the tensors back into a copy of the skeleton. They may be read-only memory that other processes map too."""
    skeleton = replace(shared.skeleton, model=copy.deepcopy(shared.skeleton.model))
    modules = dict(skeleton.model.named_modules())
    tensors: list[torch.Tensor] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        for key, ownership, dtype, array in shared.arrays:
            path, kind, name = key.split("|")
            if ownership == "tied":
                tensor = tensors[int(array)]
            else:
                tensor = torch.from_numpy(array)
                tensor = tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor
                tensor = nn.Parameter(tensor, requires_grad=False) if kind == "_parameters" else tensor
            tensors.append(tensor)
            getattr(modules[path], kind)[name] = tensor
    return skeleton

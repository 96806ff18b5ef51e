"""A model whose weights are sharded over the ranks (FSDP2), for models that do not fit one device.

Every rank holds 1/world of each weight, cut along its first dimension, and gathers one decoder
layer at a time while it computes. Gathering is collective: all ranks run the same number of passes,
in the same order. Adapters are replicated. With full fine-tuning the gradients, the noise and the
optimizer's state are sharded like the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from raydp.models.adapters import shardable_layers
from raydp.training.comm import Comm

T = TypeVar("T")

# The name before 2.13.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def shard(model: nn.Module, comm: Comm, *, replicated: set[nn.Parameter]) -> None:
    """Shard a model's weights over the ranks, in place.

    Every rank calls it with the same weights, on any device.

    Args:
        model: the module that is called: the peft model, or the transformers model if there is no
            adapter.
        replicated: parameters that every rank keeps whole.

    Raises:
        ValueError: the model's decoder layers are not known.
    """
    layers = shardable_layers(model)
    # Inner modules first, so that each decoder layer is gathered by itself.
    mesh = init_device_mesh(comm.device.type, (comm.world_size,))
    for module in (*layers, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=True, ignored_params=replicated)
    for parameter in replicated:
        parameter.data = parameter.data.to(comm.device)
    # FSDP2 finishes its set-up in the first pass, which must not run in inference mode.
    with torch.no_grad():
        empty_pass(model)


def is_sharded(model: nn.Module) -> bool:
    """Return whether the model's passes are collective."""
    return isinstance(model, FSDPModule)


def empty_pass(model: nn.Module) -> None:
    """Run the model on one token, as this rank's part in a pass of the other ranks."""
    device = next(model.parameters()).device
    model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=device), use_cache=False)


def in_lockstep(items: Iterator[T], comm: Comm) -> Iterator[T | None]:
    """Yield a rank's items, then None as long as another rank still has items."""
    while True:
        # Ranks have different numbers of micro-batches. A rank that is done still joins the others'
        # passes.
        item = next(items, None)
        busy = torch.tensor(float(item is not None), device=comm.device)
        comm.all_reduce_sum(busy)
        if not busy:
            return
        yield item


@dataclass(frozen=True, kw_only=True)
class Part:
    """The part of a flattened tensor that a rank holds: start <= position < stop of `count`."""

    count: int
    start: int
    stop: int

    @property
    def is_whole(self) -> bool:
        """Return whether the rank holds the whole tensor."""
        return (self.start, self.stop) == (0, self.count)


def part_of(tensor: torch.Tensor) -> Part:
    """Return the part that this rank holds: everything, or the rank's rows of a sharded tensor."""
    if not isinstance(tensor, DTensor):
        return Part(count=tensor.numel(), start=0, stop=tensor.numel())
    per_row = tensor.numel() // max(1, len(tensor))
    first = min(tensor.device_mesh.get_local_rank() * _rows(tensor), len(tensor))
    # FSDP2 cuts along the first dimension, in rows.
    return Part(
        count=tensor.numel(), start=first * per_row, stop=(first + len(local(tensor))) * per_row
    )


def in_parts(parameters: dict[str, nn.Parameter]) -> bool:
    """Return whether a rank holds only a part of the trained parameters."""
    return any(isinstance(p, DTensor) for p in parameters.values())


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values that this rank holds, in the tensor's own memory."""
    return (
        cast(DTensor, tensor.detach()).to_local()
        if isinstance(tensor, DTensor)
        else tensor.detach()
    )


def like(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is sharded like the given one and holds `values` on this rank."""
    if not isinstance(tensor, DTensor):
        return values
    return DTensor.from_local(
        values,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def empty_like(parameter: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Return an empty optimizer state, sharded like the parameter if it has its shape."""
    if shape == parameter.shape:
        return torch.empty_like(parameter.detach(), dtype=dtype)
    return torch.empty(shape, dtype=dtype, device=local(parameter).device)


def gathered(tensors: dict[str, torch.Tensor], comm: Comm) -> dict[str, torch.Tensor]:
    """Return whole tensors on the CPU of rank 0, and nothing on the other ranks; collective.

    One tensor is gathered at a time.

    If a tensor has several names, they share its memory.
    """
    values: dict[int, torch.Tensor] = {}
    for tensor in tensors.values():
        if id(tensor) not in values:
            value = (
                cast(DTensor, tensor.detach()).full_tensor()
                if isinstance(tensor, DTensor)
                else tensor.detach()
            )
            values[id(tensor)] = value.cpu() if comm.rank == 0 else torch.empty(0)
    return {name: values[id(tensor)] for name, tensor in tensors.items()} if comm.rank == 0 else {}


def fill(tensor: torch.Tensor, values: torch.Tensor | None, comm: Comm) -> None:
    """Set a tensor, whole or sharded, to rank 0's values of the whole tensor; collective."""
    # The whole tensor goes to every rank, which copies its own part: simple, and only at a resume.
    if comm.rank == 0:
        assert values is not None, "rank 0 has the values"
        everything = values.to(device=comm.device, dtype=tensor.dtype).contiguous()
    else:
        everything = torch.empty(tensor.shape, dtype=tensor.dtype, device=comm.device)
    comm.broadcast(everything)
    mine = part_of(tensor)
    with torch.no_grad():
        held = local(tensor)
        held.copy_(everything.flatten()[mine.start : mine.stop].view(held.shape))


def running_sums(
    model: nn.Module, parameters: dict[str, nn.Parameter], total: dict[str, torch.Tensor]
) -> tuple[MutableMapping[str, torch.Tensor], MutableMapping[str, torch.Tensor]]:
    """Return two running sums: of a micro-batch, and of a rank without examples, not counted.

    Args:
        total: name -> this rank's part of the sum.
    """
    if in_parts(parameters):
        return ScatteredSum(parameters, total), ScatteredSum(parameters, total, counted=False)
    return total, {name: torch.zeros_like(value) for name, value in total.items()} if is_sharded(
        model
    ) else {}


class ScatteredSum(MutableMapping[str, torch.Tensor]):
    """The running sums of a sharded model, of which each rank holds a part.

    Add to them as to full tensors.

    `sums[name] += values` takes every rank's values of the whole parameter, adds them over the
    ranks, and adds to each part its rows of the result. Only one parameter's values exist in full
    at a time.

    Args:
        parameters: name -> sharded parameter.
        parts: name -> this rank's part of the sum, fp32, changed in place.
        counted: False for a rank without an example: whatever it adds counts as exactly zero.
    """

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        parts: dict[str, torch.Tensor],
        *,
        counted: bool = True,
    ) -> None:
        self._parameters = cast(dict[str, DTensor], parameters)  # see in_parts
        self._parts = parts
        self._counted = counted
        self._padded: torch.Tensor | None = None

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return zeros to add to, with spare rows if the ranks' parts are unequal."""
        # reduce_scatter needs parts of one size, so the tensor gets spare rows that count for
        # nothing.
        parameter, part = self._parameters[name], self._parts[name]
        self._padded = part.new_zeros(
            _rows(parameter) * parameter.device_mesh.size(), *parameter.shape[1:]
        )
        return self._padded[: len(parameter)]

    def __setitem__(self, name: str, values: torch.Tensor) -> None:
        parameter, part = self._parameters[name], self._parts[name]
        padded, self._padded = self._padded, None
        assert padded is not None, "a sum is added to in place"
        assert values.data_ptr() == padded.data_ptr(), "a sum is added to in place"
        # Only zeros keep the sum right: this rank ran an example only for its weights.
        if not self._counted:
            padded.zero_()
        summed = part.new_empty(_rows(parameter), *parameter.shape[1:])
        _reduce_scatter(
            summed, padded, op=dist.ReduceOp.SUM, group=parameter.device_mesh.get_group()
        )
        part += summed[: len(part)]

    def __delitem__(self, name: str) -> None:
        raise TypeError("a sum is not removed")

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def _rows(tensor: DTensor) -> int:
    """Return the rows of the largest part; the last ranks hold fewer or none (torch.chunk)."""
    return -(-len(tensor) // tensor.device_mesh.size())

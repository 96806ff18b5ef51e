"""Communication between the ranks of one trial.

Training depends on this protocol, not on who started the processes.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


class Comm(Protocol):
    """Collective operations of one worker group. Every rank calls them in the same order.

    Implementers: `LocalComm` and `DistributedComm`, and the self-test's `ThreadComm`.
    """

    rank: int
    world_size: int
    device: torch.device

    def all_reduce_sum(self, tensor: torch.Tensor) -> None:
        """Replace the tensor by its sum over ranks, in place, in its own dtype."""

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Replace the tensor by rank 0's tensor, in place."""

    def exchange_slices(self, vector: torch.Tensor) -> None:
        """Replace every rank's slice of a vector (`slice_of`) by that rank's values, in place."""

    def broadcast_object(self, value: T) -> T:
        """Return rank 0's value on every rank."""


def slice_of(rank: int, world_size: int, length: int) -> slice:
    """Return the positions of a vector that are a rank's work: slices of nearly equal length."""
    return slice(length * rank // world_size, length * (rank + 1) // world_size)


class LocalComm:
    """Communication of a single process."""

    rank = 0
    world_size = 1

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    def all_reduce_sum(self, tensor: torch.Tensor) -> None:
        """Do nothing: the sum over one rank is the tensor itself."""

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Do nothing: there is no other rank."""

    def exchange_slices(self, vector: torch.Tensor) -> None:
        """Do nothing: the whole vector is this rank's slice."""

    def broadcast_object(self, value: T) -> T:
        return value


class DistributedComm:
    """torch.distributed's default process group: gloo on CPUs, nccl on GPUs."""

    def __init__(self, device: torch.device | str) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.device = torch.device(device)

    def all_reduce_sum(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM)

    def broadcast(self, tensor: torch.Tensor) -> None:
        dist.broadcast(tensor, src=0)

    def exchange_slices(self, vector: torch.Tensor) -> None:
        # Slices differ in length by up to one, which all_gather on one tensor does not allow.
        for rank in range(self.world_size):
            values = vector[slice_of(rank, self.world_size, len(vector))]
            if len(values):
                dist.broadcast(values, src=rank)

    def broadcast_object(self, value: T) -> T:
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

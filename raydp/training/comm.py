"""What the ranks of one trial say to each other. Training knows this protocol, not who started the processes."""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


class Comm(Protocol):
    """Collective operations of one worker group; every rank calls each of them in the same order."""

    rank: int
    world_size: int
    device: torch.device

    def all_reduce_sum(self, tensor: torch.Tensor) -> None:
        """Replace the tensor by its sum over ranks, in place, in its own type."""

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Replace the tensor by rank 0's, in place."""

    def broadcast_object(self, value: T) -> T:
        """Rank 0's value, on every rank."""


class LocalComm:
    """One process."""

    rank = 0
    world_size = 1

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    def all_reduce_sum(self, tensor: torch.Tensor) -> None:
        """One rank: the sum is the tensor."""

    def broadcast(self, tensor: torch.Tensor) -> None:
        """One rank: nothing to send."""

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

    def broadcast_object(self, value: T) -> T:
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

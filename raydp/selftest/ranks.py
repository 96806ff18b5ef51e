"""A worker group of threads in one process, for the self-test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

import torch

from raydp.training.comm import Comm, slice_of

T = TypeVar("T")
TIMEOUT_SECONDS = 60.0


class ThreadComm:
    """One rank of a group of threads (see raydp.training.comm.Comm)."""

    def __init__(self, rank: int, barrier: threading.Barrier, slots: list[object]) -> None:
        self.rank = rank
        self.world_size = len(slots)
        self.device = torch.device("cpu")
        self._barrier = barrier
        self._slots = slots

    def all_reduce_sum(self, tensor: torch.Tensor) -> None:
        tensor.copy_(torch.stack(self._gathered(tensor.clone())).sum(dim=0))

    def broadcast(self, tensor: torch.Tensor) -> None:
        tensor.copy_(self._gathered(tensor.clone())[0])

    def exchange_slices(self, vector: torch.Tensor) -> None:
        for rank, values in enumerate(self._gathered(vector.clone())):
            own = slice_of(rank, self.world_size, len(vector))
            vector[own] = values[own]

    def broadcast_object(self, value: T) -> T:
        return self._gathered(value)[0]

    def _gathered(self, value: T) -> list[T]:
        """Return every rank's value."""
        # A barrier on either side of the read: no rank sees a mixture of two exchanges.
        self._slots[self.rank] = value
        self._barrier.wait(TIMEOUT_SECONDS)
        values = cast("list[T]", list(self._slots))
        # All ranks must read this value before any writes the next one.
        self._barrier.wait(TIMEOUT_SECONDS)
        return values


def on_ranks(world_size: int, work: Callable[[Comm], T]) -> list[T]:
    """Call `work` once per rank, concurrently; if a rank fails, release the others and raise."""
    barrier = threading.Barrier(world_size)
    slots: list[object] = [None] * world_size

    def run(rank: int) -> T:
        try:
            return work(ThreadComm(rank, barrier, slots))
        except BaseException:  # raised again below; the other ranks must not wait for this one
            barrier.abort()
            raise

    with ThreadPoolExecutor(world_size) as pool:
        futures = [pool.submit(run, rank) for rank in range(world_size)]
    # A broken barrier is only the consequence: raise the error that broke it first.
    errors = [e for e in (future.exception() for future in futures) if e is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]

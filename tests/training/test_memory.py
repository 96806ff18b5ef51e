"""A logical batch of any size runs in the memory of a micro-batch."""

from __future__ import annotations

import multiprocessing
import resource
from dataclasses import replace
from multiprocessing.connection import Connection

import torch

from raydp.training.comm import LocalComm
from tests.training import toys

ALLOWANCE_MIB = 20
"""Of the larger data set itself and of what the allocator rounds up: 4 MiB were measured, 810 in one backward pass."""


def _peak(batch_size: int, answer: Connection) -> None:
    torch.set_num_threads(1)
    plan = replace(toys.PLAN, batch_size=batch_size, num_examples=batch_size, num_steps=1)
    toys.METHOD.train(plan, toys.trainee(), toys.task(batch_size), LocalComm(), toys.KEY, None)
    answer.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def peak_mib(batch_size: int) -> float:
    """Peak resident memory of a process that takes one step on a batch of this size."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_peak, args=(batch_size, there))
    process.start()
    assert here.poll(120)
    peak = here.recv()
    process.join(30)
    return peak


def test_a_logical_batch_of_8192_takes_no_more_than_one_of_256() -> None:
    assert peak_mib(8192) - peak_mib(256) < ALLOWANCE_MIB

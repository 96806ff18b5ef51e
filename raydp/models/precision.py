"""How fast this machine's bfloat16 products are.

Processors without instructions for them take many times as long.
"""

from __future__ import annotations

import time
from functools import cache

import torch

from raydp.privacy.records.cautions import Caution

SHAPE = (256, 576, 1536)
"""Tokens, inputs and outputs of the layer that is timed: the shape of SmolLM2's MLP."""
REPEATS = 5
SLOW = 1.2
"""Above this factor float32 is the better choice on a CPU."""


@cache
def bfloat16_factor() -> float:
    """Return the time of a linear layer in bfloat16 over float32, on one thread of this machine.

    The shorter of a few measurements counts for each. It takes some 20 ms where bfloat16 is fast.
    """
    # One thread measures the instruction set and not the load of the machine.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _seconds(torch.bfloat16) / _seconds(torch.float32)
    finally:
        torch.set_num_threads(threads)


def _seconds(dtype: torch.dtype) -> float:
    tokens, inputs, outputs = SHAPE
    x, weight = torch.ones(tokens, inputs, dtype=dtype), torch.ones(outputs, inputs, dtype=dtype)
    # The shortest time counts: other processes only add time, and the first call builds a kernel.
    shortest = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        torch.nn.functional.linear(x, weight)
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


def warning_of(dtype: str) -> Caution | None:
    """Return a warning if products in a type are slow on this processor, otherwise None."""
    if dtype != "bfloat16" or (factor := bfloat16_factor()) <= SLOW:
        return None
    return Caution(
        rule="model.dtype should be a type whose products are fast on this processor",
        value=f"bfloat16, which take {factor:.1f} times as long as those in float32",
        remedy="Write float32 if the weights fit into memory twice as large.",
    )

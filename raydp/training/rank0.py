"""Work that one rank does with a model whose weights are sharded over all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch

from raydp.models.base_models import LoadedModel
from raydp.training.comm import Comm
from raydp.training.sharding import empty_pass

T = TypeVar("T")

PASS, EXCHANGE, END = "pass", "exchange", "end"


def on_rank_0(loaded: LoadedModel, comm: Comm, work_fn: Callable[[LoadedModel], T]) -> T | None:
    """Run a function that only reads a sharded model; collective.

    Rank 0 does the work and announces each pass of the model. The other ranks then run a pass of
    one token, which contributes their parts of the weights. Only rank 0 decides how many passes
    there are. If every rank did the work, a difference in a last bit between two devices could make
    their samples differ, and one rank would wait for ever.

    Args:
        work_fn: receives the model. Its passes are passes of the whole model, and its base() works.

    Returns:
        The result of work_fn on rank 0, None on the others. An error of work_fn is raised on rank
        0.
    """
    if comm.rank != 0:
        _follow(loaded, comm)
        return None

    def announce(*args: object) -> None:
        comm.broadcast_object(PASS)

    # Before the hook that gathers the weights.
    handle = loaded.model.register_forward_pre_hook(announce, prepend=True)
    try:
        return work_fn(replace(loaded, before_exchange=lambda: comm.broadcast_object(EXCHANGE)))
    finally:
        # Also after an error: the other ranks would wait for the next pass for ever.
        handle.remove()
        comm.broadcast_object(END)


def _follow(loaded: LoadedModel, comm: Comm) -> None:
    """Do what rank 0 announces, until rank 0 has ended."""
    nothing: str | None = None
    while (announced := comm.broadcast_object(nothing)) != END:
        if announced == EXCHANGE:
            loaded.exchange()
        else:
            with torch.inference_mode():
                empty_pass(loaded.model)

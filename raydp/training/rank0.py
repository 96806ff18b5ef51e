"""Work that one rank does with a model whose weights are spread over all."""

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
    """Run something that only reads a sharded model; collective.

    Rank 0 does the work and announces each pass of the model; the others then run a pass of one token, and so give
    their parts of the weights. How many passes there are is decided in one place: were every rank to do the same work,
    a last bit that differs between two devices could part their samples, and one would wait for ever.

    Args:
        work_fn: gets the model; its passes are those of the whole model, its base() works.

    Returns:
        What work_fn returned, on rank 0; None on the others. What it raises is raised on rank 0.
    """
    if comm.rank != 0:
        _follow(loaded, comm)
        return None

    def announce(*args: object) -> None:
        comm.broadcast_object(PASS)

    handle = loaded.model.register_forward_pre_hook(announce, prepend=True)  # before the hook that gathers the weights
    try:
        return work_fn(replace(loaded, before_exchange=lambda: comm.broadcast_object(EXCHANGE)))
    finally:
        handle.remove()
        comm.broadcast_object(END)


def _follow(loaded: LoadedModel, comm: Comm) -> None:
    """Do what rank 0 announces, until it has ended."""
    nothing: str | None = None
    while (announced := comm.broadcast_object(nothing)) != END:
        if announced == EXCHANGE:
            loaded.exchange()
        else:
            with torch.inference_mode():
                empty_pass(loaded.model)

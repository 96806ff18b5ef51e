"""A search on a model whose adapter is merged into its base: one product a layer instead of three."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer

ExactFn = Callable[[], AbstractContextManager[None]]
"""Gives a block in which a model is as it was before it was merged."""


@contextmanager
def merged_adapter(model: nn.Module) -> Iterator[ExactFn]:
    """Add a LoRA adapter to its base's weights for the time of the block; then the weights are what they were, bitwise.

    Only in single precision, which keeps both: in bf16 the sum loses most of an adapter, and another model would be
    searched. Every other model is left as it is. A copy of the adapted layers' weights is kept in the host's memory.

    Yields:
        What gives a block in which the model is as it was, for what must be exact.
    """
    layers = _layers(model)
    if not layers:
        yield nullcontext
        return
    weights = _base_weights(layers)
    kept = [weight.detach().to("cpu", copy=True) for weight in weights]

    def exchange(*, merge: bool) -> None:
        with torch.inference_mode(False), torch.no_grad():
            for layer in layers:
                layer.merge() if merge else layer.unmerge()
            for weight, value in zip(weights, kept, strict=True) if not merge else ():
                weight.copy_(value)

    @contextmanager
    def exact() -> Iterator[None]:
        exchange(merge=False)
        try:
            yield
        finally:
            exchange(merge=True)

    exchange(merge=True)
    try:
        yield exact
    finally:
        exchange(merge=False)


def _layers(model: nn.Module) -> list[LoraLayer]:
    """A model's layers with an active adapter, if all can be merged."""
    if not hasattr(model, "peft_config"):
        return []
    from peft.tuners.lora import LoraLayer

    layers: list[LoraLayer] = [module for module in model.modules() if isinstance(module, LoraLayer)]
    fitting = all(weight.dtype == torch.float32 for weight in _base_weights(layers))
    return layers if fitting and not any(layer.disable_adapters or layer.merged for layer in layers) else []


def _base_weights(layers: list[LoraLayer]) -> list[nn.Parameter]:
    return [weight for layer in layers for weight in layer.get_base_layer().parameters()]

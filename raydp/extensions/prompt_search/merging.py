"""A LoRA adapter merged into its base for a search: one matrix product a layer instead of three."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer

ExactFn = Callable[[], AbstractContextManager[None]]
"""Return a context manager. Inside its block the model is unmerged, exactly as before the merge."""


@contextmanager
def merged_adapter(model: nn.Module) -> Iterator[ExactFn]:
    """Add a LoRA adapter to its base's weights for the block.

    Afterwards the weights are bitwise what they were.

    Only a model in single precision is merged. In bf16 the sum would lose most of the adapter, and
    the search would see another model. Every other model is left unchanged. The host's memory keeps
    a copy of the adapted layers' base weights.

    Yields:
        A function that returns a context manager. Inside its block the model is unmerged, for exact
        computations.
    """
    layers = _layers(model)
    if not layers:
        yield nullcontext
        return
    # Unmerging subtracts with rounding, so the original weights are kept and copied back.
    weights = _base_weights(layers)
    kept = [weight.detach().to("cpu", copy=True) for weight in weights]

    def exchange(*, merge: bool) -> None:
        with torch.inference_mode(False), torch.no_grad():
            for layer in layers:
                layer.merge() if merge else layer.unmerge()
            for weight, value in zip(weights, kept, strict=True) if not merge else ():
                weight.copy_(value)

    # Confirmations use the exact model; only the search may differ by rounding.
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
    """Return a model's LoRA layers if all of them can be merged, else an empty list."""
    if not hasattr(model, "peft_config"):
        return []
    from peft.tuners.lora import LoraLayer

    layers: list[LoraLayer] = [
        module for module in model.modules() if isinstance(module, LoraLayer)
    ]
    # In bf16 a sum would lose the adapter's digits.
    fitting = all(weight.dtype == torch.float32 for weight in _base_weights(layers))
    return (
        layers
        if fitting and not any(layer.disable_adapters or layer.merged for layer in layers)
        else []
    )


def _base_weights(layers: list[LoraLayer]) -> list[nn.Parameter]:
    return [weight for layer in layers for weight in layer.get_base_layer().parameters()]

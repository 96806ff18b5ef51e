"""Layers without a matrix: trained vectors of factors, and dropout that a run can repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

KeepFn = Callable[[str, torch.Size, float], torch.Tensor]
"""(layer, shape [B, ...], share to drop) -> [B, ...] bool, whether each input is kept."""


class VectorProduct(nn.Module):
    """A layer that computes x ∘ w along the last dimension, with its only weight w."""


class Scaling(VectorProduct, nn.ParameterDict):
    """The vectors of an IA3 layer by adapter, as a layer: x ∘ l. peft gives l two dimensions."""

    __call__ = nn.Module.__call__  # a dictionary of parameters refuses calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (vector,) = self.values()
        product: torch.Tensor = x * vector.flatten()
        return product


class ExampleDropout(nn.Module):
    """Dropout with a separate mask for each example. Outside `dropping` it drops nothing.

    torch.nn.Dropout draws the masks of a whole batch from one generator. An example's mask would
    then depend on the other examples, and on the number of workers.

    Args:
        share: share of the inputs that is dropped.
        layer: name of the layer, which its masks depend on.
    """

    def __init__(self, share: float, *, layer: str) -> None:
        super().__init__()
        self.share, self.layer = share, layer
        self.keep_fn: KeepFn | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.keep_fn is None:
            return x
        # Dividing by the share that stays keeps the expectation, as in torch's dropout.
        return x * self.keep_fn(self.layer, x.shape, self.share).to(x.device) / (1 - self.share)

    def extra_repr(self) -> str:
        return f"share={self.share}"


def dropouts_of(model: nn.Module) -> list[ExampleDropout]:
    """Return the layers of a model that drop inputs in training."""
    return [module for module in model.modules() if isinstance(module, ExampleDropout)]


@contextmanager
def dropping(layers: Sequence[ExampleDropout], keep_fn: KeepFn) -> Iterator[None]:
    """Drop inputs of the layers inside the block, by the masks that `keep_fn` returns."""
    for layer in layers:
        layer.keep_fn = keep_fn
    try:
        yield
    finally:
        for layer in layers:
            layer.keep_fn = None

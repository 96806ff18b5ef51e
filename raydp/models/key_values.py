"""Keys and values of tokens that several sequences begin with, read once and used by all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import torch
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer


class Prefix:
    """Keys and values of tokens that several sequences begin with.

    Args:
        layers: for each layer (keys, values), each [1, heads, P, d], without a gradient.
    """

    def __init__(self, layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._layers = layers

    @property
    def length(self) -> int:
        """P, the tokens."""
        return self._layers[0][0].shape[2] if self._layers else 0

    @classmethod
    def of(cls, cache: DynamicCache, length: int) -> Prefix:
        """The first positions of the first row of what a pass has left."""
        layers = []
        for layer in cache.layers:
            assert isinstance(layer, CacheLayerMixin), "see can_share"
            assert layer.keys is not None, "a pass has been made"
            assert layer.values is not None, "a pass has been made"
            layers.append((layer.keys[:1, :, :length].detach(), layer.values[:1, :, :length].detach()))
        return cls(layers)

    def cache(self, rows: int, length: int | None = None) -> DynamicCache:
        """A cache that a pass may extend, with the first positions (all, without length) for each of its rows."""
        cache = DynamicCache()
        for index, (keys, values) in enumerate(self._layers):
            cache.update(
                keys[:, :, :length].expand(rows, -1, -1, -1), values[:, :, :length].expand(rows, -1, -1, -1), index
            )
        return cache


def can_share(cache: object) -> TypeGuard[DynamicCache]:
    """Whether every layer keeps all its keys and values: a sliding window or a recurrent state cannot be cut."""
    return isinstance(cache, DynamicCache) and all(type(layer) is DynamicLayer for layer in cache.layers)

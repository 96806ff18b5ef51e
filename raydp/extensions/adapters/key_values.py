"""Keys and values of tokens that several sequences begin with, computed once and shared."""

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
        """Return P, the number of tokens."""
        return self._layers[0][0].shape[2] if self._layers else 0

    @classmethod
    def of(cls, cache: DynamicCache, length: int) -> Prefix:
        """Take the first `length` positions of a cache's first row, after a pass."""
        layers = []
        for layer in cache.layers:
            assert isinstance(layer, CacheLayerMixin), "see can_share"
            assert layer.keys is not None, "a pass has been made"
            assert layer.values is not None, "a pass has been made"
            layers.append(
                # A shared prefix carries no gradient back.
                (layer.keys[:1, :, :length].detach(), layer.values[:1, :, :length].detach())
            )
        return cls(layers)

    def cache(self, rows: int, length: int | None = None) -> DynamicCache:
        """Return a cache of `rows` rows that a pass may extend, with `length` positions or all."""
        cache = DynamicCache()
        # expand shares the memory between rows; a pass concatenates, and so never writes into it.
        for index, (keys, values) in enumerate(self._layers):
            cache.update(
                keys[:, :, :length].expand(rows, -1, -1, -1),
                values[:, :, :length].expand(rows, -1, -1, -1),
                index,
            )
        return cache


def can_share(cache: object) -> TypeGuard[DynamicCache]:
    """Return whether each layer keeps all keys and values: a window or a state cannot be cut."""
    return isinstance(cache, DynamicCache) and all(
        type(layer) is DynamicLayer for layer in cache.layers
    )

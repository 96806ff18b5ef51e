"""How a model reads tokens: positions, the mask, and what an adapter puts before the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from raydp.plugins.registries import service


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A call of a model that reads tokens directly after its virtual tokens, if it has any.

    Attributes:
        model: the module to call.
        inputs: arguments of the call: tokens, positions, the mask of padded rows, and the cache.
        positions: [B, columns + L] the position ids among the inputs.
        columns: number of first output columns that belong to virtual tokens.
    """

    model: nn.Module
    inputs: dict[str, object]
    positions: torch.Tensor
    columns: int


def reading(
    model: nn.Module,
    input_ids: torch.Tensor,
    padding: torch.Tensor | None = None,
    *,
    cache_grows: bool = False,
) -> Reading:
    """Return the module and inputs of a call that reads virtual tokens right before the tokens.

    Args:
        input_ids: [B, L].
        padding: [B] number of padding columns on the left of each row; virtual tokens take the
            positions after them. None: no padding.
        cache_grows: put a prefix into a cache that grows with the tokens read, to decode from.
    """
    # peft's name for adapters that put virtual tokens before the text.
    config = getattr(model, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False) and model.has_active_enabled_adapter:
        read = service("read_virtual_tokens", needed_by="an adapter with virtual tokens")
        return cast(Reading, read(model, input_ids, padding, cache_grows))
    return plain_reading(model, input_ids, padding, (0, 0))


def plain_reading(
    model: nn.Module, ids: torch.Tensor, padding: torch.Tensor | None, before: tuple[int, int]
) -> Reading:
    """Return a call that reads tokens after so many other columns, and so many cached tokens."""
    device, rows, (columns, cached) = ids.device, len(ids), before
    numbers = torch.arange(columns + ids.shape[1], device=device)
    padded = torch.zeros(rows, dtype=torch.int64) if padding is None else padding
    start = padded[:, None].to(device)
    # Each example has its own row of positions, because trained position embeddings need
    # per-example inputs.
    positions = cached + (numbers - start).clamp(min=0)
    inputs = dict[str, object](input_ids=ids, position_ids=positions)
    # Padding is masked; the tokens of the cache are never padding.
    if padding is not None:
        read = torch.ones(rows, cached, dtype=torch.int64, device=device)
        inputs["attention_mask"] = torch.cat([read, (numbers >= start).long()], dim=1)
    return Reading(model=model, inputs=inputs, positions=positions, columns=columns)

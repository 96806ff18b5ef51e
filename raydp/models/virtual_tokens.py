"""Virtual tokens in front of the text.

Only this module knows how they get there, in training, utility and scores.

A soft prompt consists of embeddings that the model reads before the embeddings of the tokens
(Lester et al. 2021). A prefix consists of keys and values of every layer, as if the model had
already read tokens (Li and Liang 2021). The prefix is put into the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

if TYPE_CHECKING:
    from peft import PeftModel

KeysAndValues = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of each layer, each [rows, heads, tokens, d]."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A call of a model that reads tokens directly after its virtual tokens, if it has any.

    Attributes:
        model: the module to call.
        inputs: arguments of the call: tokens, positions, the mask if there is padding, and the
            cache.
        positions: [B, columns + L] the position ids among the inputs.
        columns: number of first output columns that belong to virtual tokens: m for a soft prompt,
            0 for a prefix.
    """

    model: nn.Module
    inputs: dict[str, object]
    positions: torch.Tensor
    columns: int


def soft_prompt(model: nn.Module, rows: int) -> torch.Tensor | None:
    """Return the virtual tokens of an enabled soft prompt; None for every other model.

    Every row is read from the embedding separately, so that each example has its own gradient. peft
    reads one row and repeats it. In eval mode it reads the weight without calling the embedding
    layer.

    Returns:
        [rows, m, H] embeddings, in the dtype of the prompt's weight.

    Raises:
        ValueError: the adapter is neither a soft prompt nor a prefix.
    """
    prompted, kind = _prompted(model)
    if prompted is None or kind == "PREFIX_TUNING":
        return None
    return (
        _embedded(prompted, rows)
        if kind == "PROMPT_TUNING"
        else prompted.get_prompt(batch_size=rows)
    )


def prefix_states(model: nn.Module, rows: int) -> KeysAndValues | None:
    """Return keys and values of an enabled prefix of m virtual tokens; None for other models.

    Every row is read from the embedding separately, as in `soft_prompt`. The layout within a row is
    peft's.

    Returns:
        Keys and values in the dtype of the base's weights.

    Raises:
        ValueError: the adapter is neither a soft prompt nor a prefix.
    """
    prompted, kind = _prompted(model)
    if prompted is None or kind != "PREFIX_TUNING":
        return None
    dtype = cast(PreTrainedModel, prompted.get_base_model()).dtype
    states = _embedded(prompted, rows).to(dtype)  # [rows, m, layers · 2 · heads · d]
    # peft lays out a row as keys, then values, for each layer.
    config = prompted.active_peft_config
    states = states.unflatten(2, (2 * config.num_layers, config.num_attention_heads, -1)).permute(
        2, 0, 3, 1, 4
    )
    return list(zip(states[::2], states[1::2], strict=True))


def reading(
    model: nn.Module,
    input_ids: torch.Tensor,
    padding: torch.Tensor | None = None,
    *,
    cache_grows: bool = False,
) -> Reading:
    """Return the module and inputs of a call that reads virtual tokens right before the tokens.

    peft's own forward does not fit. It would put a soft prompt before the padding, ignore
    positions, and repeat the prompt before every decoded token. It also appends to the prefix, so a
    recomputed layer could not read it again.

    Args:
        input_ids: [B, L].
        padding: [B] number of padding columns on the left of each row; virtual tokens take the
            positions after them. None: no padding.
        cache_grows: put a prefix into a cache that grows with the tokens read, to decode from.
    """
    # Read the virtual tokens, of which a model has one kind or none.
    rows, cached, inputs = len(input_ids), 0, dict[str, object](input_ids=input_ids)
    prompt, states = soft_prompt(model, rows), prefix_states(model, rows)
    device, virtual = input_ids.device, 0 if prompt is None else prompt.shape[1]
    # Number the columns after the padding: virtual tokens, then tokens.
    columns = torch.arange(virtual + input_ids.shape[1], device=device)
    start = (
        torch.zeros(rows, 1, dtype=torch.int64, device=device)
        if padding is None
        else padding[:, None].to(device)
    )
    peft = cast("PeftModel", model)  # used only if there are virtual tokens
    # A soft prompt is read as embeddings, a prefix as a cache.
    if prompt is not None:
        inputs = {
            "inputs_embeds": _after_padding(
                prompt, peft.get_input_embeddings()(input_ids), columns, start
            )
        }
    elif states is not None:
        cached = states[0][0].shape[2]
        inputs["past_key_values"] = DynamicCache(states) if cache_grows else FixedCache(states)
    # Each example has its own row of positions, because trained position embeddings need
    # per-example inputs.
    inputs["position_ids"] = positions = cached + (columns - start).clamp(min=0)
    # Padding is masked; the tokens of the cache are never padding.
    if padding is not None:
        read = torch.ones(rows, cached, dtype=torch.int64, device=device)
        inputs["attention_mask"] = torch.cat([read, (columns >= start).long()], dim=1)
    # Call the base model: peft's own forward would add the virtual tokens again.
    called = model if prompt is None and states is None else peft.get_base_model()
    return Reading(model=called, inputs=inputs, positions=positions, columns=virtual)


class FixedCache(Cache):
    """Keys and values that never change.

    Nothing is appended, and what is read afterwards is not kept.

    So a layer can be recomputed in the backward pass.
    """

    def __init__(self, states: KeysAndValues) -> None:
        super().__init__([_FixedLayer(keys, values) for keys, values in states])


class _FixedLayer(DynamicLayer):
    """One layer of a `FixedCache`: returns fixed and new keys and values, and stores nothing."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # transformers' own has no types
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cat([self.keys, key_states], dim=2), torch.cat(
            [self.values, value_states], dim=2
        )


def _prompted(model: nn.Module) -> tuple[PeftModel, str] | tuple[None, None]:
    """Return the model and peft's name for its virtual tokens; None if it has none."""
    # Imported here, because the import takes longer than checking a spec.
    from peft import PeftModel

    if not isinstance(model, PeftModel) or not model.active_peft_config.is_prompt_learning:
        return None, None
    if not model.has_active_enabled_adapter:
        return None, None
    kind = str(model.active_peft_config.peft_type.value)
    if kind not in ("PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING"):
        raise ValueError(
            f"model.adapter.type must be lora, a soft prompt or a prefix, got {kind}. It has no "
            "place in front of the tokens."
        )
    return model, kind


def _embedded(model: PeftModel, rows: int) -> torch.Tensor:
    """Return [rows, m, width] the adapter's embedding, repeated for each row."""
    # Each row has a lookup of its own, and thus a gradient of its own.
    embedding = cast(nn.Embedding, model.prompt_encoder[model.active_adapter].embedding)
    ids = torch.arange(embedding.num_embeddings, device=embedding.weight.device)
    embedded: torch.Tensor = embedding(ids.expand(rows, -1))
    return embedded


def _after_padding(
    prompt: torch.Tensor, tokens: torch.Tensor, columns: torch.Tensor, start: torch.Tensor
) -> torch.Tensor:
    """Return [B, m + L, H]: padding, then the prompt, then the tokens, which stay at the end."""
    # The column of `whole` that each output column takes: padding, then prompt, then tokens.
    whole, virtual = torch.cat([prompt.to(tokens.dtype), tokens], dim=1), prompt.shape[1]
    source = torch.where(columns < start, columns + virtual, columns - start)
    source = torch.where(columns < start + virtual, source, columns)
    return whole.gather(1, source[:, :, None].expand_as(whole))

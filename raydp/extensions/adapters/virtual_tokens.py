"""Virtual tokens in front of the text.

A soft prompt consists of embeddings that the model reads before the embeddings of the tokens
(Lester et al. 2021). A prefix consists of keys and values of every layer, as if the model had
already read tokens (Li and Liang 2021). The prefix is put into the cache.
"""

from __future__ import annotations

from typing import cast

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from raydp.models.reading import Reading, plain_reading

KeysAndValues = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of each layer, each [rows, heads, tokens, d]."""


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
    if kind == "PROMPT_TUNING":
        return _embedded(prompted, rows)
    return prompted.get_prompt(batch_size=rows)


def prefix_states(model: nn.Module, rows: int) -> KeysAndValues | None:
    """Return keys and values of an enabled prefix of m virtual tokens; None for other models.

    Every row is read separately, as in `soft_prompt`. The layout within a row is peft's.

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
    parts = states.unflatten(2, (2 * config.num_layers, config.num_attention_heads, -1))
    states = parts.permute(2, 0, 3, 1, 4)
    return list(zip(states[::2], states[1::2], strict=True))


def read_virtual_tokens(
    model: nn.Module, input_ids: torch.Tensor, padding: torch.Tensor | None, cache_grows: bool
) -> Reading:
    """Return what `raydp.models.reading.reading` does, of a model with virtual tokens; a service.

    peft's own forward does not fit. It would put a soft prompt before the padding, ignore
    positions, and repeat the prompt before every decoded token. It also appends to the prefix, so a
    recomputed layer could not read it again.

    Raises:
        ValueError: the adapter is neither a soft prompt nor a prefix.
    """
    # Call the base model: peft's own forward would add the virtual tokens again.
    peft, rows = cast("PeftModel", model), len(input_ids)
    states, base = prefix_states(model, rows), peft.get_base_model()
    # A prefix is read as a cache, a soft prompt as embeddings.
    if states is not None:
        read = plain_reading(base, input_ids, padding, (0, states[0][0].shape[2]))
        read.inputs["past_key_values"] = DynamicCache(states) if cache_grows else FixedCache(states)
        return read
    prompt = soft_prompt(model, rows)
    assert prompt is not None, "virtual tokens are a soft prompt or a prefix"
    read = plain_reading(base, input_ids, padding, (prompt.shape[1], 0))
    tokens = peft.get_input_embeddings()(read.inputs.pop("input_ids"))
    read.inputs["inputs_embeds"] = _after_padding(prompt, tokens, padding)
    return read


class FixedCache(Cache):
    """Keys and values that never change, so that a layer can be recomputed in the backward pass."""

    is_fixed = True

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
        return torch.cat([self.keys, key_states], 2), torch.cat([self.values, value_states], 2)


def _prompted(model: nn.Module) -> tuple[PeftModel, str] | tuple[None, None]:
    """Return the model and peft's name for its virtual tokens; None if it has none."""
    if not (isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning):
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
    prompt: torch.Tensor, tokens: torch.Tensor, padding: torch.Tensor | None
) -> torch.Tensor:
    """Return [B, m + L, H]: padding, then the prompt, then the tokens, which stay at the end."""
    whole, virtual = torch.cat([prompt.to(tokens.dtype), tokens], dim=1), prompt.shape[1]
    if padding is None:
        return whole
    # The column of `whole` that each output column takes: padding, then prompt, then tokens.
    columns = torch.arange(whole.shape[1], device=whole.device)
    start = padding[:, None].to(whole.device)
    source = torch.where(columns < start, columns + virtual, columns - start)
    source = torch.where(columns < start + virtual, source, columns)
    return whole.gather(1, source[:, :, None].expand_as(whole))

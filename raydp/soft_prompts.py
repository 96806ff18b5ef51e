"""The one place that knows how a soft prompt gets in front of the tokens: for training, utility and every score."""

from __future__ import annotations

import torch
from torch import nn


def soft_prompt(model: nn.Module, rows: int) -> torch.Tensor | None:
    """The virtual tokens of an enabled soft prompt, None for every other model.

    Every row is read from the embedding by itself: peft reads one and repeats it, and reads the weight without its
    layer where the model is not to be trained, and either way the gradient of an example could not be told.

    Returns:
        [rows, m, H] embeddings, in the type of the prompt's weight.

    Raises:
        ValueError: the adapter is a prefix of another kind, which lives in the cache and not in the input.
    """
    from peft import PeftModel, PeftType  # takes longer to import than all that checks a spec

    if not isinstance(model, PeftModel) or not model.active_peft_config.is_prompt_learning:
        return None
    if not model.has_active_enabled_adapter:
        return None
    kind = model.active_peft_config.peft_type
    if kind == PeftType.PROMPT_TUNING:
        embedding = model.prompt_encoder[model.active_adapter].embedding
        ids = torch.arange(embedding.num_embeddings, device=embedding.weight.device)
        return embedding(ids.expand(rows, -1))
    if kind == PeftType.P_TUNING:
        return model.get_prompt(batch_size=rows)
    raise ValueError(
        f"model.adapter.type must be lora or a soft prompt, got {kind.value}. It has no place in front of the tokens."
    )


def with_soft_prompt(
    model: nn.Module, input_ids: torch.Tensor, padding: torch.Tensor | None = None
) -> tuple[nn.Module, dict[str, torch.Tensor], int]:
    """What to call, with what, so that the model reads its soft prompt, if it has one, directly before the tokens.

    Args:
        input_ids: [B, L].
        padding: [B] columns on the left of each row that are padding; the prompt stands after them. None: no such.

    Returns:
        The module to call; {"input_ids": [B, L]} or {"inputs_embeds": [B, m + L, H]} for it; and m, the virtual tokens,
        0 without a soft prompt. Positions, masks and outputs are those of m + L columns. (peft's own forward would put
        the prompt before the padding, ignore positions, and put it again before every decoded token.)
    """
    prompt = soft_prompt(model, len(input_ids))
    if prompt is None:
        return model, {"input_ids": input_ids}, 0
    tokens = model.get_input_embeddings()(input_ids)
    whole, virtual = torch.cat([prompt.to(tokens.dtype), tokens], dim=1), prompt.shape[1]
    if padding is not None:
        columns, start = torch.arange(whole.shape[1], device=whole.device), padding[:, None].to(whole.device)
        source = torch.where(columns < start, columns + virtual, columns - start)  # padding, then the prompt
        source = torch.where(columns < start + virtual, source, columns)  # then the tokens, which stay
        whole = whole.gather(1, source[:, :, None].expand_as(whole))
    return model.get_base_model(), {"inputs_embeds": whole}, virtual

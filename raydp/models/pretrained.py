"""A loaded base model."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class PretrainedModel:
    """A base model, frozen, in eval mode.

    Attributes:
        name: the name in the spec.
        weight_hash: SHA-256 (hex) of the weight files.
        note: what a reader of results must know about the weights, or "".
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    weight_hash: str
    note: str = ""

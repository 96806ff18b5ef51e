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
        quantization: precision of the linear layers where the model is used, "nf4" or "int8". The
            weights are whole, so that processes can share them, until
            `raydp.models.quantization.quantise` replaces them.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    weight_hash: str
    note: str = ""
    quantization: str | None = None

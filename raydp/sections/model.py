"""What is trained, and what it is trained on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from raydp.sections.base import Positive, Section

VIRTUAL = ("soft_prompt", "prefix")
"""Adapters that stand before the text."""


class AdapterSpec(Section):
    """What is trained: a LoRA adapter, a soft prompt, a prefix (all peft's) or, with type "none", every weight.

    Attributes:
        type: "lora", "soft_prompt" (prompt tuning; Lester et al. 2021), "prefix" (prefix tuning without its
            reparametrisation; Li and Liang 2021) or "none" (full fine-tuning).
        r: rank of the LoRA adapter.
        alpha: scale of the LoRA adapter; the update is alpha / r times B A.
        target_modules: names of the linear layers that get a LoRA adapter.
        layers_to_transform: positions of the decoder layers that get one; all by default.
        num_virtual_tokens: length of the soft prompt or prefix. Every one stands before the tokens: as a trained
            embedding, or as trained keys and values of every layer.
    """

    type: Literal["lora", "soft_prompt", "prefix", "none"] = "lora"
    r: Annotated[int, Field(ge=1, le=4096)] = 8
    alpha: Positive = 16.0
    target_modules: tuple[str, ...] = ("q_proj", "v_proj")
    layers_to_transform: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    num_virtual_tokens: Annotated[int, Field(ge=1, le=4096)] = 20

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> AdapterSpec:
        for name, field in type(self).model_fields.items():
            value, owners = getattr(self, name), VIRTUAL if name == "num_virtual_tokens" else ("lora",)
            if name != "type" and self.type not in owners and value != field.default:
                raise ValueError(
                    f"model.adapter.{name} must be left out with type {self.type!r}, got {value}. "
                    f"Remove it, or use type {' or '.join(map(repr, owners))}."
                )
        return self

    @model_serializer(mode="wrap")
    def _without_what_does_not_apply(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A new type leaves the identity of the runs of before as it is: theirs always had LoRA's fields in it."""
        values: dict[str, Any] = handler(self)
        prompt = ("type", "num_virtual_tokens")
        return {k: v for k, v in values.items() if k == "type" or (k in prompt) == (self.type in VIRTUAL)}

    @property
    def virtual_tokens(self) -> int:
        """Positions that are taken before the text."""
        return self.num_virtual_tokens if self.type in VIRTUAL else 0


class ModelSpec(Section):
    """The base model.

    Attributes:
        name: `tiny`, `smollm2-135m-instruct-q4`, a local folder or a Hugging Face hub id.
        adapter: what is trained on it.
        dtype: of the base weights under an adapter. In full fine-tuning the weights are float32 and the matrix products
            of training are computed in this type (autocast).
    """

    name: str
    adapter: AdapterSpec = AdapterSpec()
    dtype: Literal["float32", "bfloat16"] = "float32"

    @property
    def weight_dtype(self) -> Literal["float32", "bfloat16"]:
        """The type of the base weights in memory."""
        return "float32" if self.adapter.type == "none" else self.dtype

    @property
    def uses_autocast(self) -> bool:
        """Whether training computes matrix products in another type than the weights'."""
        return self.dtype != self.weight_dtype

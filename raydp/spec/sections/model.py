"""The sections on the base model and its adapter."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    AliasChoices,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from raydp.spec.sections.base import Positive, Section

VIRTUAL = ("soft_prompt", "prefix")
"""Types of adapters that put virtual tokens before the text."""
ALL_LINEAR = "all-linear"
"""peft's name for all linear layers but the output layer."""


class AdapterSpec(Section):
    """The trained weights: a LoRA adapter, a soft prompt, a prefix (from peft) or, with type "none", all weights."""

    type: Literal["lora", "soft_prompt", "prefix", "none"] = "lora"
    """`lora`, `soft_prompt` (prompt tuning; Lester et al. 2021), `prefix` (prefix tuning without its reparametrisation;
    Li and Liang 2021) or `none` (full fine-tuning)."""
    r: Annotated[int, Field(ge=1, le=4096)] = 8
    """Rank of the LoRA adapter."""
    alpha: Annotated[Positive, Field(validation_alias=AliasChoices("alpha", "lora_alpha"))] = 16.0
    """Scale of the LoRA adapter: the update is alpha / r times B A. peft's name `lora_alpha` is the same."""
    use_rslora: bool = False
    """Whether the update is alpha / sqrt(r) times B A instead, so that its size does not fall with the rank
    (Kalajdzievski 2023)."""
    target_modules: Annotated[tuple[str, ...], Field(min_length=1)] | Literal["all-linear"] = ("q_proj", "v_proj")
    """Names of the linear layers that get a LoRA adapter, or `all-linear` for all but the output layer."""
    layers_to_transform: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Positions of the decoder layers that get a LoRA adapter; all layers by default."""
    num_virtual_tokens: Annotated[int, Field(ge=1, le=4096)] = 20
    """Length of the soft prompt or prefix, in tokens. Every virtual token stands before the text: as a trained
    embedding, or as trained keys and values of every layer."""

    @model_validator(mode="before")
    @classmethod
    def _one_name_for_the_scale(cls, values: object) -> object:
        if isinstance(values, dict) and {"alpha", "lora_alpha"} <= values.keys():
            raise ValueError(
                "model.adapter.alpha must be given once, got lora_alpha too, which is the same. Remove one."
            )
        return values

    @field_validator("target_modules", mode="before")
    @classmethod
    def _names_or_all(cls, value: object) -> object:
        if isinstance(value, str) and value != ALL_LINEAR:
            raise ValueError(
                f"model.adapter.target_modules must be a list of names or {ALL_LINEAR!r}, got {value!r}. Write "
                f"[{value}]."
            )
        return value

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
    def _without_what_does_not_apply(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Leave out the fields of other types. The identity of earlier runs contains LoRA's fields alone."""
        values: dict[str, object] = handler(self)
        prompt = ("type", "num_virtual_tokens")
        unused = () if self.use_rslora else ("use_rslora",)
        return {
            k: v
            for k, v in values.items()
            if k not in unused and (k == "type" or (k in prompt) == (self.type in VIRTUAL))
        }

    @property
    def virtual_tokens(self) -> int:
        """Return the number of positions before the text."""
        return self.num_virtual_tokens if self.type in VIRTUAL else 0


class ModelSpec(Section):
    """The base model."""

    name: str
    """`tiny`, `smollm2-135m-instruct-q4`, a local folder, a Hugging Face hub id, or a network such as mlp:1x8x8:10."""
    adapter: AdapterSpec = AdapterSpec()
    """What is trained on the base model."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the base weights under an adapter. In full fine-tuning the weights are float32 and the matrix products of
    training are computed in this type (autocast)."""

    @property
    def weight_dtype(self) -> Literal["float32", "bfloat16"]:
        """Return the type of the base weights in memory."""
        return "float32" if self.adapter.type == "none" else self.dtype

    @property
    def uses_autocast(self) -> bool:
        """Return whether training computes matrix products in another type than the weights'."""
        return self.dtype != self.weight_dtype

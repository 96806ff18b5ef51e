"""The sections on the base model and its adapter."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AliasChoices, Field, field_validator, model_validator

from raydp.spec.sections.section import LATER, Of, Positive, Section

VIRTUAL = ("soft_prompt", "prefix")
"""Types of adapters that put virtual tokens before the text."""
WHOLE = ("none", "bitfit")
"""Types without an adapter: the base model's own weights are trained."""
ALL_LINEAR = "all-linear"
"""peft's name for all linear layers but the output layer."""
IA3_TARGETS, IA3_FEEDFORWARD = ("k_proj", "v_proj", "down_proj"), ("down_proj",)
"""The layers that Liu et al. (2022) scale, in a Llama's names.

They are keys and values, and the inputs of down_proj.
"""

_LORA = Of("type", ("lora",), written_with=("none",))
_PEFT = Of("type", ("lora", "ia3"), written_with=("none",))
"""Full fine-tuning has LoRA's fields in its identity, so that earlier runs keep their ids."""


class AdapterSpec(Section):
    """The trained weights: an adapter of peft (LoRA, IA3, a soft prompt, a prefix) or weights of
    the base itself."""

    written_in: ClassVar[str] = "model.adapter"

    type: Literal["lora", "ia3", "soft_prompt", "prefix", "bitfit", "none"] = "lora"
    """`lora`, `ia3` (factors of the outputs or inputs of linear layers; Liu et al. 2022),
    `soft_prompt` (prompt tuning; Lester et al. 2021), `prefix` (prefix tuning without its
    reparametrisation; Li and Liang 2021), `bitfit` (the base's biases, and the weights of its
    norms; Ben Zaken et al. 2022) or `none` (full fine-tuning)."""
    r: Annotated[int, Field(ge=1, le=4096), _LORA] = 8
    """Rank of the LoRA adapter."""
    alpha: Annotated[
        Positive, Field(validation_alias=AliasChoices("alpha", "lora_alpha")), _LORA
    ] = 16.0
    """Scale of the LoRA adapter: the update is alpha / r times B A.

    peft's name `lora_alpha` is the same.
    """
    use_rslora: Annotated[bool, _LORA, LATER] = False
    """Whether the update is alpha / sqrt(r) times B A instead, so that its size does not fall with
    the rank (Kalajdzievski 2023)."""
    use_dora: Annotated[bool, _LORA, LATER] = False
    """Whether the adapter also learns the norm of each row of the adapted matrices (DoRA; Liu et
    al. 2024)."""
    target_modules: Annotated[
        Annotated[tuple[str, ...], Field(min_length=1)] | Literal["all-linear"], _PEFT
    ] = ("q_proj", "v_proj")
    """Names of the linear layers that get an adapter, or `all-linear` for all but the output layer.

    Of `ia3` the default is k_proj, v_proj and down_proj.
    """
    layers_to_transform: Annotated[tuple[Annotated[int, Field(ge=0)], ...] | None, _PEFT] = None
    """Positions of the decoder layers that get an adapter; all layers by default."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1), _LORA, LATER] = 0.0
    """Share of a LoRA adapter's inputs that is set to 0 in training.

    The masks depend on the sweep's key, the run, the step, the example and the layer alone, so a
    step that is repeated after a fault drops the same inputs.
    """
    modules_to_save: Annotated[tuple[str, ...], _PEFT, LATER] = ()
    """Names of modules of the base, such as lm_head, that are trained as a whole and saved with the
    adapter."""
    feedforward_modules: Annotated[tuple[str, ...], Of("type", ("ia3",))] = ()
    """Those target modules of `ia3` whose inputs are scaled in place of their outputs.

    Default: down_proj, if target_modules is left out.
    """
    num_virtual_tokens: Annotated[int, Field(ge=1, le=4096), Of("type", VIRTUAL)] = 20
    """Length of the soft prompt or prefix, in tokens.

    Every virtual token stands before the text: as a trained embedding, or as trained keys and
    values of every layer.
    """

    @model_validator(mode="before")
    @classmethod
    def _one_name_for_the_scale(cls, values: object) -> object:
        # pydantic would take one of the two silently.
        if isinstance(values, dict) and {"alpha", "lora_alpha"} <= values.keys():
            raise ValueError(
                "model.adapter.alpha must be given once, got lora_alpha too, which is the same. "
                "Remove one."
            )
        return values

    @model_validator(mode="before")
    @classmethod
    def _layers_of_ia3(cls, values: object) -> object:
        if (
            isinstance(values, dict)
            and values.get("type") == "ia3"
            and "target_modules" not in values
        ):
            # The default of IA3 differs from LoRA's, so it is set before validation.
            return {"feedforward_modules": IA3_FEEDFORWARD, **values, "target_modules": IA3_TARGETS}
        return values

    @field_validator("target_modules", mode="before")
    @classmethod
    def _names_or_all(cls, value: object) -> object:
        if isinstance(value, str) and value != ALL_LINEAR:
            raise ValueError(
                f"model.adapter.target_modules must be a list of names or {ALL_LINEAR!r}, got "
                f"{value!r}. Write [{value}]."
            )
        return value

    @model_validator(mode="after")
    def _inputs_of_targets(self) -> AdapterSpec:
        others = [name for name in self.feedforward_modules if name not in self.target_modules]
        if others and self.target_modules != ALL_LINEAR:
            raise ValueError(
                f"model.adapter.feedforward_modules must be among target_modules, got {others}. "
                "Add them there."
            )
        return self

    @model_validator(mode="after")
    def _whole_or_adapted(self) -> AdapterSpec:
        both = [name for name in self.modules_to_save if name in self.target_modules]
        if both and self.target_modules != ALL_LINEAR:
            raise ValueError(
                "model.adapter.modules_to_save must not hold layers of target_modules, got "
                f"{', '.join(both)} in both. Train it as a whole or with an adapter: remove it "
                "from one of the two."
            )
        return self

    @property
    def virtual_tokens(self) -> int:
        """Return the number of positions before the text."""
        return self.num_virtual_tokens if self.type in VIRTUAL else 0

    @property
    def trains_base(self) -> bool:
        """Return whether weights of the base are trained, so that the whole model is saved."""
        return self.type in WHOLE


class ModelSpec(Section):
    """The base model."""

    name: str
    """`tiny`, `smollm2-135m-instruct-q4`, a local folder, a Hugging Face hub id, or a network such
    as mlp:1x8x8:10."""
    adapter: AdapterSpec = AdapterSpec()
    """The part that is trained on the base model: an adapter, or weights of the model itself."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the base weights under an adapter.

    With type `none` or `bitfit` the weights are float32 and the matrix products of training are
    computed in this type (autocast). A GPU computes the products of an adapter in this type, too; a
    CPU computes them in float32, so its results differ in their last digits.
    """

    quantization: Annotated[Literal["nf4", "int8"] | None, LATER] = None
    """Precision of the frozen linear layers under an adapter, by bitsandbytes: `nf4` (4 bits;
    Dettmers et al. 2023) or `int8` (Dettmers et al. 2022). Embeddings, norms, the output layer and
    the adapter keep theirs."""

    @model_validator(mode="after")
    def _few_bits_are_frozen(self) -> ModelSpec:
        if self.quantization and (self.adapter.trains_base or self.adapter.use_dora):
            what = "use_dora" if self.adapter.use_dora else f"type {self.adapter.type!r}"
            raise ValueError(
                f"model.quantization must be left out with model.adapter {what}, got "
                f"{self.quantization}: the base's weights are then trained or read as numbers. Use "
                "another adapter, or leave it out."
            )
        return self

    @model_validator(mode="after")
    def _modules_are_trained_in_float32(self) -> ModelSpec:
        if self.adapter.modules_to_save and self.dtype != "float32":
            raise ValueError(
                f"model.dtype must be float32 with adapter.modules_to_save, got {self.dtype}: "
                "these modules are trained in float32 and read what the base computes. Write "
                "float32, or leave modules_to_save out."
            )
        return self

    @property
    def weight_dtype(self) -> Literal["float32", "bfloat16"]:
        """Return the type of the base weights in memory."""
        return "float32" if self.adapter.trains_base else self.dtype

    def autocasts_on(self, device_type: str) -> bool:
        """Return whether training computes matrix products in another type than the weights'.

        Trained weights are float32 in every case. A GPU computes the products of an adapter on a
        bfloat16 base in bfloat16, because in float32 they would take nearly as long as the products
        of the base.
        """
        return self.dtype != self.weight_dtype or (
            device_type == "cuda" and self.dtype == "bfloat16"
        )

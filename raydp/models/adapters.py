"""Trained weights on a base model: attach an adapter, find, reset and save the trained weights."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer
from transformers.pytorch_utils import Conv1D

from raydp.models.lookup import target_names_message
from raydp.models.one_at_a_time import one_at_a_time
from raydp.models.quantization import without_bitsandbytes
from raydp.models.reading import reading
from raydp.spec.sections.model import ALL_LINEAR, AdapterSpec

if TYPE_CHECKING:
    from peft import IA3Config, LoraConfig, PeftModel, PrefixTuningConfig, PromptTuningConfig

    from raydp.models.pretrained import PretrainedModel

MODULES_TO_SAVE = ".modules_to_save."
"""Part of peft's name of a weight of the base that is trained beside an adapter."""
MAGNITUDE = ".lora_magnitude_vector."
"""Part of peft's name of DoRA's magnitudes, which start as the norms of the base's rows."""
_PARTS = {
    "none": ("",),
    "lora": (".lora_A.", ".lora_B.", MAGNITUDE, MODULES_TO_SAVE),
    "ia3": (".ia3_l.", MODULES_TO_SAVE),
}
"""Type of adapter -> parts of the names of its trained weights."""
PREFIX_STD = 0.3
"""Standard deviation of a prefix before training: keys and values of the size of the model's own.

peft's 1 is more than ten times the values of SmolLM2's first layer, and doubles the loss. Equal
values (0) would get equal gradients.
"""


@one_at_a_time()
def attach_adapter(base: PretrainedModel, adapter: AdapterSpec, *, copy: bool = True) -> nn.Module:
    """Add the adapter to the base model, in place. Its weights are fp32, whatever the base's dtype.

    Args:
        copy: copy the weights for full fine-tuning, because the base's memory may be read-only. A
            model that is sharded next needs no copy.

    Returns:
        The peft model, or the base model itself if weights of its own are trained.

    Raises:
        ValueError: the adapter does not fit the model's layers.
    """
    # The base's own weights are trained, so no peft model is needed.
    if adapter.trains_base:
        for parameter in base.model.parameters():
            parameter.data = parameter.data.to(torch.float32, copy=copy)  # fp32 master weights
        # Full fine-tuning trains all weights, bitfit only biases and norms.
        base.model.requires_grad_(adapter.type == "none")
        trained = trainable_parameters(base.model, adapter)
        if not trained:
            raise ValueError(
                f"model.adapter.type must fit {base.name!r}, got 'bitfit': it has no biases and no "
                "norms. Use another."
            )
        for parameter in trained.values():
            parameter.requires_grad_(True)
        return base.model
    # peft imports bitsandbytes wherever it is installed, which costs every process a second.
    with without_bitsandbytes() if base.quantization is None else nullcontext():
        return _with_adapter(base, adapter)


def _with_adapter(base: PretrainedModel, adapter: AdapterSpec) -> PeftModel:
    """Attach an adapter of peft."""
    from peft import PromptTuningConfig, get_peft_model

    from raydp.models.peft_layers import with_own_layers

    name = Path(base.name).name
    config = _peft_config(adapter, name, base.model)
    # peft records this name. It must be the spec's name, never a path of this machine.
    base.model.name_or_path = base.model.config._name_or_path = name
    try:
        with building_peft_model():
            model = cast("PeftModel", get_peft_model(base.model, config).eval())  # not mixed
        with_own_layers(model)
    except ValueError as error:
        # peft asks for a field of its own, which no spec has.
        if str(error).startswith("Please specify"):
            raise ValueError(
                f"model.adapter.type must fit {base.name!r}, got {adapter.type!r}: peft cannot "
                "read the model's configuration. Use type 'lora'."
            ) from error
        raise ValueError(f"model.adapter must fit the layers of {base.name!r}: {error}") from error
    # Check the result: peft accepts names that fit nothing, and widths that do not match.
    if adapter.type in ("lora", "ia3"):
        _check_targets(model, adapter, base.name)
        _check_saved_modules(model, adapter)
    elif isinstance(config, PromptTuningConfig):
        _check_width(model, config.token_dim, base.name)
    else:
        _check_attention(model, base.name)
    return model


@contextmanager
def building_peft_model() -> Iterator[None]:
    """Attach or load an adapter without a warning that users cannot act on.

    `PeftModel.__init__` of peft 0.21 reads `is_gradient_checkpointing`, a property that
    transformers 5 deprecates in favour of `is_activation_checkpointing`. Remove this filter once a
    later peft has fixed it.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning
        )
        yield


def _peft_config(
    adapter: AdapterSpec, base: str, model: PreTrainedModel
) -> IA3Config | LoraConfig | PrefixTuningConfig | PromptTuningConfig:
    """Return peft's configuration of an adapter."""
    from peft import IA3Config, LoraConfig, PrefixTuningConfig, PromptTuningConfig

    # A prefix or a soft prompt has virtual tokens and no target layers.
    if adapter.virtual_tokens:
        kind = PrefixTuningConfig if adapter.type == "prefix" else PromptTuningConfig
        return kind(
            num_virtual_tokens=adapter.virtual_tokens,
            # peft itself reads some spellings of this field, but not MPT's n_heads.
            num_attention_heads=getattr(model.config, "num_attention_heads", None),
            task_type="CAUSAL_LM",
            base_model_name_or_path=base,
        )
    from raydp.models.peft_layers import NarrowLinear

    targets = (
        _all_linear(model) if adapter.target_modules == ALL_LINEAR else list(adapter.target_modules)
    )
    # Name layers as peft does, in full where a short name would match too many.
    layers, whole = adapter.layers_to_transform, _whole_modules(model, adapter.modules_to_save)
    if adapter.type == "ia3":
        if unknown := sorted(set(adapter.feedforward_modules) - set(targets)):
            raise ValueError(
                "model.adapter.feedforward_modules must be linear layers of the model "
                f"({', '.join(targets)}), got {', '.join(unknown)}. Correct it."
            )
        return IA3Config(
            target_modules=_in_layers(model, targets, layers),
            feedforward_modules=_in_layers(model, adapter.feedforward_modules, layers),
            modules_to_save=whole,
            task_type="CAUSAL_LM",
            base_model_name_or_path=base,
        )
    # What is left is LoRA, with or without DoRA and rank stabilisation.
    config = LoraConfig(
        r=adapter.r,
        lora_alpha=adapter.alpha,  # type: ignore[arg-type]  # peft only divides it
        use_rslora=adapter.use_rslora,
        use_dora=adapter.use_dora,
        target_modules=targets,
        layers_to_transform=list(layers) if layers is not None else None,
        modules_to_save=whole,
        lora_dropout=adapter.lora_dropout,
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    )
    # Replace peft's linear layer, whose per-example gradients would cost a wide product.
    config._register_custom_module({nn.Linear: NarrowLinear})
    return config


def _all_linear(model: PreTrainedModel) -> list[str]:
    """Return the names of the linear layers but for the output layer, as peft reads `all-linear`.

    peft itself takes no `layers_to_transform` with that word.
    """
    output = model.get_output_embeddings()
    linear = (
        n for n, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D) and m is not output
    )
    return sorted({name.rpartition(".")[2] for name in linear})


def _whole_modules(model: PreTrainedModel, names: Sequence[str]) -> list[str] | None:
    """Return the full names of modules, or None. peft would also match names that end like one."""
    found = [
        next(
            (
                full
                for full, _ in model.named_modules()
                if full == name or full.endswith(f".{name}")
            ),
            name,
        )
        for name in names
    ]
    return found or None


def _in_layers(
    model: PreTrainedModel, targets: Sequence[str], layers: Sequence[int] | None
) -> list[str]:
    """Return the names of target modules, in full if only some layers have them.

    IA3 has no word for layers.
    """
    if layers is None:
        return list(targets)
    named = ((name, re.search(r"\.(\d+)\.", name)) for name, _ in model.named_modules())
    ends = tuple(f".{target}" for target in targets)
    return [
        name for name, found in named if found and int(found[1]) in layers and name.endswith(ends)
    ]


def check_modules_to_save(
    model: PreTrainedModel, adapter: AdapterSpec, quantization: str | None
) -> None:
    """Check that modules to train whole hold no layers with an adapter, or in few bits.

    Args:
        model: the base model, with weights or without.

    Raises:
        ValueError: one has. The message names the module and the layer.
    """
    named, output = dict(model.named_modules()), model.get_output_embeddings()
    targets = _all_linear(model) if adapter.target_modules == ALL_LINEAR else adapter.target_modules
    ends = tuple(f".{target}" for target in targets)
    # A module's inner layers decide: a whole decoder layer may hold adapted projections.
    for module, full in zip(
        adapter.modules_to_save, _whole_modules(model, adapter.modules_to_save) or (), strict=True
    ):
        for name, layer in named[full].named_modules(prefix=full) if full in named else ():
            # Quantised weights take no gradient.
            if quantization is not None and type(layer) is nn.Linear and layer is not output:
                raise ValueError(
                    "model.adapter.modules_to_save must not name layers that model.quantization "
                    f"freezes, got {module!r} with {name} in {quantization}. Adapt it as one of "
                    "target_modules, or leave quantization out."
                )
            # The decoder layer's number is compared with `layers_to_transform`.
            number = re.search(r"\.(\d+)\.", name)
            chosen = adapter.layers_to_transform
            adapted = chosen is None or (number is not None and int(number[1]) in chosen)
            if adapted and f".{name}".endswith(ends):
                raise ValueError(
                    "model.adapter.modules_to_save must not hold layers of target_modules, got "
                    f"{module!r} with {name}. Train it as a whole or with an adapter: remove it "
                    "from one of the two."
                )


def _check_saved_modules(model: nn.Module, adapter: AdapterSpec) -> None:
    """Raise ValueError for modules to train as a whole that the model does not have."""
    saved = [name for name, _ in model.named_parameters() if MODULES_TO_SAVE in name]
    missing = [
        m
        for m in adapter.modules_to_save
        if not any(f".{m}{MODULES_TO_SAVE}" in f".{name}" for name in saved)
    ]
    if missing:
        known = {
            name.rpartition(".")[2]
            for name, module in model.named_modules()
            if hasattr(module, "weight")
        }
        raise ValueError(
            f"model.adapter.modules_to_save must name modules with weights, got {missing}. There "
            f"are {', '.join(sorted(known - {'default', 'base_layer'}))}."
        )


def _check_width(model: PeftModel, width: int, base: str) -> None:
    """Raise ValueError if virtual tokens and embeddings differ in width.

    peft takes the width from the configuration, which some models do not use for their embeddings.
    """
    tokens = model.get_input_embeddings().embedding_dim
    if tokens != width:
        raise ValueError(
            f"model.adapter.type must fit {base!r}, got 'soft_prompt': virtual tokens of width "
            f"{width} cannot stand before embeddings of width {tokens}. Use type 'lora'."
        )


def _check_attention(model: nn.Module, base: str) -> None:
    """Raise ValueError unless all layers attend to the whole prefix and store it as peft does."""
    # A local layer would drop the prefix as soon as it leaves the window.
    local = "local" in (getattr(causal_model(model).config, "attention_layers", None) or ())
    kept = DynamicCache(config=causal_model(model).config).layers
    if not local and all(type(layer) is DynamicLayer for layer in kept):
        # Try a pass of two tokens: the shapes of keys and values are not known otherwise.
        how = reading(
            model, torch.zeros(1, 2, dtype=torch.int64, device=causal_model(model).device)
        )
        try:
            with torch.no_grad():
                how.model(**how.inputs, use_cache=False)
        except RuntimeError:  # keys and values have another shape
            pass
        else:
            return
    raise ValueError(
        f"model.adapter.type must fit {base!r}, got 'prefix': its layers do not keep all keys and "
        "values, or keep them in another form. Use type 'lora' or 'soft_prompt'."
    )


def _check_targets(model: nn.Module, adapter: AdapterSpec, base: str) -> None:
    """Raise ValueError for target names without a linear layer, which peft accepts silently."""
    if adapter.target_modules == ALL_LINEAR:
        return
    part = ".ia3_l." if adapter.type == "ia3" else ".lora_A."
    adapted = [name for name, _ in model.named_parameters() if part in name]
    idle = [
        t
        for t in adapter.target_modules
        if not any(f".{t}{part}" in f".{name}" for name in adapted)
    ]
    # Name what the user can choose instead.
    if idle:
        linear = {
            n.rsplit(".", 1)[-1]
            for n, m in causal_model(model).named_modules()
            if hasattr(m, "in_features")
        }
        raise ValueError(target_names_message(base, idle, linear - {"default"}))


def without_adapter(model: nn.Module) -> AbstractContextManager[None]:
    """Switch the adapter off for the block. A model without an adapter stays unchanged."""
    if not hasattr(model, "disable_adapter"):
        return nullcontext()
    disabled: AbstractContextManager[None] = cast("PeftModel", model).disable_adapter()
    return disabled


def trainable_parameters(model: nn.Module, adapter: AdapterSpec) -> dict[str, nn.Parameter]:
    """Return the trained parameters by name, sorted; a tied weight occurs once."""
    named = sorted(model.named_parameters())  # each tensor once
    if adapter.type == "bitfit":
        chosen = set(_biases_and_norms(model))
        return {name: parameter for name, parameter in named if name in chosen}
    return {
        n: p
        for n, p in named
        if any(part in n for part in _PARTS.get(adapter.type, ("prompt_encoder.",)))
    }


def _biases_and_norms(model: nn.Module) -> Iterator[str]:
    """Yield the names of all biases, and of the weights of layers whose class is called a norm."""
    for path, module in model.named_modules():
        # Norms are recognised by name, because every architecture has a class RMSNorm of its own.
        norm = type(module).__name__.endswith("Norm")
        yield from (f"{path}.{own}" for own in module._parameters if norm or own == "bias")


def starting_values(model: nn.Module, adapter: AdapterSpec) -> dict[str, torch.Tensor]:
    """Return a copy of those trained parameters that start from the base's values, by name."""
    trained = trainable_parameters(model, adapter).items()
    return {n: p.detach().clone() for n, p in trained if _starts_from_base(n, adapter)}


def _starts_from_base(name: str, adapter: AdapterSpec) -> bool:
    return adapter.trains_base or MODULES_TO_SAVE in name or MAGNITUDE in name


def causal_model(model: nn.Module) -> PreTrainedModel:
    """Return the transformers model inside a peft model, or the model itself."""
    inner = cast("PeftModel", model).get_base_model() if hasattr(model, "get_base_model") else model
    return cast(PreTrainedModel, inner)


def decoder_layers(model: nn.Module) -> tuple[nn.Module, nn.ModuleList] | None:
    """Return the backbone of a language model and its decoder layers; None if not in one list."""
    causal = causal_model(model)
    backbone = getattr(causal, causal.base_model_prefix, None)
    layers = getattr(backbone, "layers", None)
    return (
        (backbone, layers)
        if isinstance(backbone, nn.Module) and isinstance(layers, nn.ModuleList)
        else None
    )


def shardable_layers(model: nn.Module) -> nn.ModuleList:
    """Return the parts of a model that are gathered one at a time if its weights are sharded.

    Raises:
        ValueError: the model's decoder layers are not known.
    """
    backbone_and_layers = decoder_layers(model)
    if backbone_and_layers is None:
        raise ValueError(
            f"cluster.sharding must be none for {type(causal_model(model)).__name__}, got full. "
            "Its decoder layers are not in one list; use another base model."
        )
    return backbone_and_layers[1]


@contextmanager
def skipping_layers(model: nn.Module, count: int) -> Iterator[None]:
    """Leave out the first `count` decoder layers for the block. Inputs must enter layer `count`."""
    backbone_and_layers = decoder_layers(model)
    assert backbone_and_layers is not None
    backbone, layers = backbone_and_layers
    # Assigning the list keeps the layers themselves, so their hooks and weights stay.
    try:
        backbone.layers = layers[count:]
        yield
    finally:
        backbone.layers = layers


@contextmanager
def calling(model: nn.Module, forward_fn: Callable[..., torch.Tensor]) -> Iterator[None]:
    """Replace a model's forward function for the block; hooks, which gather shards, still run."""
    # An instance attribute shadows the class's forward; deleting it brings the class's back.
    own = model.__dict__.get("forward")
    model.forward = forward_fn
    try:
        yield
    finally:
        del model.forward
        if own is not None:
            model.forward = own


def initialise(
    parameters: dict[str, nn.Parameter],
    adapter: AdapterSpec,
    base: dict[str, torch.Tensor],
    seed: int,
) -> None:
    """Set the trained parameters to their start.

    LoRA: A is Kaiming uniform from the seed, as in peft; B is zero. IA3: ones. A soft prompt:
    standard normal from the seed, peft's default (its `prompt_tuning_init` RANDOM). A prefix:
    normal with `PREFIX_STD` from the seed. The base's own weights: the values in `base`
    (`starting_values`).
    """
    # One generator draws in the order of sorted names, so the start depends on the seed alone.
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in parameters.items():
            if _starts_from_base(name, adapter):
                parameter.copy_(base[name])
            elif adapter.virtual_tokens:
                std = PREFIX_STD if adapter.type == "prefix" else 1.0
                parameter.copy_(torch.empty(parameter.shape).normal_(std=std, generator=generator))
            elif ".lora_A." in name:
                # This is Kaiming uniform with a = sqrt(5), as in torch's Linear and in peft.
                bound = math.sqrt(3) * math.sqrt(2 / (1 + 5)) / math.sqrt(parameter.shape[1])
                start = torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator)
                parameter.copy_(start)
            elif ".ia3_l." in name:
                parameter.fill_(1)
            else:
                # LoRA's B is zero, so that training starts at the base model.
                parameter.zero_()


@one_at_a_time()
def save_trained(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase | None,
    folder: Path,
    state_dict: dict[str, torch.Tensor] | None = None,
    *,
    own_tokenizer: bool = False,
) -> None:
    """Save the trained weights: peft's two files for an adapter, or the whole model.

    Args:
        state_dict: the model's weights, if the model does not hold them itself.
        own_tokenizer: save the tokenizer beside an adapter too, because it differs from the base's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # A base of raydp's own has no config on the hub; peft looks for one and warns.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Could not find a config file.*")
        if hasattr(model, "peft_config"):
            peft = cast("PeftModel", model)
            peft.save_pretrained(str(folder), state_dict=state_dict, save_embedding_layers=False)
        else:
            cast(PreTrainedModel, model).save_pretrained(folder, state_dict=state_dict)
    if hasattr(model, "peft_config"):
        (folder / "README.md").unlink(missing_ok=True)  # peft's empty model card
    # A whole model is used with its tokenizer; an adapter finds it at its base.
    if tokenizer is not None and (own_tokenizer or not hasattr(model, "peft_config")):
        tokenizer.save_pretrained(folder)

"""Models that others trained: which adapter a folder holds, whether it fits, its weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from raydp.extensions.later_scores.sets import put_adapter, weights_of
from raydp.models.base_models import trained_form, weight_hash
from raydp.search_spaces.names import kind_of
from raydp.spec.sections import AdapterSpec, ModelSpec
from raydp.tracking.portable import ADAPTER_CONFIG

if TYPE_CHECKING:
    from peft import PeftModel

_FIELDS = {
    "LORA": {
        "r": "r",
        "lora_alpha": "alpha",
        "use_rslora": "use_rslora",
        "use_dora": "use_dora",
        "target_modules": "target_modules",
        "layers_to_transform": "layers_to_transform",
        "modules_to_save": "modules_to_save",
    },
    "IA3": {
        "target_modules": "target_modules",
        "feedforward_modules": "feedforward_modules",
        "modules_to_save": "modules_to_save",
    },
}
"""peft's kind of adapter -> its field -> the field of `model.adapter`."""
_HARMLESS = {
    "auto_mapping",
    "base_model_name_or_path",
    "fan_in_fan_out",
    "inference_mode",
    "init_ia3_weights",
    "init_lora_weights",
    "lora_dropout",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
}
"""Options of peft that do not change what a trained adapter computes.

Some values of init_lora_weights do change it, see _PLAIN_STARTS.
"""
_PLAIN_STARTS = (None, True, False, "gaussian", "orthogonal")
"""Starts that leave the base's weights as they are."""


def adapter_section(folder: Path) -> dict[str, object]:
    """Return the section `model.adapter` for a folder that peft or transformers wrote.

    Raises:
        ValueError: the folder holds no model, or one that the section cannot describe.
    """
    # A folder without an adapter holds a whole model, or none.
    if not (folder / ADAPTER_CONFIG).is_file():
        if not (folder / "config.json").is_file():
            raise ValueError(
                f"model must be a folder with an {ADAPTER_CONFIG} or a config.json, got "
                f"{folder.name!r}. Save it with save_pretrained."
            )
        return {"type": "none"}
    # Refuse kinds that `model.adapter` cannot describe.
    config = _config(folder)
    kind = str(config.get("peft_type"))
    if kind not in _FIELDS:
        raise ValueError(
            f"model must be a LoRA or IA3 adapter or a whole model, got {folder.name!r} with "
            f"{kind}. {_MERGE}"
        )
    # An option that would change the result and has no field is refused, unless it has its default.
    known = {*_FIELDS[kind], *_HARMLESS}
    usual = _usual(kind)
    unknown = [
        name
        for name, value in config.items()
        if name not in known and value and value != usual.get(name)
    ]
    if config.get("init_lora_weights") not in _PLAIN_STARTS:
        unknown.append("init_lora_weights")
    # peft also takes a pattern as a text, which the spec cannot express.
    targets = config.get("target_modules")
    if not isinstance(targets, list) or not targets:
        unknown.append("target_modules, which must be a list of names,")
    if unknown:
        raise ValueError(
            f"model must be an adapter that model.adapter can describe, got {folder.name!r} with "
            f"{', '.join(unknown)}. {_MERGE}"
        )
    # Translate the fields.
    section = {
        own: config[name] for name, own in _FIELDS[kind].items() if config.get(name) is not None
    }
    for name in ("target_modules", "feedforward_modules", "modules_to_save"):
        if name in section:
            section[name] = sorted(section[name])  # peft writes a set
    if isinstance(layer := section.get("layers_to_transform"), int):
        section["layers_to_transform"] = [layer]
    return {"type": kind.lower(), **section}


_MERGE = "Merge it into its base and save the whole model."


def _usual(kind: str) -> dict[str, Any]:
    """Return peft's defaults of a kind of adapter."""
    from peft import IA3Config, LoraConfig

    config: Any = LoraConfig() if kind == "LORA" else IA3Config()
    usual: dict[str, Any] = config.to_dict()
    return usual


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"model must hold a whole {ADAPTER_CONFIG}, got {folder.name!r} with another text. "
            "Save it again."
        ) from error
    return config if isinstance(config, dict) else {}


def base_name_of(folder: Path) -> str | None:
    """Return the base that an adapter records; None for a whole model or without a record.

    Raises:
        ValueError: the record is no text.
    """
    name = (
        _config(folder).get("base_model_name_or_path")
        if (folder / ADAPTER_CONFIG).is_file()
        else None
    )
    if name is not None and not isinstance(name, str):
        raise ValueError(
            f"model must record its base as a text, got {kind_of(name)} as base_model_name_or_path "
            f"in the {ADAPTER_CONFIG} of {folder.name!r}. Write the base's name there."
        )
    return name


def check_fits(spec: ModelSpec, folders: Iterable[Path]) -> None:
    """Check that each folder holds the adapter of the spec, with weights of its names and shapes.

    Raises:
        ValueError: one does not. The message names the folder, and the first field or weight that
            differs.
    """
    trained = trained_form(spec)
    for folder in folders:
        _check_adapter(spec, folder)
        _check_weights(spec, trained, folder)


def _check_adapter(spec: ModelSpec, folder: Path) -> None:
    own = AdapterSpec.model_validate(adapter_section(folder))
    # Dropout has no effect after training, so it may differ.
    for name in AdapterSpec.model_fields:
        given, wanted = getattr(own, name), getattr(spec.adapter, name)
        if name != "lora_dropout" and _unordered(given) != _unordered(wanted):
            raise ValueError(
                f"model must be adapted as model.adapter says, got {folder.name!r} with {name} "
                f"{given!r} in place of {wanted!r}. Import models of one kind and size together, "
                "and the others by themselves."
            )


def _check_weights(spec: ModelSpec, trained: nn.Module, folder: Path) -> None:
    saved, weights = _saved_form(trained), weights_of(folder)
    # Compare by name, to find missing, surplus and misshapen weights.
    for name in sorted({*saved, *weights}):
        has, needs = (
            None if tensors.get(name) is None else tensors[name].shape
            for tensors in (weights, saved)
        )
        # A tied weight may be saved under both names.
        if has == needs or (has is not None and needs is None and _is_tied(trained, name, weights)):
            continue
        problem = f"without {name!r}" if has is None else f"with {name!r} of shape {tuple(has)}"
        instead = (
            "nothing of that name is trained"
            if needs is None
            else f"its shape must be {tuple(needs)}"
        )
        raise ValueError(
            f"model must have the weights of model.adapter on {spec.name!r}, got {folder.name!r} "
            f"{problem}; {instead}. Name its own base as model.name, and leave model.adapter out."
        )
    _check_finite(weights, folder)


def _check_finite(weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    for name, tensor in weights.items():
        # torch does not look into 8 bits.
        finite = tensor if tensor.element_size() > 1 else tensor.float()
        if not finite.isfinite().all():
            raise ValueError(
                f"model must have finite weights, got {folder.name!r} with nan or inf in {name!r}. "
                "Leave its row out, or train it again: it diverged."
            )


def _unordered(value: object) -> object:
    return sorted(value) if isinstance(value, tuple) else value


def _is_tied(model: nn.Module, name: str, weights: Mapping[str, torch.Tensor]) -> bool:
    """Return whether a weight is saved twice because it is tied to another with equal values."""
    named = dict(model.named_parameters(remove_duplicate=False))
    partners = [
        other
        for other, p in named.items()
        if name in named and p is named[name] and other in weights
    ]
    return len(partners) > 1 and all(
        torch.equal(weights[name], weights[other]) for other in partners
    )


def put(model: nn.Module, parameters: Mapping[str, nn.Parameter], folder: Path) -> None:
    """Put a folder's weights in place into a model with the same adapter, or the whole model."""
    weights = weights_of(folder)
    if hasattr(model, "peft_config"):
        put_adapter(model, weights, folder.name)
        return
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def _saved_form(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights that a model saves by name, with any values, each tied weight once."""
    if not hasattr(model, "peft_config"):
        return dict(model.named_parameters())
    from peft import get_peft_model_state_dict

    saved: dict[str, torch.Tensor] = get_peft_model_state_dict(
        cast("PeftModel", model), save_embedding_layers=False
    )
    return saved


def hash_of_model(folder: Path) -> str:
    """Return the SHA-256 (hex) of a folder's weights and of its adapter's configuration."""
    # The configuration is part of the model: rank and alpha scale the same weights differently.
    digest = hashlib.sha256(weight_hash(folder).encode())
    if (folder / ADAPTER_CONFIG).is_file():
        digest.update((folder / ADAPTER_CONFIG).read_bytes())
    return digest.hexdigest()

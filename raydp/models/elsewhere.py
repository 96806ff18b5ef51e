"""Models that others trained: which adapter their folder holds, whether it fits, and its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from raydp.models.base_models import trained_form
from raydp.models.sets import ADAPTER_CONFIG, put_adapter, weights_of
from raydp.spec.sections import ModelSpec

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
_CHANGES = (
    "rank_pattern",
    "alpha_pattern",
    "lora_bias",
    "layer_replication",
    "exclude_modules",
    "corda_config",
)
"""Options of peft that change what an adapter computes, and that `model.adapter` does not have."""


def adapter_section(folder: Path) -> dict[str, object]:
    """Return the section `model.adapter` for a folder that peft or transformers wrote.

    Raises:
        ValueError: the folder holds no model, or one of another kind.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        if not (folder / "config.json").is_file():
            raise ValueError(
                f"model must be a folder with an {ADAPTER_CONFIG} or a config.json, got {folder.name!r}. Save it with "
                "save_pretrained."
            )
        return {"type": "none"}
    config: dict[str, Any] = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    kind = str(config.get("peft_type"))
    if kind not in _FIELDS:
        raise ValueError(
            f"model must be a LoRA or IA3 adapter or a whole model, got {folder.name!r} with {kind}. Merge it into its "
            "base and save the whole model."
        )
    unknown = [name for name in _CHANGES if config.get(name)]
    if unknown or config.get("bias", "none") != "none" or isinstance(config["target_modules"], str):
        raise ValueError(
            f"model must be an adapter that model.adapter can describe, got {folder.name!r} with "
            f"{', '.join(unknown) or 'a bias or a pattern of target modules'}. Merge it into its base and save the "
            "whole model."
        )
    section = {own: config[name] for name, own in _FIELDS[kind].items() if config.get(name) is not None}
    for name in ("target_modules", "feedforward_modules", "modules_to_save"):
        if name in section:
            section[name] = sorted(section[name])  # peft writes a set
    return {"type": kind.lower(), **section}


def check_fits(spec: ModelSpec, folder: Path) -> None:
    """Check that a folder's weights have the names and shapes of what the spec trains, without loading them.

    Raises:
        ValueError: they do not. The message names the first weight that differs.
    """
    wanted, given = _saved_form(spec), {name: tensor.shape for name, tensor in weights_of(folder).items()}
    for name in sorted(wanted.keys() | given.keys() if spec.adapter.type != "none" else wanted.keys()):
        if (has := given.get(name)) == (needs := wanted.get(name)):
            continue
        problem = f"without {name!r}" if has is None else f"with {name!r} of shape {tuple(has)}"
        instead = "nothing of that name is trained" if needs is None else f"its shape must be {tuple(needs)}"
        raise ValueError(
            f"model must have the weights of model.adapter on {spec.name!r}, got {folder.name!r} {problem}; {instead}. "
            "Name its own base as model.name, and leave model.adapter out."
        )


def put(model: nn.Module, parameters: Mapping[str, nn.Parameter], folder: Path) -> None:
    """Put the weights of a folder into a model with the same adapter, or into the whole model, in place."""
    weights = weights_of(folder)
    if hasattr(model, "peft_config"):
        put_adapter(model, weights, folder.name)
        return
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def _saved_form(spec: ModelSpec) -> dict[str, torch.Size]:
    """Return the names and shapes of the weights that a model of the spec saves, each tied weight once."""
    model = trained_form(spec)
    if not hasattr(model, "peft_config"):
        return {name: parameter.shape for name, parameter in model.named_parameters()}
    from peft import get_peft_model_state_dict

    saved: dict[str, torch.Tensor] = get_peft_model_state_dict(cast("PeftModel", model), save_embedding_layers=False)
    return {name: tensor.shape for name, tensor in saved.items()}

"""A tracked model, ready to generate: its base by name, checked by hash, with what was trained on top."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from raydp.tracking.model_folder import BASE_FILE
from raydp.tracking.portable import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from raydp.tracking.store import artifact, open_store, resolve_uri

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase


def load_model(
    uri: str, *, tracking_uri: str, base: str | None = None, dtype: str | None = None, device: str = "cpu"
) -> nn.Module:
    """Load a model from the registry, in eval mode. Nothing is unpickled: weights are safetensors, the rest JSON.

    Args:
        uri: models:/NAME/VERSION, models:/NAME@ALIAS or models:/m-ID.
        tracking_uri: the store that it is in.
        base: name or folder of the base model, where the recorded name means nothing here.
        dtype: "float32" or "bfloat16" for the base model's weights; as recorded by default.
        device: where to, as torch names it.

    Returns:
        A peft model on its base, or a transformers model where every weight was trained.

    Raises:
        ValueError: there is no such model, its base cannot be loaded, or the base's weights are not those that it was
            trained on.
    """
    if dtype not in (None, "float32", "bfloat16"):
        raise ValueError(f"dtype must be float32 or bfloat16, got {dtype!r}. Leave it out for the recorded one.")
    store = open_store(tracking_uri)
    location = store.client.get_logged_model(resolve_uri(store, uri).model_id).artifact_location
    with artifact(store, location) as folder:
        recorded = _recorded_base(folder)
        dtype = dtype or recorded.get("dtype", "float32")
        adapted = (folder / ADAPTER_CONFIG).is_file()
        model = _adapted(folder, recorded, base, dtype) if adapted else _full(folder, dtype)
    return model.to(device).eval()


def load_tokenizer(uri: str, *, tracking_uri: str, base: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a registered model: its own where it has one, else its base's.

    Args:
        uri, tracking_uri, base: as in `load_model`.

    Raises:
        ValueError: there is no such model, or no tokenizer for it.
    """
    from transformers import AutoTokenizer

    from raydp import models

    store = open_store(tracking_uri)
    location = store.client.get_logged_model(resolve_uri(store, uri).model_id).artifact_location
    with artifact(store, location) as folder:
        if (folder / "tokenizer_config.json").is_file():
            return AutoTokenizer.from_pretrained(folder)
        name = base or _recorded_base(folder)["name"]
    return models.load_tokenizer(name)


def _recorded_base(folder: Path) -> dict[str, str]:
    record: dict[str, str] = json.loads((folder / BASE_FILE).read_text(encoding="utf-8"))
    return record


def _adapted(folder: Path, recorded: dict[str, str], base: str | None, dtype: str) -> nn.Module:
    """The base model with the folder's adapter."""
    from peft import PeftModel

    from raydp.models import load_base
    from raydp.sections import ModelSpec

    if not (folder / ADAPTER_WEIGHTS).is_file():  # peft would take a pickle instead
        raise ValueError(
            f"MODEL must hold {ADAPTER_WEIGHTS}, got {sorted(p.name for p in folder.iterdir())}. Log it again."
        )
    name = base or recorded["name"]
    try:
        pretrained = load_base(ModelSpec.model_validate({"name": name, "dtype": dtype}))
    except ValueError as error:
        raise ValueError(
            f"base must be loadable here, got {name!r}: {error} Give the base model's folder or hub id as base."
        ) from error
    if pretrained.weight_hash != recorded["weight_hash"]:
        raise ValueError(
            f"base must have the weights that the adapter was trained on (SHA-256 {recorded['weight_hash'][:12]}...), "
            f"got {name!r} with {pretrained.weight_hash[:12]}.... Give the folder of the original "
            f"{recorded['name']!r} as base."
        )
    return PeftModel.from_pretrained(pretrained.model, str(folder))


def _full(folder: Path, dtype: str) -> nn.Module:
    """A model of which every weight was trained."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), use_safetensors=True)

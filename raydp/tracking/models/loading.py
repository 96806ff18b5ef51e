"""Loading a tracked model: its base by name, checked by hash, and the trained weights on top."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from raydp.models import base_models as models
from raydp.models.adapters import building_peft_model
from raydp.models.base_models import load_base, read_model
from raydp.models.one_at_a_time import one_at_a_time
from raydp.models.quantization import quantise, without_bitsandbytes
from raydp.spec.sections.model import ModelSpec
from raydp.tracking.models.fetching import checked_folder, recorded_base, require_safetensors
from raydp.tracking.portable import ADAPTER_CONFIG


def load_model(
    uri: str,
    *,
    tracking_uri: str | None = None,
    base: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    trusted_keys: Iterable[str | Path] | None = None,
) -> nn.Module:
    """Load a model from the registry, in eval mode.

    Nothing is unpickled: weights are safetensors, the rest JSON.

    Before loading, every file is compared with the hash that was sealed with the model's privacy
    card.

    Args:
        uri: models:/NAME/VERSION, models:/NAME@ALIAS or models:/m-ID.
        tracking_uri: the store of the model; by default MLFLOW_TRACKING_URI, else
            sqlite:///raydp.db.
        base: name or folder of the base model, if the recorded name is unknown here.
        dtype: "float32" or "bfloat16" for the base model's weights; as recorded by default.
        device: target device, in torch's notation.
        trusted_keys: public keys (`ed25519:...`) or files of public keys. One of the keys must have
            signed the model.

    Returns:
        A peft model on its base, or a transformers model if every weight was trained.

    Raises:
        ValueError: there is no such model, its files differ from the sealed ones, no trusted key
            has signed them, its base cannot be loaded, or the base has other weights than in
            training.
    """
    if dtype not in (None, "float32", "bfloat16"):
        raise ValueError(
            f"dtype must be float32 or bfloat16, got {dtype!r}. Leave it out for the recorded one."
        )
    with checked_folder(uri, tracking_uri=tracking_uri, trusted_keys=trusted_keys) as folder:
        return load_folder(folder, base, dtype).to(device)


@one_at_a_time()
def load_folder(folder: Path, base: str | None = None, dtype: str | None = None) -> nn.Module:
    """Load the model in a folder, in eval mode; `base` and `dtype` as in `load_model`.

    The folder is not checked.

    Raises:
        ValueError: as `load_model` for the base and the weights.
    """
    recorded = recorded_base(folder)
    dtype = dtype or recorded.get("dtype", "float32")
    adapted = (folder / ADAPTER_CONFIG).is_file()
    model = _adapted(folder, recorded, base, dtype) if adapted else _full(folder, dtype)
    return model.eval()


def load_tokenizer(
    uri: str,
    *,
    tracking_uri: str | None = None,
    base: str | None = None,
    trusted_keys: Iterable[str | Path] | None = None,
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a registered model: its own if it has one, else its base's.

    Args:
        uri, tracking_uri, base, trusted_keys: as in `load_model`.

    Raises:
        ValueError: there is no such model, its files differ from the sealed ones, or there is no
            tokenizer for it.
    """
    with checked_folder(uri, tracking_uri=tracking_uri, trusted_keys=trusted_keys) as folder:
        return tokenizer_in(folder, base)


@one_at_a_time()
def tokenizer_in(folder: Path, base: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer for the model in a folder."""
    if (folder / "tokenizer_config.json").is_file():
        return AutoTokenizer.from_pretrained(folder)
    return models.load_tokenizer(base or recorded_base(folder)["name"])


def _adapted(folder: Path, recorded: dict[str, str], base: str | None, dtype: str) -> nn.Module:
    """Load the base model with the folder's adapter."""
    from peft import PeftModel

    require_safetensors(folder)
    # The base by name, in the quantisation of the training.
    name = base or recorded["name"]
    try:
        quantization = recorded.get("quantization")
        spec = ModelSpec.model_validate(
            {"name": name, "dtype": dtype, "quantization": quantization}
        )
        pretrained = load_base(spec)
        quantise(pretrained)
    except ValueError as error:
        raise ValueError(
            f"base must be loadable here, got {name!r}: {error} Give the base model's folder or "
            "hub id as base."
        ) from error
    # An adapter on other weights gives another model, whose guarantee and scores nobody knows.
    if pretrained.weight_hash != recorded["weight_hash"]:
        raise ValueError(
            "base must have the weights that the adapter was trained on (SHA-256 "
            f"{recorded['weight_hash'][:12]}...), got {name!r} with "
            f"{pretrained.weight_hash[:12]}.... Give the folder of the original "
            f"{recorded['name']!r} as base."
        )
    library = without_bitsandbytes() if quantization is None else nullcontext()
    with _safetensors_only(folder), building_peft_model(), library:
        return PeftModel.from_pretrained(pretrained.model, str(folder))


def _full(folder: Path, dtype: str) -> nn.Module:
    """Load a model whose every weight was trained."""
    with _safetensors_only(folder):
        return read_model(folder, getattr(torch, dtype))


@contextmanager
def _safetensors_only(folder: Path) -> Iterator[None]:
    """Turn an unreadable safetensors file into a ValueError for the user."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise ValueError(
            "MODEL must hold weights as safetensors, got "
            f"{sorted(p.name for p in folder.iterdir())} ({error}). Log it again."
        ) from error

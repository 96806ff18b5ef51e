"""A tracked model, ready to generate: its base by name, checked by hash, with what was trained on top."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from raydp.tracking.portable import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from raydp.tracking.sealing.seal import BASE_FILE
from raydp.tracking.sealing.trust import Trust
from raydp.tracking.store import artifact, open_store, resolve_uri

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase


def load_model(
    uri: str,
    *,
    tracking_uri: str,
    base: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    trusted_keys: Iterable[str | Path] | None = None,
) -> nn.Module:
    """Load a model from the registry, in eval mode. Nothing is unpickled: weights are safetensors, the rest JSON.

    Every file is compared with the hash that was sealed with the model's privacy card, before anything is loaded.

    Args:
        uri: models:/NAME/VERSION, models:/NAME@ALIAS or models:/m-ID.
        tracking_uri: the store that it is in.
        base: name or folder of the base model, where the recorded name means nothing here.
        dtype: "float32" or "bfloat16" for the base model's weights; as recorded by default.
        device: where to, as torch names it.
        trusted_keys: public keys (`ed25519:...`) or files of such, one of which must have signed the model.

    Returns:
        A peft model on its base, or a transformers model where every weight was trained.

    Raises:
        ValueError: there is no such model, its files are not those that were sealed or no trusted key has signed them,
            its base cannot be loaded, or the base's weights are not those that it was trained on.
    """
    if dtype not in (None, "float32", "bfloat16"):
        raise ValueError(f"dtype must be float32 or bfloat16, got {dtype!r}. Leave it out for the recorded one.")
    with checked_folder(uri, tracking_uri=tracking_uri, trusted_keys=trusted_keys) as folder:
        return load_folder(folder, base, dtype).to(device)


def load_folder(folder: Path, base: str | None = None, dtype: str | None = None) -> nn.Module:
    """Load the model in a folder, in eval mode; `base` and `dtype` as in `load_model`. The folder is not checked.

    Raises:
        ValueError: as `load_model` for the base and the weights.
    """
    recorded = recorded_base(folder)
    dtype = dtype or recorded.get("dtype", "float32")
    adapted = (folder / ADAPTER_CONFIG).is_file()
    model = _adapted(folder, recorded, base, dtype) if adapted else _full(folder, dtype)
    return model.eval()


@contextmanager
def checked_folder(uri: str, *, tracking_uri: str, trusted_keys: Iterable[str | Path] | None = None) -> Iterator[Path]:
    """A registered model's folder, for the time of the block, after every file was compared with the model's seal.

    Raises:
        ValueError: there is no such model, a file is not what was sealed, or no trusted key has signed it.
    """
    trust = Trust.given(trusted_keys)
    store = open_store(tracking_uri)
    model = store.client.get_logged_model(resolve_uri(store, uri).model_id)
    with artifact(store, model.artifact_location) as folder:
        _require_safetensors(folder)
        trust.check_folder(folder, model, uri)
        yield folder


def load_tokenizer(
    uri: str, *, tracking_uri: str, base: str | None = None, trusted_keys: Iterable[str | Path] | None = None
) -> PreTrainedTokenizerBase:
    """The tokenizer of a registered model: its own where it has one, else its base's.

    Args:
        uri, tracking_uri, base, trusted_keys: as in `load_model`.

    Raises:
        ValueError: there is no such model, its files are not those that were sealed, or there is no tokenizer for it.
    """
    with checked_folder(uri, tracking_uri=tracking_uri, trusted_keys=trusted_keys) as folder:
        return tokenizer_in(folder, base)


def tokenizer_in(folder: Path, base: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer for the model in a folder."""
    from transformers import AutoTokenizer

    from raydp.models import base_models as models

    if (folder / "tokenizer_config.json").is_file():
        return AutoTokenizer.from_pretrained(folder)
    return models.load_tokenizer(base or recorded_base(folder)["name"])


def recorded_base(folder: Path) -> dict[str, str]:
    """What base.json says: name, weight_hash, dtype."""
    record: dict[str, str] = json.loads((folder / BASE_FILE).read_text(encoding="utf-8"))
    return record


def _require_safetensors(folder: Path) -> None:
    """Refuse an adapter without safetensors: peft would take a pickle instead."""
    if (folder / ADAPTER_CONFIG).is_file() and not (folder / ADAPTER_WEIGHTS).is_file():
        raise ValueError(
            f"MODEL must hold {ADAPTER_WEIGHTS}, got {sorted(p.name for p in folder.iterdir())}. Log it again."
        )


def _adapted(folder: Path, recorded: dict[str, str], base: str | None, dtype: str) -> nn.Module:
    """The base model with the folder's adapter."""
    from peft import PeftModel

    from raydp.models.adapters import building_peft_model
    from raydp.models.base_models import load_base
    from raydp.spec.sections import ModelSpec

    _require_safetensors(folder)
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
    with _safetensors_only(folder), building_peft_model():
        return PeftModel.from_pretrained(pretrained.model, str(folder))


def _full(folder: Path, dtype: str) -> nn.Module:
    """A model of which every weight was trained."""
    import torch

    from raydp.models.base_models import read_model

    with _safetensors_only(folder):
        return read_model(folder, getattr(torch, dtype))


@contextmanager
def _safetensors_only(folder: Path) -> Iterator[None]:
    """What is called safetensors and is none is the user's to know, not a traceback."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"MODEL must hold weights as safetensors, got {sorted(p.name for p in folder.iterdir())} ({error}). "
            "Log it again."
        ) from error

"""Making records portable: no paths of this machine, no pickles, strict JSON."""

from __future__ import annotations

import json
import math
import numbers
import re
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit, urlunsplit

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
TOKENIZER_FILES = (
    *("tokenizer.json", TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", CHAT_TEMPLATE),
)
_ADAPTER = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
FULL_MODEL = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
)
_PATH_KEYS = ("*_file", "*_path", "*_dir")
_NAME_KEYS = ("base_model_name_or_path", "_name_or_path", "name_or_path")

_SEGMENT = r"[^\s/'\"`,;:()<>\[\]]+"
_PATH_IN_TEXT = re.compile(
    rf"(?<![\w./:*~-])((?:file://|sqlite:///)?)(?:~|[A-Za-z]:)?/(?:{_SEGMENT}/)+({_SEGMENT})"
)


def portable(value: object) -> Any:
    """Return a copy of a record that is strict JSON and reveals nothing about this machine.

    An absolute path becomes its last part, even inside a text. User and password are removed from
    an address. Infinity becomes "inf", and NaN becomes null.
    """
    if isinstance(value, Mapping):
        return {str(key): portable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [portable(item) for item in value]
    if isinstance(value, str | PurePath):
        return _portable_text(str(value))
    # bool before numbers: True is an Integral.
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    assert isinstance(value, numbers.Real), (
        f"a record holds JSON values, got {type(value).__name__}"
    )
    number = float(value)
    # Strict JSON has no infinity and no NaN.
    if math.isfinite(number):
        return number
    return None if math.isnan(number) else str(number)


def to_json(value: object) -> str:
    """Return a record as strict JSON (see `portable`)."""
    return (
        json.dumps(portable(value), indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
        + "\n"
    )


def model_files(folder: Path) -> list[Path]:
    """Return the tracked files of a saved model or adapter: weights, configuration, tokenizer.

    Weights are safetensors only.

    All other files are ignored: pickles, model cards, optimiser states, logs.

    Raises:
        ValueError: there are no safetensors weights.
    """
    patterns = (
        *(_ADAPTER if (folder / ADAPTER_CONFIG).is_file() else FULL_MODEL),
        *TOKENIZER_FILES,
    )
    files = sorted(
        p
        for p in folder.iterdir()
        if p.is_file() and any(fnmatch(p.name, pattern) for pattern in patterns)
    )
    # Without safetensors, a loader would fall back to a pickle.
    if not any(path.suffix == ".safetensors" for path in files):
        raise ValueError(
            f"model_dir must hold {ADAPTER_WEIGHTS} with {ADAPTER_CONFIG}, or model*.safetensors, "
            f"got {sorted(p.name for p in folder.iterdir())}. Save it with save_pretrained."
        )
    return files


def portable_config(path: Path, base_name: str) -> str | None:
    """Return a model's configuration with the base model's name instead of its path.

    Return None for a file that is not a configuration and needs no change.
    """
    if path.suffix != ".json" or "config" not in path.name:
        return None
    config = json.loads(path.read_text(encoding="utf-8"))
    for key, value in config.items():
        if key in _NAME_KEYS and value:
            config[key] = base_name
        elif any(fnmatch(key, pattern) for pattern in _PATH_KEYS):
            config[key] = portable(value)
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def _portable_text(text: str) -> str:
    # Credentials in an address, then absolute paths: whole texts, and parts of a text.
    parts = urlsplit(text) if "://" in text else None
    if parts and "@" in parts.netloc:
        text = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    if _is_absolute(text):
        return PurePath(text).name or text
    return _PATH_IN_TEXT.sub(r"\1\2", text)


def _is_absolute(text: str) -> bool:
    """Return whether a text is exactly one absolute path, or one in the home folder."""
    return text.startswith(("/", "~/")) and "\n" not in text

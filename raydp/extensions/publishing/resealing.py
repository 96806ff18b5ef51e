"""A new seal for a registered model: signed after a review, with another key, or for the first time."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from raydp.extensions.publishing.signing import SigningKey
from raydp.search_spaces.configuration import HYPERPARAMETERS
from raydp.tracking.delivery import answering
from raydp.tracking.models.fetching import recorded_base
from raydp.tracking.sealing.folders import copy_folder, hashes_of
from raydp.tracking.sealing.seal import (
    BASE_FILE,
    PRIVACY_FILE,
    SEAL_FILE,
    SEAL_TAG,
    Seal,
    guarantee_of,
    statement,
)
from raydp.tracking.sealing.trust import Trust
from raydp.tracking.store import artifact, open_store, resolve_uri


@answering()
def seal_model(
    uri: str,
    *,
    tracking_uri: str | None = None,
    signing_key: str | Path | None = None,
    unseen: bool = False,
) -> dict[str, object]:
    """Seal a registered model again: sign it after a review, or with another key.

    Args:
        uri: models:/NAME/VERSION, models:/NAME@ALIAS or models:/m-ID.
        tracking_uri: the store; by default MLFLOW_TRACKING_URI, else sqlite:///raydp.db.
        signing_key: file of the private key; without it the seal is not signed.
        unseen: also seal a model without a seal or with a seal that does not fit, with its present
            files.

    Returns:
        model_id, signed_by (a public key or None) and files (name -> SHA-256).

    Raises:
        ValueError: there is no such model, its files differ from the sealed ones, or its card and
            tags differ.
    """
    key = None if signing_key is None else SigningKey.load(Path(signing_key))
    store = open_store(tracking_uri)
    model = store.client.get_logged_model(resolve_uri(store, uri).model_id)
    with (
        artifact(store, model.artifact_location) as folder,
        tempfile.TemporaryDirectory(prefix="raydp-") as scratch,
    ):
        copy = Path(scratch) / "model"  # nobody can change it between the check and the signature
        # Unless the user vouches for the present files, they must fit the earlier seal.
        if unseen:
            copy_folder(folder, copy)
        else:
            Trust().copy_checked(folder, copy, model, uri)
        hashes = hashes_of(copy)
        about = _statement_of(copy, model.model_id, model.tags, model.params, hashes, uri)
        sealed = Seal.make(about, key)
        written = Path(scratch) / SEAL_FILE
        written.write_text(sealed.file(hashes), encoding="utf-8")
        store.client.log_model_artifact(model.model_id, str(written))
    # The file first: after a kill in between, file and tag differ, and the model is refused until
    # it is sealed again.
    store.client.set_logged_model_tags(model.model_id, {SEAL_TAG: sealed.tag()})
    return {"model_id": model.model_id, "signed_by": sealed.key, "files": hashes}


def _statement_of(
    folder: Path,
    model_id: str,
    tags: Mapping[str, str],
    params: Mapping[str, str],
    hashes: Mapping[str, str],
    uri: str,
) -> dict[str, object]:
    """Return the statement of a seal for the files in a folder.

    The card and the tags of the registry must state the same guarantee.
    """
    # A model without a guarantee on paper has nothing that a seal could bind.
    missing = [name for name in (PRIVACY_FILE, BASE_FILE) if name not in hashes]
    if missing:
        raise ValueError(
            f"MODEL must have a privacy card to be sealed, got {uri} without {', '.join(missing)}. "
            "Log it."
        )
    # A signature must not confirm a registry that says something else than the card.
    privacy = json.loads((folder / PRIVACY_FILE).read_text(encoding="utf-8"))
    figures = guarantee_of(privacy)
    differing = sorted(name for name, text in figures.items() if tags.get(name) != text)
    if differing:
        raise ValueError(
            f"MODEL must say the same in its card and its tags, got {uri} with other "
            f"{', '.join(differing)}. Find out which is right before you seal it."
        )
    return statement(
        model_id=model_id,
        run_id=tags["run_id"],
        configuration={
            name: params[name] for name in (*HYPERPARAMETERS, "seed", "settings") if name in params
        },
        privacy=privacy,
        base_weight_hash=recorded_base(folder)["weight_hash"],
        hashes=hashes,
    )

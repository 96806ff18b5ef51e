"""The seal that binds a model to its guarantee: a statement of hashes and values, signed if there is a key.

The statement binds the privacy record, every file of the model's folder, the base model's weights, the configuration,
and the logged model that it was made for. It is stored beside the model as seal.json, with the hash of each file, and
as a tag, so that a lookup can check it without a download.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydp.tracking.portable import TOKENIZER_FILES
from raydp.tracking.records import PRIVACY_TAGS, as_params
from raydp.tracking.sealing.signing import SigningKey, signature_fits

SEAL_FILE = "seal.json"
SEAL_TAG = "raydp.seal"
PRIVACY_FILE = "privacy.json"
BASE_FILE = "base.json"
DOWNLOAD_NOTE = "registered_model_meta"
"""File with name and version that MLflow writes into a downloaded model folder; raydp does not read it."""
README_FILE = "README.md"
EXPORTED_BASE = "base"
"""Folder of the base model's files beside an exported adapter."""
COMPONENTS = "components"
"""Folder of the tokenizer in an exported model, where MLflow's flavour `transformers` reads it."""
OPENSSF_FILE = "model.sig"
"""Signature of an exported model in the format of OpenSSF Model Signing."""
_ADDED_FOLDERS = (f"{EXPORTED_BASE}/", f"{COMPONENTS}/")
_HASHES = ("privacy_sha256", "files_sha256")
_PURPOSE = b"raydp seal 1\n"
"""Prefix of a signed message, so that a signature cannot be mistaken for one of another purpose."""


@dataclass(frozen=True, kw_only=True)
class Seal:
    """A statement with its signature.

    Attributes:
        statement: model_id, run_id, configuration, guarantee (the values of PRIVACY_TAGS), base_weight_hash,
            privacy_sha256 (of privacy.json) and files_sha256 (of the hashes of all files); texts only.
        key: the public key of the signature; None if the statement is not signed.
        signature: the signature in base64.
    """

    statement: Mapping[str, Any]
    key: str | None = None
    signature: str | None = None

    @classmethod
    def make(cls, statement: Mapping[str, object], key: SigningKey | None) -> Seal:
        """Make a seal of a statement. It is signed if there is a key."""
        if key is None:
            return cls(statement=statement)
        return cls(statement=statement, key=key.public, signature=key.sign(_message(statement)))

    @classmethod
    def read(cls, text: str) -> Seal | None:
        """Read a seal from its tag or file; return None if the text is not a seal."""
        try:
            content = json.loads(text, parse_constant=_refuse)
            statement, key, signature = content["statement"], content.get("key"), content.get("signature")
            well_formed = isinstance(statement, dict) and isinstance(statement["guarantee"], dict)
            well_formed &= all(isinstance(part, str | None) for part in (key, signature))
            well_formed &= all(isinstance(statement[name], str) for name in _HASHES)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return cls(statement=statement, key=key, signature=signature) if well_formed else None

    def tag(self) -> str:
        """Return the seal as text for a tag."""
        return json.dumps(self._document(), sort_keys=True, separators=(",", ":"))

    def file(self, hashes: Mapping[str, str]) -> str:
        """Return the content of seal.json."""
        # `to_json` is not used, because it would shorten a signature that happens to look like a path.
        return json.dumps({**self._document(), "files": hashes}, indent=2, sort_keys=True) + "\n"

    def is_of_record(self, content: bytes | None) -> bool:
        """Return whether the content is that of the sealed privacy.json."""
        return content is not None and hashlib.sha256(content).hexdigest() == self.statement.get("privacy_sha256")

    def signature_problem(self, keys: frozenset[str] | None) -> str | None:
        """Return why the signature is unreliable; None if it is reliable.

        Args:
            keys: the trusted public keys. With None the seal need not be signed, but an existing signature must fit.
        """
        if self.key is None or self.signature is None:
            return None if keys is None and self.key is self.signature else NOT_SIGNED
        if keys is not None and self.key not in keys:
            return OTHER_KEY
        return None if signature_fits(self.key, self.signature, _message(self.statement)) else BAD_SIGNATURE

    def _document(self) -> dict[str, object]:
        return {"statement": self.statement, "key": self.key, "signature": self.signature}


NO_CARD = "without a sealed privacy card"
NO_FILES = "its files are gone"
NOT_SIGNED = "not signed"
OTHER_KEY = "signed by a key that is not trusted"
BAD_SIGNATURE = "signature does not fit"
OTHER_MODEL = "card of another model"
OTHER_FIGURES = "figures differ from the card's"
OTHER_FILES = "files differ from the card's"


def statement(
    *,
    model_id: str,
    run_id: str,
    configuration: Mapping[str, str],
    privacy: Mapping[str, object],
    base_weight_hash: str,
    hashes: Mapping[str, str],
) -> dict[str, object]:
    """Return the statement of a model's seal.

    Args:
        model_id: id of MLflow's logged model, so that a seal does not fit another model it is copied to.
        run_id, configuration, base_weight_hash: as in `TrialRecord`.
        privacy: the record in privacy.json.
        hashes: file -> SHA-256 (hex), for every file but seal.json.
    """
    return {
        "format": "1",
        "model_id": model_id,
        "run_id": run_id,
        "configuration": dict(configuration),
        "guarantee": guarantee_of(privacy),
        "base_weight_hash": base_weight_hash,
        "privacy_sha256": hashes[PRIVACY_FILE],
        "files_sha256": hash_of(hashes),
    }


def guarantee_of(privacy: Mapping[str, object]) -> dict[str, str]:
    """Return the values of a privacy record by which models are looked up, as text."""
    return as_params({name: privacy.get(name) for name in PRIVACY_TAGS})


def hashes_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 (hex) of every file in a folder, by name, without seal.json and MLflow's note."""
    hashes = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        if name not in (SEAL_FILE, DOWNLOAD_NOTE):
            hashes[name] = hash_of_file(path)
    return hashes


def hash_of_file(path: Path) -> str:
    """Return the SHA-256 (hex) of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_of(hashes: Mapping[str, str]) -> str:
    """Return one hash over the hashes of many files."""
    return hashlib.sha256(_canonical(hashes)).hexdigest()


def sealed_names(folder: Path) -> frozenset[str]:
    """Return the names of the files in a folder's seal.json. `folder_problem` checks whether the list is reliable."""
    path = folder / SEAL_FILE
    listed = json.loads(path.read_text(encoding="utf-8")).get("files") if path.is_file() else None
    return frozenset(listed if isinstance(listed, dict) else ())


def folder_problem(
    folder: Path, sealed: Seal | None, keys: frozenset[str] | None, *, exported: bool = False
) -> str | None:
    """Return how a model's folder differs from the sealed one; None if it is equal down to the last bit.

    Args:
        folder: has all files of the model.
        sealed: the seal in the registry; None if it holds none.
        keys: as in `Seal.signature_problem`.
        exported: ignore files that `raydp models export` adds and no seal lists. The caller must not read them. They
            are README.md, model.sig, the folders of the base model and of MLflow's components, and the tokenizer if
            no file of it is sealed.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return NO_FILES
    # Compare the folder's seal with the registry's, and check the signature.
    path = folder / SEAL_FILE
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    own = Seal.read(text)
    if own is None or sealed is None:
        return NO_CARD
    if own != sealed:
        return OTHER_MODEL
    if (problem := own.signature_problem(keys)) is not None:
        return problem
    # Compare the files with the sealed hashes, and the record with the sealed values.
    hashes = hashes_of(folder)
    if exported:
        hashes = _without_added(hashes, sealed_names(folder))
    if hash_of(hashes) != own.statement["files_sha256"] or hashes.get(PRIVACY_FILE) != own.statement["privacy_sha256"]:
        return f"{OTHER_FILES}: {_differing(hashes, json.loads(text).get('files'))}"
    return None if _figures(folder / PRIVACY_FILE) == own.statement["guarantee"] else OTHER_FIGURES


def _without_added(hashes: dict[str, str], listed: frozenset[str]) -> dict[str, str]:
    """Return the hashes without the files that an export adds.

    A forged list does not help an attacker: a sealed file that the list omits is missing from the sealed hash.
    """
    tokenizer = () if listed & set(TOKENIZER_FILES) else TOKENIZER_FILES
    return {
        name: value
        for name, value in hashes.items()
        if name in listed or not (name in (README_FILE, OPENSSF_FILE, *tokenizer) or name.startswith(_ADDED_FOLDERS))
    }


def _figures(path: Path) -> dict[str, str] | None:
    """Return the values of a privacy record; None if the file is not a record, even if somebody sealed it."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return guarantee_of(record) if isinstance(record, dict) else None


def _differing(hashes: Mapping[str, str], listed: object) -> str:
    """Name the files that differ from seal.json's list, for a message only: the list itself may be forged."""
    known = listed if isinstance(listed, dict) else {}
    names = sorted(name for name in {*hashes, *known} if hashes.get(name) != known.get(name))
    return ", ".join(names) or SEAL_FILE


def _refuse(name: str) -> None:
    """Raise ValueError: NaN and infinities are not JSON."""
    raise ValueError(name)


def _message(content: Mapping[str, object]) -> bytes:
    return _PURPOSE + _canonical(content)


def _canonical(content: Mapping[str, object]) -> bytes:
    """Return equal bytes for equal content: sorted keys, no white space, ASCII."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")

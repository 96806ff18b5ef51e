"""What holds a model and its guarantee together: a statement of hashes and figures, signed where there is a key.

The statement binds the privacy record, every file of the model's folder, the base model's weights, the configuration,
and the logged model that it was made for. It lies beside the model as seal.json, with the hash of each file, and as a
tag, so that a lookup can check it without downloading anything.
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
"""Name and version, which MLflow writes into a model's folder as it fetches it; nothing reads it here."""
README_FILE = "README.md"
EXPORTED_BASE = "base"
"""Folder of the base model's files beside an exported adapter."""
_HASHES = ("privacy_sha256", "files_sha256")
_PURPOSE = b"raydp seal 1\n"
"""Goes before what is signed, so that a signature can mean nothing else."""


@dataclass(frozen=True, kw_only=True)
class Seal:
    """A statement with its signature.

    Attributes:
        statement: model_id, run_id, configuration, guarantee (the figures of PRIVACY_TAGS), base_weight_hash,
            privacy_sha256 (of privacy.json) and files_sha256 (of the hashes of all files); texts only.
        key: the public key that it is signed by; None where it is not signed.
        signature: base64.
    """

    statement: Mapping[str, Any]
    key: str | None = None
    signature: str | None = None

    @classmethod
    def make(cls, statement: Mapping[str, object], key: SigningKey | None) -> Seal:
        """Sign a statement, where there is a key."""
        if key is None:
            return cls(statement=statement)
        return cls(statement=statement, key=key.public, signature=key.sign(_message(statement)))

    @classmethod
    def read(cls, text: str) -> Seal | None:
        """A seal from its tag or file; None where the text is none."""
        try:
            found = json.loads(text, parse_constant=_refuse)
            statement, key, signature = found["statement"], found.get("key"), found.get("signature")
            well_formed = isinstance(statement, dict) and isinstance(statement["guarantee"], dict)
            well_formed &= all(isinstance(part, str | None) for part in (key, signature))
            well_formed &= all(isinstance(statement[name], str) for name in _HASHES)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return cls(statement=statement, key=key, signature=signature) if well_formed else None

    def tag(self) -> str:
        """As text for a tag."""
        return json.dumps(self._document(), sort_keys=True, separators=(",", ":"))

    def file(self, hashes: Mapping[str, str]) -> str:
        """As the content of seal.json."""
        # Not `to_json`, which would shorten a signature that happens to look like a path.
        return json.dumps({**self._document(), "files": hashes}, indent=2, sort_keys=True) + "\n"

    def is_of_record(self, content: bytes | None) -> bool:
        """Whether this is the content of the privacy.json that was sealed."""
        return content is not None and hashlib.sha256(content).hexdigest() == self.statement.get("privacy_sha256")

    def signature_problem(self, keys: frozenset[str] | None) -> str | None:
        """Why the signature is not to be relied on; None where it is.

        Args:
            keys: that are trusted; None: a signature need not be there, but if it is, it must fit.
        """
        if self.key is None or self.signature is None:
            return None if keys is None and self.key is self.signature else NOT_SIGNED
        if keys is not None and self.key not in keys:
            return OTHER_KEY
        return None if signature_fits(self.key, self.signature, _message(self.statement)) else BAD_SIGNATURE

    def _document(self) -> dict[str, object]:
        return {"statement": self.statement, "key": self.key, "signature": self.signature}


NO_CARD = "without a sealed privacy card"
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
) -> dict[str, Any]:
    """What a seal says of a model.

    Args:
        model_id: of MLflow's logged model: a seal that is copied to another one does not fit there.
        run_id, configuration, base_weight_hash: as in `TrialRecord`.
        privacy: the record in privacy.json.
        hashes: file -> SHA-256 (hex), of every file but seal.json.
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
    """The figures of a privacy record that models are looked up by, as text."""
    return as_params({name: privacy.get(name) for name in PRIVACY_TAGS})


def hashes_of(folder: Path) -> dict[str, str]:
    """SHA-256 (hex) of every file in a folder but seal.json and MLflow's note, by its name."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        if name not in (SEAL_FILE, DOWNLOAD_NOTE):
            found[name] = hash_of_file(path)
    return found


def hash_of_file(path: Path) -> str:
    """SHA-256 (hex) of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_of(hashes: Mapping[str, str]) -> str:
    """One hash for those of many files."""
    return hashlib.sha256(_canonical(hashes)).hexdigest()


def sealed_names(folder: Path) -> frozenset[str]:
    """Names of the files that a folder's seal.json lists; `folder_problem` says whether the list is to be relied on."""
    path = folder / SEAL_FILE
    listed = json.loads(path.read_text(encoding="utf-8")).get("files") if path.is_file() else None
    return frozenset(listed if isinstance(listed, dict) else ())


def folder_problem(
    folder: Path, sealed: Seal | None, keys: frozenset[str] | None, *, exported: bool = False
) -> str | None:
    """Why a model's folder is not what was sealed; None where it is, down to the last bit.

    Args:
        folder: with all files of the model.
        sealed: the seal that the registry holds; None where it holds none.
        keys: as in `Seal.signature_problem`.
        exported: let pass what `raydp models export` adds and no seal lists, which the caller must not read: README.md,
            the base model's folder, and the tokenizer where no file of it is sealed.
    """
    path = folder / SEAL_FILE
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    own = Seal.read(text)
    if own is None or sealed is None:
        return NO_CARD
    if own != sealed:
        return OTHER_MODEL
    if (problem := own.signature_problem(keys)) is not None:
        return problem
    hashes = hashes_of(folder)
    if exported:
        hashes = _without_added(hashes, sealed_names(folder))
    if hash_of(hashes) != own.statement["files_sha256"] or hashes.get(PRIVACY_FILE) != own.statement["privacy_sha256"]:
        return f"{OTHER_FILES}: {_differing(hashes, json.loads(text).get('files'))}"
    return None if _figures(folder / PRIVACY_FILE) == own.statement["guarantee"] else OTHER_FIGURES


def _without_added(hashes: dict[str, str], listed: frozenset[str]) -> dict[str, str]:
    """The hashes without those of the files that an export adds. A forged list does not help: a sealed file that it
    leaves out is missing from the sealed hash."""
    tokenizer = () if listed & set(TOKENIZER_FILES) else TOKENIZER_FILES
    return {
        name: value
        for name, value in hashes.items()
        if name in listed or not (name in (README_FILE, *tokenizer) or name.startswith(f"{EXPORTED_BASE}/"))
    }


def _figures(path: Path) -> dict[str, str] | None:
    """What a privacy record says; None where it is none, whoever has sealed it."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return guarantee_of(record) if isinstance(record, dict) else None


def _differing(found: Mapping[str, str], listed: object) -> str:
    """Names of files that are not as seal.json lists them, for a message only: the list itself may be forged."""
    known = listed if isinstance(listed, dict) else {}
    names = sorted(name for name in {*found, *known} if found.get(name) != known.get(name))
    return ", ".join(names) or SEAL_FILE


def _refuse(name: str) -> None:
    """NaN and infinities are no JSON."""
    raise ValueError(name)


def _message(content: Mapping[str, object]) -> bytes:
    return _PURPOSE + _canonical(content)


def _canonical(content: Mapping[str, object]) -> bytes:
    """The same bytes for the same content: sorted keys, no white space, ASCII."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")

"""The seal that binds a model to its guarantee: a statement of hashes, signed if there is a key.

The statement binds the privacy record, every file of the model's folder, the base model's weights,
the configuration, and the logged model that it was made for. It is stored beside the model as
seal.json, with the hash of each file, and as a tag, so that a lookup can check it without a
download.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from raydp.plugins.registries import service
from raydp.tracking.records import PRIVACY_TAGS, as_params

SEAL_FILE = "seal.json"
SEAL_TAG = "raydp.seal"
PRIVACY_FILE = "privacy.json"
BASE_FILE = "base.json"
DOWNLOAD_NOTE = "registered_model_meta"
"""File with name and version that MLflow writes into a downloaded folder; raydp ignores it."""
README_FILE = "README.md"
EXPORTED_BASE = "base"
"""Folder of the base model's files beside an exported adapter."""
COMPONENTS = "components"
"""Folder of the tokenizer in an exported model, where MLflow's flavour `transformers` reads it."""
OPENSSF_FILE = "model.sig"
"""Signature of an exported model in the format of OpenSSF Model Signing."""
_HASHES = ("privacy_sha256", "files_sha256")
_PURPOSE = b"raydp seal 1\n"
"""Prefix of a signed message, so that a signature cannot be mistaken for one of another purpose."""


class Signer(Protocol):
    """A private key that signs seals. An extension has the team's Ed25519 key."""

    @property
    def public(self) -> str:
        """The public half, as text."""

    def sign(self, message: bytes) -> str:
        """Return a signature in base64. Equal messages have equal signatures."""


def load_signer(path: str | Path | None) -> Signer | None:
    """Return the private key in a file; None without a file.

    Raises:
        ValueError: the file holds no key, others can read it, or no extension signs.
    """
    if path is None:
        return None
    signer: Signer = service("load_signer", needed_by="tracking.signing_key")(Path(path))
    return signer


def public_keys(given: Iterable[str | Path] | None) -> frozenset[str] | None:
    """Return the trusted public keys of texts and files; None if none are given.

    Raises:
        ValueError: an item is not a public key, or no extension checks signatures.
    """
    if given is None:
        return None
    keys: frozenset[str] = service("trusted_keys", needed_by="--trusted-key")(given)
    return keys


@dataclass(frozen=True, kw_only=True)
class Seal:
    """A statement with its signature.

    Attributes:
        statement: model_id, run_id, configuration, guarantee (the values of PRIVACY_TAGS),
            base_weight_hash, privacy_sha256 (of privacy.json) and files_sha256 (of the hashes of
            all files); texts only.
        key: the public key of the signature; None if the statement is not signed.
        signature: the signature in base64.
    """

    statement: Mapping[str, Any]
    key: str | None = None
    signature: str | None = None

    @classmethod
    def make(cls, statement: Mapping[str, object], key: Signer | None) -> Seal:
        """Make a seal of a statement. It is signed if there is a key."""
        if key is None:
            return cls(statement=statement)
        return cls(statement=statement, key=key.public, signature=key.sign(_message(statement)))

    @classmethod
    def read(cls, text: str) -> Seal | None:
        """Read a seal from its tag or file; return None if the text is not a seal."""
        # The text may come from anybody, so every form is checked before a field is used.
        try:
            content = json.loads(text, parse_constant=_refuse)
            statement, key, signature = (
                content["statement"],
                content.get("key"),
                content.get("signature"),
            )
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
        # `to_json` is not used, because it would shorten a signature that happens to look like a
        # path.
        return json.dumps({**self._document(), "files": hashes}, indent=2, sort_keys=True) + "\n"

    def is_of_record(self, content: bytes | None) -> bool:
        """Return whether the content is that of the sealed privacy.json."""
        return content is not None and hashlib.sha256(content).hexdigest() == self.statement.get(
            "privacy_sha256"
        )

    def signature_problem(self, keys: frozenset[str] | None) -> str | None:
        """Return why the signature is unreliable; None if it is reliable.

        Args:
            keys: the trusted public keys. With None the seal need not be signed, but an existing
                signature must fit.
        """
        # Half a signature is not "unsigned": both parts must be missing.
        if self.key is None or self.signature is None:
            return None if keys is None and self.key is self.signature else NOT_SIGNED
        if keys is not None and self.key not in keys:
            return OTHER_KEY
        # A signature that nobody can check is no signature.
        if (fits := service("signature_fits", needed_by=None)) is None:
            return UNCHECKED
        return None if fits(self.key, self.signature, _message(self.statement)) else BAD_SIGNATURE

    def _document(self) -> dict[str, object]:
        return {"statement": self.statement, "key": self.key, "signature": self.signature}


NO_CARD = "without a sealed privacy card"
NO_FILES = "its files are gone"
NOT_SIGNED = "not signed"
OTHER_KEY = "signed by a key that is not trusted"
BAD_SIGNATURE = "signature does not fit"
UNCHECKED = (
    "signed, and no extension that checks signatures is installed (install raydp-tune whole)"
)
OTHER_MODEL = "card of another model"
OTHER_FIGURES = "figures differ from the card's"
OTHER_FILES = "files differ from the card's"
UNREADABLE = "its files cannot be read"


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
        model_id: id of MLflow's logged model, so that a seal does not fit another model it is
            copied to.
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


def hash_of(content: Mapping[str, object]) -> str:
    """Return the SHA-256 (hex) of JSON, such as the hashes of many files."""
    return hashlib.sha256(_canonical(content)).hexdigest()


def _refuse(name: str) -> None:
    """Raise ValueError: NaN and infinities are not JSON."""
    raise ValueError(name)


def _message(content: Mapping[str, object]) -> bytes:
    return _PURPOSE + _canonical(content)


def _canonical(content: Mapping[str, object]) -> bytes:
    """Return equal bytes for equal content: sorted keys, no white space, ASCII."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode(
        "ascii"
    )

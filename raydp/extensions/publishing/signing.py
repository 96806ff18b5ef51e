"""The team's Ed25519 key: a private half that only its owner can read, and a public text."""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

PREFIX = "ed25519:"
PUBLIC_SUFFIX = ".pub"
_PUBLIC_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class SigningKey:
    """A private key, the `Signer` of `raydp.tracking`. Its repr never shows the key.

    Attributes:
        public: the public half, as `ed25519:` and base64.
    """

    public: str
    _private: Ed25519PrivateKey = field(repr=False, compare=False)

    def sign(self, message: bytes) -> str:
        """Return a signature in base64. Equal messages have equal signatures."""
        return base64.b64encode(self._private.sign(message)).decode()

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        """Read a private key.

        Raises:
            ValueError: there is no such file, others can read the file, or it holds something else.
        """
        remedy = "Make one by `raydp models keygen -o FILE`."
        private = private_key(path, "tracking.signing_key", remedy)
        if not isinstance(private, Ed25519PrivateKey):
            raise ValueError(
                "tracking.signing_key must hold an Ed25519 key in PEM without a password, got "
                f"{str(path)!r} with something else. {remedy}"
            )
        return cls(public=_public_text(private.public_key().public_bytes_raw()), _private=private)


def private_key(path: Path, name: str, remedy: str) -> PrivateKeyTypes | None:
    """Read a private key in PEM from a file that its owner alone can read.

    Args:
        path: the file.
        name: the field or option that named the file.
        remedy: how to make such a key.

    Returns:
        A key of any kind; None if the file holds something else.

    Raises:
        ValueError: there is no such file, or others can read it.
    """
    if not path.is_file():
        raise ValueError(f"{name} must be the file of a private key, got {str(path)!r}. {remedy}")
    # A key that others can read may be theirs already.
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ValueError(
            f"{name} must be readable by its owner alone, got {str(path)!r} with mode "
            f"{stat.S_IMODE(path.stat().st_mode):o}. chmod 600 it, and make another if others may "
            "have read it."
        )
    try:
        return load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # their messages may quote the file
        return None


def new_key(path: Path) -> str:
    """Make a key: the private half in a file of mode 0600, the public half beside it as FILE.pub.

    Returns:
        The public key, as `--trusted-key` takes it.

    Raises:
        FileExistsError: one of the files exists; a key is never replaced.
    """
    private = Ed25519PrivateKey.generate()
    public = _public_text(private.public_key().public_bytes_raw())
    # Check both names first, so that no half pair is left behind.
    beside = path.with_name(path.name + PUBLIC_SUFFIX)
    for file in (path, beside):
        if file.exists():
            raise FileExistsError(17, "a key is never replaced", str(file))
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    # O_EXCL never replaces a key, and the mode is set at creation, not afterwards.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(pem)
    with beside.open("x", encoding="utf-8") as text:
        text.write(public + "\n")
    return public


def trusted_keys(given: Iterable[str | Path]) -> frozenset[str]:
    """Return public keys from `ed25519:...` texts and from files with one key a line.

    In a file, `#` starts a comment.

    Raises:
        ValueError: an item is not a public key, or a file has no key.
    """
    keys: set[str] = set()
    for item in map(str, given):
        keys |= {_checked(item, item)} if item.startswith(PREFIX) else _from_file(Path(item))
    return frozenset(keys)


def signature_fits(public: str, signature: str, message: bytes) -> bool:
    """Return whether a signature is of this message by this key; False also if one is malformed."""
    try:
        key = Ed25519PublicKey.from_public_bytes(_public_bytes(public))
        key.verify(base64.b64decode(signature, validate=True), message)
    except (InvalidSignature, ValueError, binascii.Error):
        return False
    return True


def _from_file(path: Path) -> set[str]:
    """Return the public keys in a file; raise ValueError if it has none, or a private one."""
    remedy = "Give `ed25519:...` or the .pub file that `raydp models keygen` wrote."
    try:
        lines = [
            line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()
        ]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"--trusted-key must be a public key or a file of them, got {str(path)!r}. {remedy}"
        ) from error
    # A private key where public keys are expected has probably leaked, so it is refused.
    if any("PRIVATE KEY" in line for line in lines):
        raise ValueError(
            f"--trusted-key must be a public key, got the private one in {str(path)!r}. {remedy}"
        )
    keys = {
        _checked(line, f"line {number} of {path}") for number, line in enumerate(lines, 1) if line
    }
    if not keys:
        raise ValueError(
            f"--trusted-key must name a file with at least one key, got none in {str(path)!r}. "
            f"{remedy}"
        )
    return keys


def _checked(text: str, source: str) -> str:
    """Return a public key in its usual form; the error names `source`."""
    try:
        return _public_text(_public_bytes(text))
    except (ValueError, binascii.Error) as error:
        raise ValueError(
            f"--trusted-key must be ed25519: and {_PUBLIC_BYTES} bytes in base64, got {source!r}. "
            "Copy the line from the .pub file."
        ) from error


def _public_bytes(text: str) -> bytes:
    """Return the 32 bytes of `ed25519:...`; raise ValueError if the text is no public key."""
    # validate=True refuses characters outside base64. A wrong length reveals a truncated key.
    raw = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    if not text.startswith(PREFIX) or len(raw) != _PUBLIC_BYTES:
        raise ValueError("no public key")
    return raw


def _public_text(raw: bytes) -> str:
    """Return a public key of 32 bytes as `ed25519:` and base64."""
    return PREFIX + base64.b64encode(raw).decode()

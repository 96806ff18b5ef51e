"""The file of a sweep's secret key: written once, for its owner alone.

The sweep's plan keeps the fingerprint of the key.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from raydp.spec.sections import PrivacySpec

MODE = 0o600
"""Mode of the file: its owner alone reads and writes it."""
RESTORE = "Restore the sweep's own key, or start a new sweep."


def write_key(path: Path, privacy: PrivacySpec) -> bytes:
    """Draw the key, or use the test key, and write it to a file that only the user can read."""
    from raydp.training.noise.stream import TEST_KEY, new_key  # imports torch

    # The test key is a choice of the spec, and no run with it is certified.
    key = TEST_KEY if privacy.noise_key == "test" else new_key()
    _check(key, path, privacy)
    # Make a new file: one that is there may be a link, or may be open to other users.
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, MODE)  # whatever the umask
        stream.write(key)
    return key


def read_key(path: Path, privacy: PrivacySpec, known: str | None) -> bytes:
    """Read the key of a sweep.

    Args:
        known: the fingerprint of the sweep's key; None for a sweep that an earlier version started.

    Raises:
        ValueError: the file is not this user's alone, or does not hold the sweep's key, or holds
            the public test key although the spec asks for a secret key.
    """
    key = _read_private(path)
    _check(key, path, privacy)
    # Another key would draw noise that the record of the first steps does not describe.
    if known not in (None, fingerprint(key)):
        raise ValueError(
            f"{str(path)!r} must be the key that the sweep was started with, got another one. "
            f"{RESTORE}"
        )
    return key


def fingerprint(key: bytes) -> str:
    """Return what the plan knows of the key."""
    from raydp.training.noise.stream import key_fingerprint

    return key_fingerprint(key)


def _read_private(path: Path) -> bytes:
    """Return the content of a file that this user owns and nobody else may read or change.

    Raises:
        ValueError: there is no such file. A link is refused too.
    """
    try:
        # Follow no link and wait for no pipe. The checks below are of the opened file itself.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise ValueError(
            f"{str(path)!r} must be a file that can be read, got: {error.strerror}. {RESTORE}"
        ) from error
    try:
        about = os.fstat(descriptor)
        mode, owner = stat.S_IMODE(about.st_mode), about.st_uid
        if not stat.S_ISREG(about.st_mode) or (mode, owner) != (MODE, os.geteuid()):
            raise ValueError(
                f"{str(path)!r} must be a file of its user alone, with mode {MODE:o} and owner "
                f"{os.geteuid()}, got mode {mode:o} and owner {owner}. Run `chmod {MODE:o}` as its "
                "owner, or start a new sweep if another user may have read the key."
            )
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            return stream.read()
    finally:
        os.close(descriptor)


def _check(key: bytes, path: Path, privacy: PrivacySpec) -> None:
    """Check a key. A public key would void the certified guarantee of the records.

    Raises:
        ValueError: the key has a wrong length, or is the public test key although the spec asks for
            a secret key.
    """
    from raydp.training.noise.stream import KEY_BYTES, TEST_KEY

    if len(key) != KEY_BYTES:
        raise ValueError(f"{str(path)!r} must have {KEY_BYTES} bytes, got {len(key)}. {RESTORE}")
    if key == TEST_KEY and privacy.noise_key != "test":
        raise ValueError(
            f"{str(path)!r} must be a secret key, got the public test key, with which no run is "
            f"certified. {RESTORE}"
        )

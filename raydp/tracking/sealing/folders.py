"""A model's folder compared with its seal, even if somebody else can change the folder.

Links and special files are refused: what a program reads through a link is not what the folder
holds. What is loaded is a private copy that was compared with the seal, so nobody can exchange a
file between the check and the use.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path

from raydp.tracking.portable import TOKENIZER_FILES
from raydp.tracking.sealing.seal import (
    COMPONENTS,
    DOWNLOAD_NOTE,
    EXPORTED_BASE,
    NO_CARD,
    NO_FILES,
    OPENSSF_FILE,
    OTHER_FIGURES,
    OTHER_FILES,
    OTHER_MODEL,
    PRIVACY_FILE,
    README_FILE,
    SEAL_FILE,
    UNREADABLE,
    Seal,
    guarantee_of,
    hash_of,
)

EMPTY_FOLDER = "empty folder"
"""Stands for the hash of an empty folder. No seal lists one, so it differs from the sealed."""
_ADDED_FOLDERS = (f"{EXPORTED_BASE}/", f"{COMPONENTS}/")


class NotPlainError(ValueError):
    """A folder holds a link, or something that is neither a file nor a folder.

    Attributes:
        what: the entry and its kind, for a message.
    """

    def __init__(self, name: str, mode: int) -> None:
        self.what = f"{name} is {'a link' if stat.S_ISLNK(mode) else 'no regular file'}"
        super().__init__(
            f"MODEL must hold regular files and folders only, got a folder where {self.what}. "
            "Remove it."
        )


def hashes_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 (hex) of every file by name, without seal.json and MLflow's note.

    Raises:
        NotPlainError: the folder holds a link or a special file.
    """
    return {
        name: EMPTY_FOLDER if name.endswith("/") else hash_of_file(folder / name)
        for name in _entries(folder)
        if name not in (SEAL_FILE, DOWNLOAD_NOTE)
    }


def hash_of_file(path: Path) -> str:
    """Return the SHA-256 (hex) of a regular file's content."""
    with _open(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def copy_folder(folder: Path, target: Path, *, exported: bool = False) -> None:
    """Copy a model's files into a new folder, without MLflow's note.

    Args:
        exported: leave out folders that `raydp models export` adds and no seal lists: a base model
            may be large.

    Raises:
        NotPlainError: the folder holds a link or a special file.
    """
    target.mkdir()
    left_out = _ADDED_FOLDERS if exported else ()
    listed = sealed_names(folder)
    for name in _entries(folder):
        if name == DOWNLOAD_NOTE or (name.startswith(left_out) and name not in listed):
            continue
        if name.endswith("/"):
            (target / name).mkdir(parents=True)
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with _open(folder / name) as source, (target / name).open("xb") as stream:
            shutil.copyfileobj(source, stream, 1 << 20)


def folder_problem(
    folder: Path, sealed: Seal | None, keys: frozenset[str] | None, *, exported: bool = False
) -> str | None:
    """Return how a model's folder differs from the sealed one; None if it is equal bit by bit.

    Args:
        folder: has all files of the model.
        sealed: the seal in the registry; None if it holds none.
        keys: as in `Seal.signature_problem`.
        exported: ignore files that `raydp models export` adds and no seal lists. The caller must
            not read them. They are README.md, model.sig, the folders of the base model and of
            MLflow's components, and the tokenizer if no file of it is sealed.
    """
    try:
        return _problem(folder, sealed, keys, exported=exported)
    except NotPlainError as error:
        return f"{OTHER_FILES}: {error.what}"
    except OSError as error:
        return f"{UNREADABLE}: {error.strerror}"


def copy_problem(
    folder: Path,
    copy: Path,
    sealed: Seal | None,
    keys: frozenset[str] | None,
    *,
    exported: bool = False,
) -> str | None:
    """Copy a model's folder, and return how the copy differs from the sealed folder.

    Args:
        folder, keys: as in `folder_problem`.
        copy: a new folder in a place that nobody else can write to. Without a problem it then holds
            the sealed files alone.
        sealed: as in `folder_problem`; for an exported folder the seal in the folder is taken.
        exported: as in `folder_problem`.
    """
    # Copy first, check the copy: the folder may change between the two.
    try:
        copy_folder(folder, copy, exported=exported)
    except NotPlainError as error:
        return f"{OTHER_FILES}: {error.what}"
    except FileNotFoundError:
        return NO_FILES
    except OSError as error:
        return f"{UNREADABLE}: {error.strerror}"
    # An exported folder has no registry, so its own seal is what it is compared with.
    if exported:
        sealed = Seal.read(_text(copy / SEAL_FILE))
    problem = folder_problem(copy, sealed, keys, exported=exported)
    if problem is None:
        # Files that no seal covers must not be read later: remove them from the copy.
        for name in {*_entries(copy)} - {SEAL_FILE, *sealed_names(copy)}:
            (copy / name).unlink()
    return problem


def sealed_names(folder: Path) -> frozenset[str]:
    """Return the file names in a folder's seal.json; `folder_problem` checks the list."""
    text = _text(folder / SEAL_FILE)
    listed = json.loads(text).get("files") if Seal.read(text) is not None else None
    return frozenset(listed if isinstance(listed, dict) else ())


def _problem(
    folder: Path, sealed: Seal | None, keys: frozenset[str] | None, *, exported: bool
) -> str | None:
    if not folder.is_dir() or not any(_entries(folder)):
        return NO_FILES
    # Compare the folder's seal with the registry's, and check the signature.
    text = _text(folder / SEAL_FILE)
    own = Seal.read(text)
    if own is None or sealed is None:
        return NO_CARD
    if own != sealed:
        return OTHER_MODEL
    if (problem := own.signature_problem(keys)) is not None:
        return problem
    # Compare the files with the sealed hashes, and the record with the sealed values.
    hashes = hashes_of(folder)
    # Whoever exported added these files, and the caller promises not to read them.
    if exported:
        hashes = _without_added(hashes, sealed_names(folder))
    if (
        hash_of(hashes) != own.statement["files_sha256"]
        or hashes.get(PRIVACY_FILE) != own.statement["privacy_sha256"]
    ):
        return f"{OTHER_FILES}: {_differing(hashes, json.loads(text).get('files'))}"
    return (
        None
        if _figures(_text(folder / PRIVACY_FILE)) == own.statement["guarantee"]
        else OTHER_FIGURES
    )


def _without_added(hashes: dict[str, str], listed: frozenset[str]) -> dict[str, str]:
    """Return the hashes without the files that an export adds.

    A forged list does not help an attacker: a sealed file that the list omits is missing from the
    sealed hash.
    """
    tokenizer = () if listed & set(TOKENIZER_FILES) else TOKENIZER_FILES
    return {
        name: value
        for name, value in hashes.items()
        if name in listed
        or not (name in (README_FILE, OPENSSF_FILE, *tokenizer) or name.startswith(_ADDED_FOLDERS))
    }


def _figures(text: str) -> dict[str, str] | None:
    """Return the values of a privacy record; None if the text is no record, even a sealed one."""
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return guarantee_of(record) if isinstance(record, dict) else None


def _differing(hashes: Mapping[str, str], listed: object) -> str:
    """Name the files that differ from seal.json's list. The list may be forged: messages only."""
    known = listed if isinstance(listed, dict) else {}
    names = sorted(name for name in {*hashes, *known} if hashes.get(name) != known.get(name))
    return ", ".join(names) or SEAL_FILE


def _entries(folder: Path) -> list[str]:
    """Return the names of all files below a folder; an empty folder's name ends with a slash.

    Raises:
        NotPlainError: an entry is a link, a pipe, a socket or a device.
    """
    names, waiting = list[str](), [""]
    while waiting:
        above = waiting.pop()
        with os.scandir(folder / above) as entries:
            inside = list(entries)
        if above and not inside:
            names.append(above)
        for entry in inside:
            # Without following links: a link could lead out of the folder, or change its target.
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{above}{entry.name}/")
            elif entry.is_file(follow_symlinks=False):
                names.append(above + entry.name)
            else:
                raise NotPlainError(above + entry.name, entry.stat(follow_symlinks=False).st_mode)
    return sorted(names)


def _open(path: Path) -> BufferedReader:
    """Open a regular file; a link in its place is an OSError, and a pipe is not waited for."""
    # O_NOFOLLOW refuses a link, O_NONBLOCK does not wait for a pipe; fstat checks what was really
    # opened.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotPlainError(path.name, mode)
    return os.fdopen(descriptor, "rb")


def _text(path: Path) -> str:
    """Return the text of a regular file; nothing if there is none."""
    try:
        with _open(path) as stream:
            return stream.read().decode(errors="replace")
    except FileNotFoundError:
        return ""

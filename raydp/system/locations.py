"""Files and folders by path or by URI.

Content of an object store is copied to this machine once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qs, urlsplit

from filelock import FileLock
from pydantic import BeforeValidator

from raydp.system.cache import cache_dir
from raydp.system.files import write_atomically

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_URI = re.compile(r"(s3|gs|gcs|abfss?|hdfs|viewfs|file)://", re.IGNORECASE)
_SECRETS = {
    "access_key",
    "secret_key",
    "session_token",
    "account_key",
    "client_secret",
    "sas_token",
    "sig",
}
_WITH_NAMES = {"abfs", "abfss", "hdfs", "viewfs"}
"""Stores whose URIs have a container's or a user's name before the @."""
_LISTING = "listing.json"
MLFLOW_CREDENTIALS = (
    "as MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or as MLFLOW_TRACKING_TOKEN"
)
"""Where the credentials of a tracking server belong."""


def _as_text(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


Location = Annotated[str, BeforeValidator(_as_text)]
"""A path, or a URI that pyarrow opens: s3://, gs://, abfs://, hdfs://, file://."""


def is_uri(location: str | Path) -> bool:
    """Return whether a location is the URI of an object store, not a path."""
    return bool(_URI.match(str(location)))


def local_copy(location: str | Path, field: str) -> Path:
    """Return the local path of a location.

    The content of a URI is copied into the cache if it is new or has changed.

    Args:
        location: a path, or a URI.
        field: the field that holds the location, for messages.

    Raises:
        ValueError: the URI holds credentials, or there is nothing readable at it.
    """
    # Find what is at the URI.
    if not is_uri(location):
        return Path(location)
    uri = str(location)
    files, path = opened(uri, field)
    listing = _listing(files, path, uri, field)
    # Copy it, unless the cached copy has the same listing. The folder is named by a hash, because a
    # URI may be longer than a file's name allows.
    folder = cache_dir() / "fetched" / hashlib.sha256(uri.encode()).hexdigest()[:32]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # the data are private
    copy = folder / (path.rstrip("/").rsplit("/", 1)[-1] or "root")
    with FileLock(folder / "lock"):
        known = folder / _LISTING
        if (
            known.is_file()
            and copy.exists()
            and json.loads(known.read_text(encoding="utf-8")) == listing
        ):
            return copy
        # Remove the listing first: a copy that is interrupted must not look whole.
        known.unlink(missing_ok=True)
        # An object may have become a folder, or a folder an object.
        shutil.rmtree(copy) if copy.is_dir() else copy.unlink(missing_ok=True)
        for name in listing:
            fetch(files, f"{path}/{name}" if name else path, copy / name if name else copy)
        # The listing is written last, and marks the copy as whole.
        write_atomically(known, json.dumps(listing).encode())
    return copy


def fetch(files: FileSystem, source: str, target: Path) -> None:
    """Copy one file from a pyarrow file system, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Copy under another name, so that a kill leaves no half file in its place.
    part = target.with_name(f".{target.name}.part")
    with files.open_input_stream(source) as stream, part.open("wb") as sink:
        shutil.copyfileobj(stream, sink, 1 << 22)
    part.replace(target)


def refuse_credentials(uri: str, field: str, instead: str) -> None:
    """Refuse credentials in a URI, because they would be copied into specs, records and messages.

    Args:
        uri: the URI.
        field: the field that holds the URI, for messages.
        instead: where to give the credentials instead.

    Raises:
        ValueError: the URI holds credentials. The message does not repeat them.
    """
    try:
        parts = urlsplit(uri)
    except ValueError as error:  # the URI is not repeated, because it may hold credentials
        raise ValueError(
            f"{field} must be a URI, got one that is malformed ({error}). Correct it."
        ) from error
    # Some stores write a container's name before the @, which is no user name.
    named = parts.username and parts.scheme.lower() not in _WITH_NAMES
    # In the query, credentials are parameters such as `sig` of Azure.
    if parts.password or named or _SECRETS & set(parse_qs(parts.query.lower())):
        where = parts.netloc.rpartition("@")[2] or parts.scheme
        raise ValueError(
            f"{field} must be a URI without credentials, got one of {where!r} with some. Give them "
            f"{instead}."
        )


def opened(uri: str, field: str) -> tuple[FileSystem, str]:
    """Return pyarrow's file system of a URI, and the path in it.

    Credentials come from the environment or store files.

    Raises:
        ValueError: the URI holds credentials, or pyarrow cannot open it.
    """
    import pyarrow.fs

    refuse_credentials(
        uri, field, "in the environment (AWS_ACCESS_KEY_ID, ...) or in the store's own files"
    )
    parts = urlsplit(uri)
    if parts.scheme == "s3":  # reads small files in one request instead of three
        uri = parts._replace(
            query="&".join(filter(None, [parts.query, "allow_delayed_open=true"]))
        ).geturl()
    try:
        files, path = pyarrow.fs.FileSystem.from_uri(uri)
    except (pyarrow.ArrowException, OSError) as error:
        # Also a scheme that this pyarrow was built without.
        raise ValueError(
            f"{field} must be a URI that can be opened, got {uri!r} ({error}). Correct it."
        ) from error
    return files, path


def _listing(files: FileSystem, path: str, uri: str, field: str) -> dict[str, list[int]]:
    """Return file name in the folder ("" for a single file) -> [size in bytes, last change]."""
    from pyarrow import fs

    try:
        info = files.get_file_info(path)
        # A single file has no name within itself.
        if info.type == fs.FileType.File:
            return {"": [info.size, info.mtime_ns]}
        selector = fs.FileSelector(path, recursive=True)
        entries = files.get_file_info(selector) if info.type == fs.FileType.Directory else []
    except OSError as error:
        raise ValueError(
            f"{field} must be in a store that answers, got {uri!r} ({error}). Check the address "
            "and the credentials."
        ) from error
    # Size and time of change tell whether the cached copy is current.
    listing = {
        f.path[len(path) :].lstrip("/"): [f.size, f.mtime_ns]
        for f in entries
        if f.type == fs.FileType.File
    }
    if not listing:
        raise ValueError(f"{field} must name an existing file or folder, got {uri!r}. Check it.")
    return listing

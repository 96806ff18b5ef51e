"""MLflow stores: opening one, its experiments and artifacts, and resolving a model's URI."""

from __future__ import annotations

import difflib
import logging
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

from filelock import FileLock
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts, list_artifacts
from mlflow.exceptions import MlflowException
from mlflow.store.entities import PagedList

from raydp.search_spaces.names import unknown_name
from raydp.system.files import make_private
from raydp.tracking.address import SQLITE, check_store, database_of

T = TypeVar("T")
ARTIFACTS = "mlruns"  # folder beside a SQLite store
MODEL_ID_TAG = "model_id"
EXPERIMENT_ID_TAG = "experiment_id"
MOST_NAMED = 5
"""Largest number of registered models that a message names."""

_OPENING = threading.Lock()
"""One thread at a time opens a store.

MLflow's first use of a store makes its schema, and the logger is set back.
"""


@dataclass(frozen=True, kw_only=True)
class Store:
    """An open MLflow store.

    Attributes:
        uri: the store's address; a SQLite path is absolute.
        client: the client for every access; nothing is set globally.
    """

    uri: str
    client: MlflowClient

    @property
    def database(self) -> Path | None:
        """Return the file of a SQLite store; None for a server."""
        return database_of(self.uri)


def default_uri() -> str:
    """Return the default store of look-ups: MLFLOW_TRACKING_URI if set, else raydp.db here."""
    return os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///raydp.db"


def open_store(uri: str | None, *, create: bool = False) -> Store:
    """Open a tracking store and registry.

    Args:
        uri: `sqlite:///FILE` (relative to the working directory, or absolute with four slashes) or
            the http(s) address of an MLflow server; None as in `default_uri`.
        create: create the SQLite file, for its owner alone, and its schema if it does not exist. A
            lock protects the schema from other processes that create the same store.

    Raises:
        ValueError: the address is of another kind, there is no store, or no server answers.
    """
    uri = default_uri() if uri is None else uri
    # An address that can be refused without MLflow, which retries for minutes, is refused here.
    check_store(uri, create=create)
    database = database_of(uri)
    if database is not None:
        uri = uri.replace(uri.removeprefix(SQLITE).partition("?")[0], database.as_posix(), 1)
    # One thread, one process and no lines about tables while the schema is made.
    with (
        _OPENING,
        _quiet_schema_creation(),
        FileLock(f"{database}.lock") if database and create else nullcontext(),
    ):
        if database is not None and create and not database.exists():
            database.touch()
            database.chmod(0o600)  # whatever the umask; SQLite gives its journals the same mode
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        # The first use of a file makes its schema; a server has its schema already.
        if database is not None:
            client.search_experiments(max_results=1)
            client.search_registered_models(max_results=1)
    return Store(uri=uri, client=client)


def open_experiment(store: Store, name: str) -> str:
    """Return the id of the experiment, created if needed.

    A SQLite store's artifacts go into `mlruns` beside the file.

    A folder `mlruns` that is made here is its owner's alone.

    Raises:
        ValueError: the experiment was deleted.
    """
    experiment = store.client.get_experiment_by_name(name)
    folder = store.database.parent / ARTIFACTS if store.database else None
    location = folder.as_uri() if folder else None
    # Only a folder of the default place is made private; a user's own place is left alone.
    if folder and (experiment is None or experiment.artifact_location == location):
        make_private(folder)
    if experiment is None:
        try:
            return str(store.client.create_experiment(name, artifact_location=location))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        experiment = store.client.get_experiment_by_name(name)  # another process was faster
        assert experiment is not None, "it exists"
    if experiment.lifecycle_stage != "active":
        raise ValueError(
            f"tracking.experiment must not be deleted, got {name!r}. Restore it or choose another "
            "name."
        )
    return str(experiment.experiment_id)


def pages(search: Callable[..., PagedList[T]]) -> list[T]:
    """Return the items of every page of a search, which takes a page_token."""
    items, token = list[T](), None
    while True:
        page = search(page_token=token)
        items += page
        token = page.token
        if not token:
            return items


@contextmanager
def artifact(store: Store, location: str, path: str = "") -> Iterator[Path]:
    """Return a file or folder of an artifact location: in place if local, else a copy.

    The copy lives as long as the block.

    A SQLite store that was moved together with its folder `mlruns` still finds its artifacts.
    """
    local = local_folder(store, location)
    if local is not None:
        yield local / path
        return
    with tempfile.TemporaryDirectory(prefix="raydp-") as scratch:
        if not path and not list_artifacts(artifact_uri=location, tracking_uri=store.uri):
            yield Path(scratch)  # MLflow would request the empty folder as a file, for minutes
            return
        uri = f"{location.rstrip('/')}/{path}" if path else location
        yield Path(download_artifacts(artifact_uri=uri, dst_path=scratch, tracking_uri=store.uri))


def artifact_bytes(store: Store, location: str, name: str) -> bytes | None:
    """Return the content of one file of an artifact location; None if there is no such file.

    The listing is read first. Otherwise a server would ask S3 for the missing file and report an
    internal error, and MLflow would repeat the request for minutes.
    """
    local = local_folder(store, location)
    if local is not None:
        return (local / name).read_bytes() if (local / name).is_file() else None
    listed = list_artifacts(artifact_uri=location, tracking_uri=store.uri)
    if name not in {entry.path.rsplit("/", 1)[-1] for entry in listed if not entry.is_dir}:
        return None
    with artifact(store, location, name) as path:
        return path.read_bytes()


@dataclass(frozen=True, kw_only=True)
class ModelReference:
    """The model that a URI names.

    Attributes:
        model_id: the logged model (m-...).
        name, version: the registered version; None if the logged model was never registered.
    """

    model_id: str
    name: str | None = None
    version: str | None = None


def resolve_uri(store: Store, uri: str) -> ModelReference:
    """Resolve `models:/NAME/VERSION`, `models:/NAME@ALIAS` or `models:/m-ID`.

    Raises:
        ValueError: the URI has another form, or names no model in this store.
    """
    # MLflow's own forms of a model's URI.
    forms = {
        "id": re.fullmatch(r"models:/(m-[0-9a-f]{32})", uri),
        "version": re.fullmatch(r"models:/([^/:@]+)/([0-9]{1,9})", uri),
        "alias": re.fullmatch(r"models:/([^/:@]+)@([\w-]+)", uri),
    }
    try:
        if match := forms["id"]:
            return _registered(store, store.client.get_logged_model(match[1]).model_id)
        if match := forms["version"]:
            version = store.client.get_model_version(match[1], match[2])
        elif match := forms["alias"]:
            version = store.client.get_model_version_by_alias(match[1], match[2])
        else:
            raise ValueError(
                "MODEL must be models:/NAME/VERSION, models:/NAME@ALIAS or models:/m-ID, got "
                f"{uri!r}. `raydp models find` lists them."
            )
    except MlflowException as error:
        # An unknown name and an unknown version are told apart by a second look.
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        if (match := forms["version"] or forms["alias"]) and "'" not in match[1]:
            require_registered(store, match[1], "MODEL: the registered model")
        raise ValueError(
            f"MODEL must exist in the registry, got {uri!r}. `raydp models find` lists them."
        ) from error
    if (model_id := version.tags.get(MODEL_ID_TAG)) is None:
        raise ValueError(
            f"MODEL must be one that raydp registered, got {uri!r}. `raydp models find` lists them."
        )
    return ModelReference(model_id=model_id, name=version.name, version=str(version.version))


def require_registered(store: Store, name: str, field: str) -> None:
    """Raise ValueError if no registered model has this name.

    The message names the nearest ones, or a few.

    Args:
        name, field: the name, and what holds it, for the message.
    """
    if store.client.search_registered_models(f"name = '{name}'", 1):
        return
    known = sorted(entry.name for entry in pages(store.client.search_registered_models))
    if not known:
        raise ValueError(
            f"{field} must be in the registry, got {name!r} in a store without models. Check the "
            "store."
        )
    near = difflib.get_close_matches(name, known, MOST_NAMED, cutoff=0.5) or known[:MOST_NAMED]
    raise ValueError(unknown_name(field, name, near))


def _registered(store: Store, model_id: str) -> ModelReference:
    """Return a logged model with its registered version, if it has one."""
    versions = store.client.search_model_versions(f"tags.{MODEL_ID_TAG} = '{model_id}'")
    if not versions:
        return ModelReference(model_id=model_id)
    return ModelReference(
        model_id=model_id, name=versions[0].name, version=str(versions[0].version)
    )


@contextmanager
def _quiet_schema_creation() -> Iterator[None]:
    """Hide MLflow's INFO lines about new tables for the block; warnings and errors still appear."""
    logger = logging.getLogger("mlflow.store.db.utils")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def local_folder(store: Store, location: str) -> Path | None:
    """Return a local location's folder, the one beside a moved SQLite file; None if remote."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return None
    folder = Path(url2pathname(parts.path) if parts.scheme else location)
    if not folder.exists() and store.database is not None and ARTIFACTS in folder.parts:
        # Everything from the last `mlruns` on is relative to the SQLite file.
        last = len(folder.parts) - 1 - folder.parts[::-1].index(ARTIFACTS)
        folder = store.database.parent.joinpath(*folder.parts[last:])
    return folder

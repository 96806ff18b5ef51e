"""The address of an MLflow store, checked without MLflow and without writing."""

from __future__ import annotations

import http.client
import json
import re
import socket
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, url2pathname

from filelock import FileLock

from raydp.system.locations import MLFLOW_CREDENTIALS, refuse_credentials

SQLITE = "sqlite:///"
CONNECT_SECONDS = 10.0


class UnreachableError(ValueError):
    """No server answers at an address."""


def check_store(uri: str, *, create: bool = True) -> None:
    """Check, without MLflow and without writing, that a store can be opened or created.

    Raises:
        ValueError: the address is of another kind, its folder is missing, its file is not a
            database of MLflow or locked, or no server of MLflow answers; or, without `create`,
            there is no such file.
    """
    refuse_credentials(uri, "tracking.uri", MLFLOW_CREDENTIALS)
    database = database_of(uri)
    if database is None:
        _check_server(uri)
    elif _is_misread(uri, database):
        raise ValueError(
            "tracking.uri must be a file whose absolute path holds no %, no ? and no control "
            f"character, got {str(database)!r}. Name a file in another folder."
        )
    elif not database.parent.is_dir():
        raise ValueError(
            f"tracking.uri must be in a folder that exists, got {uri!r}. Make "
            f"{str(database.parent)!r}, or correct it."
        )
    elif database.exists() and not (database.is_file() and _is_sqlite(database)):
        raise ValueError(
            f"tracking.uri must be a SQLite file, got {uri!r}, which is something else. Name "
            "another file."
        )
    elif database.exists():
        _check_database(database, uri)
    elif not create:
        raise ValueError(
            f"tracking.uri must name an existing store, got {uri!r}. Run a sweep first, or "
            "correct it."
        )
    else:
        # Only a file that can be created tells that the folder can be written to: modes and mounts
        # may lie.
        try:
            tempfile.TemporaryFile(dir=database.parent).close()
        except OSError as error:
            raise ValueError(
                f"tracking.uri must be in a folder to write to, got {uri!r} ({error.strerror}). "
                "Name another."
            ) from error


def _is_misread(uri: str, database: Path) -> bool:
    """Return whether SQLAlchemy would read a part of the path as an escape or as a URI's query."""
    _, mark, query = uri.partition("?")
    options = not mark or re.fullmatch(r"\w+=[^/?]*", query)
    return not options or any(c in "%?" or not c.isprintable() for c in str(database))


def database_of(uri: str) -> Path | None:
    """Return the absolute path in a SQLite URI; None for a server."""
    # A server; everything else must be a SQLite file.
    if urlsplit(uri).scheme in ("http", "https"):
        return None
    path = uri.removeprefix(SQLITE).partition("?")[0]
    if not uri.startswith(SQLITE) or path in ("", ":memory:"):
        raise ValueError(
            "tracking.uri must be sqlite:///FILE or the http(s) address of an MLflow server, got "
            f"{uri!r}. Write sqlite:///raydp.db to keep it in a file."
        )
    return Path(path).absolute()


def local_files(uri: str, experiment: str) -> tuple[Path, ...] | None:
    """Return the file of a store and the folder of an experiment's artifacts.

    Return None if one is on a server.

    Raises:
        ValueError: the address is of another kind.
    """
    database = database_of(uri)
    if database is None or not database.is_file():
        return None
    # Read by SQL, because opening the store by MLflow would write to it.
    try:
        with closing(open_to_read(database)) as connection:
            query = "SELECT artifact_location FROM experiments WHERE name = ?"
            ((location,),) = connection.execute(query, (experiment,)).fetchall()
    except (sqlite3.DatabaseError, ValueError):  # no such table or experiment
        return None
    parts = urlsplit(str(location))
    folder = Path(url2pathname(parts.path))
    return (database, folder) if parts.scheme in ("", "file") and folder.is_dir() else None


def open_to_read(database: Path) -> sqlite3.Connection:
    """Open a SQLite file to read, with rows that have the names of their columns."""
    for mode in ("ro", "rw"):
        address = f"{database.as_uri()}?mode={mode}"
        connection = sqlite3.connect(address, uri=True, timeout=CONNECT_SECONDS)
        connection.row_factory = sqlite3.Row
        try:
            connection.execute("SELECT count(*) FROM sqlite_master")
            break
        except sqlite3.OperationalError as error:
            connection.close()
            # A writer that died in a transaction leaves it to the next reader to roll it back,
            # which writes.
            if mode == "rw" or not error.sqlite_errorname.startswith("SQLITE_READONLY"):
                raise
    return connection


def _is_sqlite(database: Path) -> bool:
    """Return whether the file is a database or still empty."""
    with database.open("rb") as stream:
        return stream.read(16) in (b"", b"SQLite format 3\0")


def _check_database(database: Path, uri: str) -> None:
    """Refuse a file that is damaged, locked, or the database of another program.

    MLflow would write its tables there.

    Raises:
        UnreachableError: another program has locked the file.
        ValueError: the file is damaged or of another program.
    """
    # Another process may be making the schema, and holds this lock meanwhile.
    lock = Path(f"{database}.lock")
    try:
        foreign = _is_foreign(database)
        if foreign and lock.exists():
            with FileLock(lock):
                foreign = _is_foreign(database)
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            raise UnreachableError(
                f"tracking.uri must be a store that can be read, got {uri!r} ({error}). Close the "
                "program that holds it, or wait for its end."
            ) from error
        raise ValueError(
            f"tracking.uri must be a whole SQLite file, got {uri!r} ({error}). Restore a copy, or "
            "name another file."
        ) from error
    if foreign:
        raise ValueError(
            f"tracking.uri must be a SQLite file of MLflow, got {uri!r}, the database of another "
            "program. Name another file."
        )


def _is_foreign(database: Path) -> bool:
    """Return whether a file has tables, and they are not those of MLflow."""
    with closing(open_to_read(database)) as connection:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = {name for (name,) in rows}
    return bool(tables) and "alembic_version" not in tables


def _check_server(uri: str) -> None:
    """Raise UnreachableError at once if no MLflow server listens; MLflow retries for minutes."""
    parts = urlsplit(uri)
    if parts.scheme in getproxies():  # a proxy answers instead of the server
        return
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise ValueError(
            f"tracking.uri must have a port from 1 to 65535, got {uri!r}. Correct it."
        ) from error
    # MLflow repeats a refused connection for minutes, so one is tried here first.
    try:
        socket.create_connection((parts.hostname or "", port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise UnreachableError(
            "tracking.uri must be the address of a running MLflow server, got "
            f"{parts.hostname}:{port} ({error}). Start it, or correct the address."
        ) from error
    if (answer := _answer(uri)) is not None:
        raise UnreachableError(
            f"tracking.uri must be the address of an MLflow server, got {parts.hostname}:{port}, "
            f"which gives {answer} to a search for experiments. Correct the address."
        )


def _answer(uri: str) -> str | None:
    """Return a server's answer to a search for experiments, if no MLflow would give it.

    Return None if it may be: a server that asks for a login or sends the client elsewhere.
    """
    parts = urlsplit(uri)
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=CONNECT_SECONDS)
    try:
        connection.request(
            "GET", f"{parts.path.rstrip('/')}/api/2.0/mlflow/experiments/search?max_results=1"
        )
        response = connection.getresponse()
        body = response.read() if response.status == http.HTTPStatus.OK else b""
    except (OSError, http.client.HTTPException) as error:
        # Certificates are checked as MLflow is told to.
        return None if secure else f"{type(error).__name__}"
    finally:
        connection.close()
    # A path that is not there, or that refuses GET, is no API of MLflow. Other statuses may be a
    # login.
    if response.status in (404, 405, 501):
        return f"status {response.status}"
    if response.status != http.HTTPStatus.OK:
        return None
    try:
        known = isinstance(json.loads(body), dict)
    except ValueError:
        known = False
    return None if known else "something else than MLflow's JSON"

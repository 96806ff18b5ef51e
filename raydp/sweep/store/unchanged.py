"""Tells whether anything has changed since a sweep ended.

If nothing has, a resume has nothing to do.

A resume reads the data, opens the tracking store and delivers, selects and reports again. It is
spared all this if the spec, its files, the sweep's folder and the files of the store are those of
the last end.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from raydp.analysis.tables.old_names import NEW, OLD
from raydp.spec.document import SweepSpec
from raydp.sweep.store.folder import SweepFolder
from raydp.tracking.address import local_files
from raydp.version import __version__

ELSEWHERE = {"storage", "cluster", "tracking"}
"""Fields of a spec whose texts are not looked up as files.

They name no file that a result depends on, or a file that is looked at by itself.
"""


def remember(spec: SweepSpec) -> None:
    """Note that a sweep has ended, with every run finished and a configuration selected.

    A full disk must not hide the result: then a resume goes the long way.
    """
    with suppress(OSError):
        SweepFolder.open(_path(spec)).end.write(_state(spec))


def is_unchanged(spec: SweepSpec) -> bool:
    """Return whether a sweep has ended and nothing has changed since.

    Files are compared by size and by the time of their last change, which no program can set back.
    What a server or an object store holds cannot be compared so: a sweep whose runs are recorded by
    a server counts as changed.

    Args:
        spec: the draft that `remember` was given, read again.
    """
    path, end = _path(spec), None
    if SweepFolder.is_at(path):
        with suppress(ValueError):  # a damaged note is none
            end = SweepFolder(path=path).end()
    return end is not None and end == _state(spec)


def _path(spec: SweepSpec) -> Path:
    return Path(spec.storage) / spec.name


def _state(spec: SweepSpec) -> str | None:
    """Return the SHA-256 of all that a resume looks at; None if any is elsewhere or missing."""
    store = local_files(spec.tracking.uri, spec.tracking.experiment)
    written = spec.model_dump(mode="json")
    # The name of earlier versions, so that an end that they noted still counts.
    written["select"][OLD] = written["select"].pop(NEW)
    texts = list(_texts(written))
    # What a server or an object store holds cannot be compared by its files.
    if store is None or any("://" in text for text in texts):
        return None
    inputs = [Path(text) for text in texts if os.path.exists(text)]
    log = Path(f"{store[0]}-wal")
    if log.exists() and log.stat().st_size:  # what was written last is not in the store's file yet
        return None
    files = [
        *SweepFolder(path=_path(spec)).lasting_files(),
        *(file for root in (*store, *inputs) for file in _in(root)),
    ]
    # The state is the version, the spec, and each file's size and time of change (ctime).
    state = hashlib.sha256(json.dumps([__version__, written], sort_keys=True).encode())
    try:
        for file in sorted(os.path.abspath(file) for file in files):
            found = os.stat(file)
            state.update(
                f"{file}\0{found.st_size}\0{found.st_ctime_ns}\0".encode(errors="surrogateescape")
            )
    except OSError:  # a link to nothing or to itself, or another program removes files
        return None
    return state.hexdigest()


def _texts(written: object) -> Iterator[str]:
    """Yield the texts of a document of JSON, except those of `ELSEWHERE`."""
    if isinstance(written, str):
        yield written
    elif isinstance(written, list):
        for part in written:
            yield from _texts(part)
    elif isinstance(written, dict):
        for name, part in written.items():
            if name not in ELSEWHERE:
                yield from _texts(part)


def _in(root: Path) -> Iterator[Path]:
    """Yield the files of a folder, or a file."""
    if not root.is_dir():
        yield root
    for folder, _, names in os.walk(root, followlinks=True):
        yield from (Path(folder, name) for name in names)

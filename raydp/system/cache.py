"""The user's cache folder, and folders in it that are written when they are first used."""

import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOGGER = logging.getLogger(__name__)
VARIABLE = "XDG_CACHE_HOME"
"""Environment variable with the folder of all caches of the user."""
PART, LOCK = ".part", ".lock"
ABANDONED_SECONDS = 86_400.0
"""Age at which a scratch folder without a lock counts as abandoned, by its newest file.

Earlier versions made such folders.
"""


def cache_dir() -> Path:
    """Return the folder of converted weights, calibrations and hidden states.

    It is safe to delete at any time.
    """
    return Path(os.environ.get(VARIABLE) or Path.home() / ".cache") / "raydp"


@contextmanager
def empty_cache() -> Iterator[None]:
    """Use a new and empty cache folder during the block, in this process and its children."""
    before = os.environ.get(VARIABLE)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[VARIABLE] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before


def stored_once(target: Path, write_fn: Callable[[Path], None]) -> Path:
    """Return a folder that one process writes at its first use, whole or not at all.

    The folder is written under another name and then renamed. The lock of the writing process ends
    with the process. So a kill at any moment leaves a part that `remove_abandoned` and the next use
    recognise as abandoned, and remove.

    Args:
        target: path of the folder.
        write_fn: creates the folder at a given path, with its content.
    """
    # A folder that exists is whole, so no lock is needed.
    if target.is_dir():
        LOGGER.debug("%s is in the cache", target)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(target.parent)
    part = _beside(target, PART)
    with _locked(_beside(target, LOCK)):
        # Another process may have written it while this one waited.
        if target.is_dir():
            return target
        # The lock is held, so a part can only be left by a dead process.
        shutil.rmtree(part, ignore_errors=True)
        try:
            write_fn(part)
            part.rename(target)
            LOGGER.debug("%s is written into the cache", target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target


def remove_abandoned(folder: Path) -> None:
    """Remove the parts that dead processes left in the cache; those of living ones stay."""
    for part in folder.glob(f"*{PART}"):
        # A living process holds its lock, and its part stays.
        with suppress(BlockingIOError), _locked(part.with_suffix(LOCK), wait=False):
            shutil.rmtree(part, ignore_errors=True)
    for scratch in folder.glob("tmp????????"):
        with suppress(FileNotFoundError):
            newest = max(path.lstat().st_mtime for path in (scratch, *scratch.rglob("*")))
            # Such folders have no lock, so only their age tells.
            if time.time() - newest > ABANDONED_SECONDS:
                shutil.rmtree(scratch, ignore_errors=True)


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(target.name + suffix)


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a file lock during the block. The lock also ends with the process.

    Raises:
        BlockingIOError: another process holds it, and wait is False.
    """
    with path.open("w") as stream:
        # The system releases the lock when the process ends, however it ends.
        fcntl.flock(stream, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield

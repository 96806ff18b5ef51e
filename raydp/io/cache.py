"""The user's cache folder, and folders in it that are written at their first use."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PART, LOCK = ".part", ".lock"
ABANDONED_SECONDS = 86_400.0
"""Age, of what was written last in it, at which a scratch folder without a lock, as earlier versions made them, belongs
to no process that lives."""


def cache_dir() -> Path:
    """Where converted weights, calibrations and hidden states are kept; safe to delete at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raydp"


def stored_once(target: Path, write_fn: Callable[[Path], None]) -> Path:
    """A folder that is written at its first use, whole or not at all, by one of several processes.

    It is written under another name and then renamed. The lock of the process that writes ends with the process, so a
    kill at any moment leaves a part that `remove_abandoned` and the next use know as abandoned, and remove.

    Args:
        write_fn: makes the folder that it is given, with its content.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(target.parent)
    part = _beside(target, PART)
    with _locked(_beside(target, LOCK)):
        if target.is_dir():
            return target
        shutil.rmtree(part, ignore_errors=True)
        try:
            write_fn(part)
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target


def remove_abandoned(folder: Path) -> None:
    """Remove the parts that dead processes left in a folder of the cache; what a living one writes stays."""
    for part in folder.glob(f"*{PART}"):
        with suppress(BlockingIOError), _locked(part.with_suffix(LOCK), wait=False):
            shutil.rmtree(part, ignore_errors=True)
    for scratch in folder.glob("tmp????????"):
        with suppress(FileNotFoundError):
            newest = max(path.lstat().st_mtime for path in (scratch, *scratch.rglob("*")))
            if time.time() - newest > ABANDONED_SECONDS:
                shutil.rmtree(scratch, ignore_errors=True)


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(target.name + suffix)


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock for the time of the block; it ends with the process.

    Raises:
        BlockingIOError: another process holds it, and wait is False.
    """
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield

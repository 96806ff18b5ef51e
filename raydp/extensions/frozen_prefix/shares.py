"""The frozen prefix is computed in shares, by all processes that wait for it.

Finished shares survive a kill. Every share has a fixed place in the files of the hidden states, so
no share is copied. A process takes a share by a lock that ends with the process. If it is killed,
another process computes the share again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.system.cache import ABANDONED_SECONDS, LOCK
from raydp.tasks.task import batches_by_length
from raydp.tasks.text.examples import TokenizedExamples

BATCH_TOKENS = 2048
"""Padded tokens of one forward pass."""
SHARE_TOKENS, MOST_SHARES = 2 * BATCH_TOKENS, 256
"""Least number of tokens of a share, and largest number of shares of a split, both about.

A share is what a kill loses at most, and what the other processes may have to wait for at the end.
"""
SHARES = ".shares"
"""End of the name of the folder of a prefix that is being computed."""
POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Share:
    """Examples whose hidden states one process computes.

    Attributes:
        name: number of the share.
        file: name of the file for the hidden states of its split.
        batches: positions in the split, batch by batch.
        tokens: number of their tokens.
    """

    name: str
    file: str
    batches: tuple[NDArray[np.int64], ...]
    tokens: int


def shares_of(splits: Mapping[str, TokenizedExamples]) -> list[Share]:
    """Cut the examples of each split into shares. The shares do not depend on who computes them."""
    shares = list[Share]()
    for file, examples in splits.items():
        lengths, batches, tokens = examples.lengths(), list[NDArray[np.int64]](), 0
        every = list(batches_by_length(lengths, BATCH_TOKENS))
        # At most about MOST_SHARES shares, so that the files of locks stay few.
        least = max(SHARE_TOKENS, len(examples.token_ids) // MOST_SHARES)
        for number, batch in enumerate(every, start=1):
            batches.append(batch)
            tokens += int(lengths[batch].sum())
            if tokens >= least or number == len(every):
                shares.append(
                    Share(name=str(len(shares)), file=file, batches=tuple(batches), tokens=tokens)
                )
                batches, tokens = [], 0
    return shares


def tokens_left(target: Path, shares: Sequence[Share]) -> int:
    """Return the number of tokens whose hidden states are not yet computed."""
    return (
        0
        if target.is_dir()
        else sum(share.tokens for share in _unfinished(_work_folder(target), shares))
    )


def compute_together(
    target: Path,
    sizes: Mapping[str, int],
    shares: Sequence[Share],
    compute_fn: Callable[[Share, Path, Callable[[int], None]], None],
    progress: Callable[[float], object],
) -> None:
    """Compute shares until all are computed, by this process or by others.

    Then give the folder its name.

    Args:
        target: path of the finished folder.
        sizes: file name -> bytes.
        compute_fn: computes a share and writes it into a file of its split's size. It calls the
            function that it is given with the number of tokens after each batch.
        progress: called with the share of all tokens that are computed, by all processes together.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    lock, folder = target.with_name(target.name + LOCK), _work_folder(target)
    # Nobody renames or removes the folder while somebody works in it.
    with _locked(lock, fcntl.LOCK_SH):
        if target.is_dir():
            return
        folder.mkdir(exist_ok=True)
        for name, size in sizes.items():
            with (folder / name).open("ab") as stream:
                stream.truncate(size)  # no change if another process has done it
        with _helper(folder):
            _help(folder, shares, compute_fn, progress)
    # Nobody computes any more. The first process here removes the marks and gives the folder its
    # name; the rename is atomic, so a reader sees all states or none.
    with _locked(lock, fcntl.LOCK_EX):
        if not target.is_dir():
            for path in folder.iterdir():
                if path.name not in sizes:
                    path.unlink()
            folder.rename(target)


def remove_abandoned_shares(cache: Path) -> None:
    """Remove unfinished hidden-state caches that no process has written to for a day."""
    for folder in cache.glob(f"*{SHARES}"):
        with suppress(BlockingIOError, FileNotFoundError):
            newest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
            if time.time() - newest > ABANDONED_SECONDS:
                # A lock that is held means that somebody still works there.
                with _locked(folder.with_suffix(LOCK), fcntl.LOCK_EX | fcntl.LOCK_NB):
                    shutil.rmtree(folder, ignore_errors=True)


def _work_folder(target: Path) -> Path:
    return target.with_name(target.name + SHARES)


def _unfinished(folder: Path, shares: Sequence[Share]) -> list[Share]:
    return [share for share in shares if not (folder / f"{share.name}.done").exists()]


def _help(
    folder: Path,
    shares: Sequence[Share],
    compute_fn: Callable[[Share, Path, Callable[[int], None]], None],
    progress: Callable[[float], object],
) -> None:
    """Compute share after share until none is left, and wait for those that others compute."""
    total, reported = sum(share.tokens for share in shares), -1.0
    # Others may finish shares at any time, so the list is read from the disk again and again.
    left = _unfinished(folder, shares)

    def report(own: int = 0) -> None:
        nonlocal reported
        done = (total - sum(share.tokens for share in left) + own) / total if total else 1.0
        if done > reported:
            reported = done
            progress(done)

    report()
    while left:
        took = False
        # Take the first share whose lock is free.
        for share in left:
            with (
                suppress(BlockingIOError),
                _locked(folder / f"{share.name}.lock", fcntl.LOCK_EX | fcntl.LOCK_NB),
            ):
                done = folder / f"{share.name}.done"
                if not done.exists():  # another process may just have finished it
                    own = 0

                    def count(tokens: int) -> None:
                        nonlocal own
                        own += tokens
                        report(own)

                    with _threads(folder):
                        compute_fn(share, folder / share.file, count)
                    # Marked as done only after its states are on the disk.
                    done.touch()
                took = True
                break
        # All shares that are left are being computed by others. If one of these processes dies, its
        # lock is free again.
        if not took:
            time.sleep(POLL_SECONDS)
        left = _unfinished(folder, shares)
        report()


@contextmanager
def _helper(folder: Path) -> Iterator[None]:
    """Be counted among the processes that compute shares, for the block or the process's life."""
    path = folder / f"{uuid.uuid4().hex}.helper"
    with _locked(path, fcntl.LOCK_EX):
        yield
    path.unlink(missing_ok=True)


@contextmanager
def _threads(folder: Path) -> Iterator[None]:
    """Compute on this process's part of the cores in the block, on no fewer than before."""
    before = torch.get_num_threads()
    # The lock of a process that was killed is free, so the process is not counted.
    helpers = sum(_is_locked(path) for path in folder.glob("*.helper"))
    torch.set_num_threads(max(before, len(os.sched_getaffinity(0)) // max(1, helpers)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _is_locked(path: Path) -> bool:
    """Return whether a process holds a lock. Somebody else who asks the same does not count."""
    try:
        with path.open("r") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


@contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    """Hold a file lock during the block. The lock also ends with the process."""
    with path.open("a") as stream:
        fcntl.flock(stream, how)
        yield

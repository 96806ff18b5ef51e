"""Folders of the cache are whole or absent, and what a killed process leaves of one is removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raydp.system.cache import remove_abandoned, stored_once

WRITER = """
import sys, time
from pathlib import Path
from raydp.system.cache import stored_once

def write(part):
    part.mkdir()
    (part / "train.bin").write_bytes(bytes(1 << 20))
    print("begun", flush=True)
    time.sleep(600)

stored_once(Path(sys.argv[1]), write)
"""


@contextmanager
def writer(target: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in the midst of writing the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(target)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_parts_of_killed_processes_are_removed_and_parts_of_living_ones_stay(
    tmp_path: Path,
) -> None:
    with writer(tmp_path / "killed") as killed, writer(tmp_path / "living"):
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        assert {p.name for p in tmp_path.iterdir() if p.is_dir()} == {"killed.part", "living.part"}
        remove_abandoned(tmp_path)
        assert {p.name for p in tmp_path.iterdir() if p.is_dir()} == {"living.part"}


def test_the_next_use_writes_the_folder_anew(tmp_path: Path) -> None:
    with writer(tmp_path / "model"):
        pass
    stored_once(tmp_path / "model", lambda part: part.mkdir())
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["model"]
    assert not any((tmp_path / "model").iterdir())


def test_a_scratch_folder_in_which_something_is_still_written_stays(tmp_path: Path) -> None:
    scratch = tmp_path / "tmpab12cd34"
    scratch.mkdir()
    (scratch / "train.bin").write_bytes(b"1")
    os.utime(scratch, (time.time() - 2 * 86_400,) * 2)
    remove_abandoned(tmp_path)
    assert (scratch / "train.bin").exists()

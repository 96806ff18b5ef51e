"""A result that the disk does not take waits; it is nowhere else."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from raydp.spec.reading import load_spec
from raydp.sweep.engine import committer as committing
from raydp.sweep.engine.committer import Committer
from raydp.sweep.engine.context import SweepContext
from raydp.sweep.engine.listeners import SilentListener
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.results import RunResult
from raydp.system import files
from raydp.system.files import wait_until_writable
from tests.builders.plans import plan_of_runs
from tests.builders.specs import small_spec

pytestmark = pytest.mark.cluster


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB that a file of it fills."""
    folder = tmp_path / "full"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=True)
    model = folder / "trials" / "run" / "attempt-1" / "model"
    model.mkdir(parents=True)
    (model / "adapter_model.safetensors").write_bytes(b"weights")
    filling = folder / "filling"
    with pytest.raises(OSError, match="No space left"):
        filling.write_bytes(bytes(2 << 20))
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A file system that has become read-only, as Linux does after an error of the disk."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
    model = folder / "trials" / "run" / "attempt-1" / "model"
    model.mkdir(parents=True)
    (model / "adapter_model.safetensors").write_bytes(b"weights")
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def committer(folder: Path, tmp_path: Path) -> Committer:
    context = SweepContext(
        spec=load_spec(small_spec(tmp_path)),
        folder=SweepFolder(path=folder),
        facts=None,  # type: ignore[arg-type]
        weight_hash="",
    )
    context.__dict__["plan"] = plan_of_runs()
    return Committer(context=context, listener=SilentListener())


OUTCOME = RunResult(
    run_id="run", status="finished", utility_loss=1.0, attempt="attempt-1", notes=("x" * 100_000,)
)


def commit_beside(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> threading.Thread:
    """Commit a result in a thread, and see that it waits."""
    monkeypatch.setattr(committing, "WRITE_SECONDS", 0.05)
    writing = threading.Thread(target=committer(folder, tmp_path)._write, args=(OUTCOME,))
    writing.start()
    time.sleep(0.5)
    assert writing.is_alive()
    return writing


def test_a_result_waits_for_space_with_its_model(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writing = commit_beside(full, tmp_path, monkeypatch)
    (full / "filling").unlink()
    writing.join(20)
    folder = SweepFolder(path=full)
    assert folder.is_finished("run")
    assert (folder.trial("run") / "model" / "adapter_model.safetensors").read_bytes() == b"weights"
    assert "No space left on device): free some space" in caplog.text


def test_committer_waits_while_disk_is_read_only(
    read_only: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    writing = commit_beside(read_only, tmp_path, monkeypatch)
    subprocess.run(["mount", "-o", "remount,rw", read_only], check=True)
    writing.join(20)
    assert SweepFolder(path=read_only).is_finished("run")
    assert "Read-only file system): free some space, or check the disk" in caplog.text


def test_a_failed_run_waits_for_its_disk(
    full: Path, read_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All attempts of all runs would fail within seconds while the disk takes nothing."""
    monkeypatch.setattr(files, "PROBE_SECONDS", 0.05)
    given_up = threading.Event()
    for folder in (full, read_only):
        wait = partial(wait_until_writable, folder, seconds=60.0, stop_fn=given_up.is_set)
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.3)
        assert waiting.is_alive()
        if folder == full:
            (full / "filling").unlink()
        else:
            given_up.set()  # the sweep pauses
        waiting.join(20)
        assert not waiting.is_alive()
    subprocess.run(["mount", "-o", "remount,rw", read_only], check=True)
    wait_until_writable(read_only, seconds=60.0, stop_fn=lambda: False)


def test_in_the_end_it_is_an_error(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "WRITE_SECONDS", 0.01)
    monkeypatch.setattr(committing, "WRITE_TRIES", 3)
    with pytest.raises(OSError, match="No space left"):
        committer(full, tmp_path)._write(OUTCOME)
    assert SweepFolder(path=full).result("run") is None
    assert (full / "trials" / "run" / "model").is_dir(), "the model is kept for the next try"


def test_a_model_that_is_never_seen_is_a_run_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared folder may show it late; a result without it would say finished and have nothing to
    load."""
    monkeypatch.setattr(committing, "WRITE_SECONDS", 0.01)
    folder = tmp_path / "sweep"
    (folder / "trials").mkdir(parents=True)
    outcome = committer(folder, tmp_path)._write(OUTCOME)
    assert (outcome.status, SweepFolder(path=folder).has_ended("run")) == ("failed", False)
    assert "the trained model was lost" in outcome.reason
    monkeypatch.setattr(committing, "UNSEEN_TRIES", 1000)
    late = threading.Thread(target=committer(folder, tmp_path)._write, args=(OUTCOME,))
    late.start()
    time.sleep(0.2)
    model = folder / "trials" / "run" / "attempt-1" / "model"
    model.mkdir(parents=True)
    late.join(20)
    assert SweepFolder(path=folder).is_finished("run")
    assert (folder / "trials" / "run" / "model").is_dir()

"""Runs whose files go through an object store: the points are the same, and nothing is left
behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from raydp import Sweep
from raydp.extensions.object_store.bucket import Bucket, StoredFiles
from raydp.spec.reading import load_spec
from raydp.sweep.engine import slots
from tests.sweep.undisturbed import Done, assert_same_points, runs_in, spec_of

pytestmark = pytest.mark.xdist_group("sweep")


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    (tmp_path / "node-a").mkdir(exist_ok=True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "node-a"))
    return Bucket((tmp_path / "store" / "sweep").as_uri())


def test_another_node_goes_on_from_the_newest_checkpoint(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    here = StoredFiles(bucket=bucket, run_id="run").checkpoints(warnings.append)
    for step in (1, 2, 3):
        here.save(step, {"w": torch.full((3,), float(step))}, {"history": []})
    assert [name.rpartition("/")[2] for name in bucket.names("run/checkpoints")] == [
        "step-00000002.safetensors", "step-00000003.safetensors",
    ]  # fmt: skip
    (tmp_path / "node-b").mkdir(exist_ok=True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "node-b"))
    there = StoredFiles(bucket=bucket, run_id="run").checkpoints(warnings.append)
    found = there.load()
    assert found is not None
    assert (found[0], found[1]["w"][0]) == (3, 3.0)
    assert not warnings


def test_a_store_that_is_down_is_said_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node").mkdir(exist_ok=True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "node"))
    warnings: list[str] = []
    (tmp_path / "file").write_text("in the way")
    store = StoredFiles(
        bucket=Bucket((tmp_path / "file" / "x").as_uri()), run_id="run"
    ).checkpoints(warnings.append)
    store.save(1, {"w": torch.zeros(1)}, {})
    assert "could not be sent to the store" in warnings[0]


def test_every_attempts_steps_are_in_the_ledger(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = StoredFiles(bucket=bucket, run_id="run").ledger()
    for step in (0, 1, 2):
        first.record(step)
    (tmp_path / "node-b").mkdir(exist_ok=True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "node-b"))
    second = StoredFiles(bucket=bucket, run_id="run").ledger()
    second.record(2)
    summary = second.summary()
    assert (summary["noisy_steps"], summary["executions"], summary["replays"]) == (3, 4, 1)


def test_a_model_is_handed_over_and_the_scratch_is_gone(bucket: Bucket, tmp_path: Path) -> None:
    files = StoredFiles(bucket=bucket, run_id="run")
    files.model_folder("attempt-1").mkdir(parents=True)
    (files.model_folder("attempt-1") / "adapter_model.safetensors").write_bytes(b"weights")
    files.hand_over("attempt-1")
    files.close()
    assert not list((tmp_path / "node-a").rglob("*.safetensors"))
    bucket.collect("run", "attempt-1", tmp_path / "run")
    assert (
        tmp_path / "run" / "attempt-1" / "model" / "adapter_model.safetensors"
    ).read_bytes() == b"weights"


def test_a_worker_that_was_thought_dead_disturbs_nobody_on_its_node(bucket: Bucket) -> None:
    """It hands over and goes while its successor still trains; what it leaves in the store is gone
    at the end."""
    late, live = (StoredFiles(bucket=bucket, run_id="run") for _ in range(2))
    for files in (late, live):
        files.model_folder("attempt").mkdir(parents=True)
        (files.model_folder("attempt") / "adapter_model.safetensors").write_bytes(b"weights")
    late.hand_over("attempt")
    late.close()
    live.ledger().record(0)
    live.hand_over("attempt")
    assert bucket.names("run/attempt")
    assert bucket.runs() == {"run"}


def test_a_place_that_cannot_be_written_to_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match=r"cluster\.exchange must be a place to write to"):
        Bucket((tmp_path / "file" / "x").as_uri()).check()
    with pytest.raises(ValueError, match="must be a URI such as"):
        load_spec({**spec_of(tmp_path), "cluster": {"exchange": "/mnt/shared"}})
    with pytest.raises(ValueError, match=r"cluster\.exchange must name a bucket or a folder"):
        Bucket("s3://").check()


@pytest.mark.daily
def test_a_sweep_of_two_workers_through_a_store_is_that_of_one_in_a_shared_folder(
    done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the number of a trial's workers, nor the way of its files, nor a new worker group
    changes a point."""
    monkeypatch.setattr(slots, "TRIALS_PER_GROUP", 3)
    spec = spec_of(tmp_path)
    workers = {"workers_per_trial": 2, "cpus_per_worker": 0.5, "max_concurrent_trials": 1}
    spec["cluster"] = {
        **workers,
        "exchange": (tmp_path / "store").as_uri(),
        "checkpoint_seconds": 0.0,
    }
    sweep = Sweep(spec)
    result = sweep.run()
    assert result.counts.finished == 4
    assert len(list((result.folder / "ray").glob("slot-0-*"))) == 2, (
        "the base model and four runs, three a group"
    )
    assert_same_points(sweep.points(), done.points)
    assert runs_in(spec["tracking"]["uri"]) == {"parents": 1, "children": 4, "versions": 4}
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()], (
        "nothing is left in the store"
    )

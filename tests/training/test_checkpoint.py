"""A kill at any moment leaves a whole checkpoint behind; a damaged one is passed over and said
so."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from raydp.training.checkpoint import CheckpointStore


def store(folder: Path, run_id: str = "run", warnings: list[str] | None = None) -> CheckpointStore:
    return CheckpointStore(
        folder=folder, run_id=run_id, warn=(warnings if warnings is not None else []).append
    )


def test_the_newest_of_two_kept_comes_back_exactly(tmp_path: Path) -> None:
    weights = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    for step in (1, 2, 3):
        store(tmp_path).save(step, {"w": weights * step}, {"history": [{"step": step}]})
    assert len(list(tmp_path.iterdir())) == 2
    step, tensors, state = store(tmp_path).load()
    assert (step, state) == (3, {"history": [{"step": 3}]})
    assert torch.equal(tensors["w"], weights * 3)


def test_a_truncated_checkpoint_is_passed_over_and_said_so(tmp_path: Path) -> None:
    warnings: list[str] = []
    for step in (1, 2):
        store(tmp_path).save(step, {"w": torch.full((100,), float(step))}, {})
    newest = tmp_path / "step-00000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:-50])
    step, tensors, _ = store(tmp_path, warnings=warnings).load()
    assert step == 1
    assert tensors["w"][0] == 1
    assert "step-00000002" in warnings[0]


def test_another_runs_checkpoint_is_never_loaded(tmp_path: Path) -> None:
    store(tmp_path, "other").save(1, {"w": torch.zeros(1)}, {})
    assert store(tmp_path, "mine").load() is None


@pytest.mark.cluster
def test_where_it_cannot_be_written_those_of_before_stay_and_it_is_said(tmp_path: Path) -> None:
    """A file system of 1 MiB, a checkpoint of 0.4 MB: two fit.

    Nothing is left of the third that would fill it.
    """
    warnings: list[str] = []
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", tmp_path], check=True)
    try:
        for step in (1, 2, 3):
            store(tmp_path, warnings=warnings).save(
                step, {"w": torch.full((100_000,), float(step))}, {}
            )
        names = sorted(path.name for path in tmp_path.iterdir())
        found = store(tmp_path).load()
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)
    assert names == ["step-00000001.safetensors", "step-00000002.safetensors"]
    assert found is not None
    assert found[0] == 2
    assert warnings == [
        "checkpoint after step 3 of run run could not be written (No space left on device)"
    ]


def test_nothing_to_load(tmp_path: Path) -> None:
    assert store(tmp_path / "none").load() is None

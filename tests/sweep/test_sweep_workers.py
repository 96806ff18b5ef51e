"""However many workers a trial has, and however long a group of them lives, the points are the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from raydp import Sweep
from raydp.sweep.engine import slots
from tests.builders.specs import small_spec
from tests.sweep.undisturbed import SCORES, Done, assert_same_points, spec_of


@pytest.mark.slow
def test_a_worker_group_is_replaced_after_its_share_of_trials(
    done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "TRIALS_PER_GROUP", 3)
    sweep = Sweep({**spec_of(tmp_path), "cluster": {"max_concurrent_trials": 1}})
    result = sweep.run()
    assert len(list((result.folder / "ray").glob("slot-0-*"))) == 2, "the base model and four runs, three a group"
    assert_same_points(sweep.points(), done.points)


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [pytest.param("lora", marks=pytest.mark.thorough), "none"])
def test_two_workers_that_share_the_weights_give_the_points_of_one(tmp_path: Path, adapter: str) -> None:
    model = {"name": "tiny", "adapter": {"type": adapter}}
    scores = [*SCORES, {"name": "logprob"}]
    tables = {}
    for sharding in ("none", "full"):
        spec = small_spec(tmp_path / sharding, model=model, scores=scores, space={"points": [[32, 4, 0.01]]})
        workers = {"workers_per_trial": 2, "sharding": "full", "cpus_per_worker": 0.5} if sharding == "full" else {}
        (tmp_path / sharding).mkdir()
        sweep = Sweep({**spec, "cluster": {"max_concurrent_trials": 1, "checkpoint_seconds": 0.0, **workers}})
        assert sweep.run().counts.finished == 1
        tables[sharding] = sweep.points()
    assert_same_points(tables["full"], tables["none"])
    (whole,), (sharded,) = (list((tmp_path / k / "mlruns").rglob("*.safetensors")) for k in ("none", "full"))
    assert {p.name for p in whole.parent.iterdir()} == {p.name for p in sharded.parent.iterdir()}
    saved, expected = load_file(sharded), load_file(whole)
    assert saved.keys() == expected.keys(), "the model is saved as ever"
    assert all((saved[name] - expected[name]).abs().max() <= 1e-5 for name in expected)

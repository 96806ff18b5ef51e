"""Two workers that share the weights of a trial give the points of one."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from raydp import Sweep
from tests.builders.specs import small_spec
from tests.sweep.trained import Trained
from tests.sweep.undisturbed import SCORES, assert_same_points

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("adapter", [pytest.param("lora", marks=pytest.mark.thorough), "none"])
def test_two_workers_that_share_the_weights_give_the_points_of_one(
    tmp_path: Path, adapter: str
) -> None:
    """The one is this process, with the same parts and without Ray."""
    changes = {
        "model": {"name": "tiny", "adapter": {"type": adapter}},
        "scores": [*SCORES, {"name": "logprob"}],
        "space": {"points": [[32, 4, 0.01]]},
        "seeds": [0],
    }
    one = Trained(tmp_path / "one", **changes)
    workers = {
        "workers_per_trial": 2,
        "sharding": "full",
        "cpus_per_worker": 0.5,
        "max_concurrent_trials": 1,
    }
    (tmp_path / "two").mkdir()
    sweep = Sweep(
        {
            **small_spec(tmp_path / "two", **changes),
            "cluster": {"checkpoint_seconds": 0.0, **workers},
        }
    )
    assert sweep.run().counts.finished == 1
    assert_same_points(sweep.points(), Sweep(one.content).points())
    (whole,), (sharded,) = (
        list((tmp_path / k / "mlruns").rglob("*.safetensors")) for k in ("one", "two")
    )
    assert {p.name for p in whole.parent.iterdir()} == {p.name for p in sharded.parent.iterdir()}
    saved, expected = load_file(sharded), load_file(whole)
    assert saved.keys() == expected.keys(), "the model is saved as ever"
    assert all((saved[name] - expected[name]).abs().max() <= 1e-5 for name in expected)

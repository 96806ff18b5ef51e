"""Weights that are spread over the ranks change nothing: not the update, the noise, the measurement
or a resume."""

from __future__ import annotations

import pytest
import torch

from raydp.training.batch_sum import START_AGAIN
from raydp.training.comm import LocalComm
from raydp.training.noise.stream import KeyedStream
from tests.builders import toys
from tests.training.ranks import FULL, KILLED_AFTER, RUNS, Everything, context, measured, noise

pytestmark = pytest.mark.xdist_group("invariants")

CUT_TOLERANCE = 1e-5
"""Source: tests/training/test_invariants.py; fp32 sums in another order, carried to a weight by
Adam's division."""
MEASURED_TOLERANCE = 1e-5
"""Utility in fp32 on another topology, which sums in another order."""


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Everything:
    return Everything(tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("name", RUNS)
def test_a_sharded_run_is_that_of_one_rank(
    everything: Everything, name: str, world_size: int
) -> None:
    alone, sharded = everything.alone[name], everything.ranks[world_size][0]["runs"][name]
    assert toys.distance(alone["weights"], sharded["weights"]) <= CUT_TOLERANCE
    for a, b in zip(alone["history"], sharded["history"], strict=True):
        assert a["drawn"] == b["drawn"]
        assert a.get("max_grad_norm") == b.get("max_grad_norm"), (
            "the threshold follows the same counts"
        )
        assert a.get("clipped") == b.get("clipped")
        assert a.get("loss", 0) == pytest.approx(b.get("loss", 0), abs=MEASURED_TOLERANCE)


@pytest.mark.slow
def test_the_runs_move_the_weights_and_leave_ranks_idle(everything: Everything) -> None:
    """So the test above compares something that happens."""
    for name, (adapter, _, _) in RUNS.items():
        start = {n: p.detach() for n, p in context(adapter, LocalComm()).parameters.items()}
        assert toys.distance(everything.alone[name]["weights"], start) > 100 * CUT_TOLERANCE
    drawn = {step["drawn"] for step in everything.alone["full, adaptive, sparse"]["history"]}
    assert 0 in drawn
    assert drawn & {1, 2}, "fewer than three ranks have an example"


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_noise_is_bitwise_that_of_one_rank(everything: Everything, world_size: int) -> None:
    alone, sharded = noise(LocalComm()), everything.ranks[world_size][0]["noise"]
    assert alone.keys() == sharded.keys()
    assert all(torch.equal(alone[name], sharded[name]) for name in alone)


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_a_part_of_the_noise_is_drawn_without_the_rest(count: int) -> None:
    stream = KeyedStream(key=toys.KEY, run_id="parts")
    whole = stream.normal(count, step=0, purpose="noise", name="w")
    for start, stop in [
        (0, count),
        (0, 1),
        (count - 1, count),
        (count // 3, 2 * count // 3),
        (count // 2, count),
        (1, 1),
    ]:
        part = stream.normal(count, step=0, purpose="noise", name="w", part=slice(start, stop))
        assert (part == whole[start:stop]).all()
        assert len(part) == len(whole[start:stop])


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_rank_holds_its_share_of_everything(everything: Everything, world_size: int) -> None:
    """1/world of it, and less than a row of each parameter more."""
    for rank in everything.ranks[world_size]:
        held = rank["bytes"]
        share, slack = held["all weights"] / world_size, held["rows of the longest"]
        assert held["weights"] <= share + slack
        assert held["gradients and moments"] <= 3 * (share + slack)
        adapter = rank["lora bytes"]["gradients and moments"] / 3
        frozen = rank["lora bytes"]["all weights"] - adapter
        assert rank["lora bytes"]["weights"] - adapter <= frozen / world_size + slack
    total = sum(rank["bytes"]["weights"] for rank in everything.ranks[world_size])
    assert total == everything.ranks[world_size][0]["bytes"]["all weights"], "every weight once"


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_rank_0_measures_the_whole_model_and_its_base(
    everything: Everything, adapter: str, world_size: int
) -> None:
    expected = measured({"lora": toys.ADAPTER, "full": FULL}[adapter], LocalComm())
    assert expected is not None
    found, *others = [rank["measured"][adapter] for rank in everything.ranks[world_size]]
    assert found == pytest.approx(expected, abs=MEASURED_TOLERANCE)
    assert (
        found["trained"]
        == found["again"]
        != pytest.approx(found["base"], abs=100 * MEASURED_TOLERANCE)
    )
    assert others == [None] * (world_size - 1)


@pytest.mark.slow
def test_a_run_resumes_on_any_number_of_ranks(everything: Everything) -> None:
    """Killed with two ranks, resumed with three and with one; broken off with one, resumed with
    two."""
    reference = everything.alone["full"]
    resumed = {
        "2 to 1": everything.resumed_by_one,
        "2 to 3": everything.ranks[3][0]["resumed"],
        "1 to 2": everything.ranks[2][0]["resumed"],
    }
    for result in resumed.values():
        assert result["resumed_from"] == KILLED_AFTER - 1, (
            "the end came before the step's checkpoint"
        )
        assert toys.distance(reference["weights"], result["weights"]) <= CUT_TOLERANCE
        assert [step["drawn"] for step in result["history"]] == [
            step["drawn"] for step in reference["history"]
        ]


@pytest.mark.slow
def test_out_of_memory_the_group_starts_again_with_half(everything: Everything) -> None:
    """One rank alone could not repeat a pass that the others are in the middle of."""
    for rank in [*everything.ranks[2], *everything.ranks[3]]:
        message, before, after = rank["memory"]
        assert message == START_AGAIN
        assert after == before // 2

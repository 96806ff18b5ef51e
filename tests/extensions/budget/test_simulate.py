"""Simulated sweeps: against brute force, Graham's bounds, and what more slots or a slower driver
must do."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydp.extensions.budget.simulate import Hardware, lower_bound, makespan, simulate
from raydp.spec.sections import ClusterSpec
from tests.conftest import Answer

Command = Callable[..., Answer]

COSTS = st.lists(st.integers(1, 20).map(float), min_size=1, max_size=6)
SLOTS = st.integers(1, 4)


def best(costs: list[float], num_slots: int) -> float:
    """The optimum: every assignment of runs to slots."""
    return min(
        max(
            sum(c for c, slot in zip(costs, chosen, strict=True) if slot == k)
            for k in range(num_slots)
        )
        for chosen in itertools.product(range(num_slots), repeat=len(costs))
    )


def by_hand(costs: list[float], num_slots: int) -> float:
    """List scheduling without a heap."""
    free = [0.0] * num_slots
    for cost in costs:
        slot = free.index(min(free))
        free[slot] += cost
    return max(free)


@given(COSTS, SLOTS)
def test_any_order_and_largest_first_keep_grahams_bounds(
    costs: list[float], num_slots: int
) -> None:
    optimum = best(costs, num_slots)
    m, largest_first = num_slots, sorted(costs, reverse=True)
    assert makespan(costs, m) == by_hand(costs, m)
    assert lower_bound(costs, m) <= optimum + 1e-9
    assert optimum <= makespan(costs, m) <= (2 - 1 / m) * optimum + 1e-9
    assert makespan(largest_first, m) <= (4 / 3 - 1 / (3 * m)) * optimum + 1e-9


def test_the_bound_of_largest_first_is_reached() -> None:
    assert makespan([5, 5, 4, 4, 3, 3, 3], 3) == 11  # 4/3 - 1/9 of 9 (Graham 1969)


@given(COSTS, SLOTS, st.floats(0, 5))
def test_the_driver_and_a_further_run_only_add_time(
    costs: list[float], num_slots: int, driver: float
) -> None:
    alone = makespan(costs, num_slots, driver_seconds=driver)
    assert alone >= max(lower_bound(costs, num_slots), driver * len(costs)) - 1e-9
    assert makespan([*costs, 1.0], num_slots, driver_seconds=driver) >= alone - 1e-9


@given(st.floats(0.1, 9), st.integers(1, 40), SLOTS, st.floats(0, 2))
def test_more_slots_are_never_slower_for_equal_runs(
    cost: float, runs: int, num_slots: int, driver: float
) -> None:
    few = makespan([cost] * runs, num_slots, driver_seconds=driver)
    assert makespan([cost] * runs, num_slots + 1, driver_seconds=driver) <= few + 1e-9


def test_a_driver_that_is_slower_than_the_runs_is_the_bound() -> None:
    """1,000 slots, runs of 10 s, 0.4 s of the driver: it takes in 2.5 runs a second, the slots end
    100."""
    seconds = makespan([10.0] * 10_000, 1000, driver_seconds=0.4)
    assert 4000 <= seconds <= 4000 + 10 + 1


def test_a_hundred_thousand_runs_on_a_thousand_slots() -> None:
    costs = [float(1 + k % 97) for k in range(100_000)]
    orders = {
        "largest_first": sorted(range(len(costs)), key=lambda k: -costs[k]),
        "grid": range(len(costs)),
    }
    found = simulate(
        costs, 1000, Hardware(nodes=1000, driver_seconds=0.0, trial_seconds=0.0), orders=orders
    )
    assert 1 <= found["orders"]["largest_first"]["ratio"] <= found["orders"]["grid"]["ratio"] < 2
    assert found["orders"]["largest_first"]["utilisation"] <= 1


@pytest.mark.parametrize(
    ("text", "cluster", "slots"),
    [
        ("nodes=1000", {"gpus_per_worker": 1}, 1000),
        ("nodes=1000,gpus_per_node=8", {"gpus_per_worker": 1}, 8000),
        ("nodes=10, gpus_per_node=8", {"gpus_per_worker": 0.25}, 320),
        (
            "nodes=10,gpus_per_node=8,cpus_per_node=4",
            {"gpus_per_worker": 1, "cpus_per_worker": 2},
            20,
        ),
        ("nodes=3,gpus_per_node=3", {"gpus_per_worker": 2}, 3),
        ("nodes=1,gpus_per_node=8", {"gpus_per_worker": 0.3}, 24),
        ("nodes=3,gpus_per_node=1", {"gpus_per_worker": 1, "workers_per_trial": 2}, 1),
        ("nodes=1,gpus_per_node=1", {"gpus_per_worker": 1, "workers_per_trial": (1, 2)}, 1),
        ("nodes=5", {}, 5),
        ("nodes=5,cpus_per_node=4", {"max_concurrent_trials": 7}, 7),
    ],
)
def test_slots_are_whole_workers_on_each_node(
    text: str, cluster: dict[str, object], slots: int
) -> None:
    assert Hardware.parse(text).num_slots(ClusterSpec.model_validate(cluster)) == slots


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodez=3", "Did you mean 'nodes'?"),
        ("gpus_per_node=8", "--simulate must name nodes"),
        ("nodes=0", "nodes must be a whole number above 0 and at most 1e+09, got '0'"),
        ("nodes=1.5", "nodes must be a whole number above 0 and at most 1e+09, got '1.5'"),
        ("nodes=2,nodes=3", "--simulate must name nodes once"),
        (
            "nodes=2,driver_seconds=-1",
            "driver_seconds must be 0 or above and at most 1e+09, got '-1'",
        ),
        ("nodes=2,seconds_per_example=nan", "seconds_per_example must be above 0"),
        ("nodes", "nodes must be a whole number above 0 and at most 1e+09, got ''"),
        ("nodes=1000000000000000", "nodes must be a whole number above 0 and at most 1e+09"),
        (
            "nodes=2,seconds_per_example=1e308",
            "seconds_per_example must be above 0 and at most 1e+09",
        ),
        ("nodes=2,driver_seconds=1e-320", "driver_seconds must be 0 or above and at most 1e+09"),
    ],
)
def test_the_simulated_hardware_is_checked(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="--simulate") as error:
        Hardware.parse(text)
    assert message in str(error.value)


@pytest.mark.parametrize(("nodes", "workers"), [(2, 2), (3, 3), (4, 4), (5, 4), (8, 4), (12, 4)])
def test_a_trials_workers_are_those_that_fit(nodes: int, workers: int) -> None:
    cluster = ClusterSpec(workers_per_trial=(2, 4))
    assert Hardware.parse(f"nodes={nodes}").workers_per_trial(cluster) == workers


def test_a_billion_nodes_take_no_more_memory_than_the_runs() -> None:
    assert makespan([2.0, 3.0], 10**9) == 3.0


def test_a_node_must_hold_a_worker_and_gpus_must_be_wanted() -> None:
    with pytest.raises(ValueError, match="nodes must hold a trial's 1 workers of 2 GPUs"):
        Hardware.parse("nodes=9,gpus_per_node=1").num_slots(ClusterSpec(gpus_per_worker=2))
    with pytest.raises(ValueError, match="gpus_per_node must be left out with"):
        Hardware.parse("nodes=9,gpus_per_node=8").num_slots(ClusterSpec())


@pytest.mark.parametrize(
    ("text", "cluster", "slots", "notes"),
    [
        ("nodes=100,cpus_per_node=1", {"max_concurrent_trials": 1, "address": "auto"}, 1,
         ["cluster.max_concurrent_trials is 1, and the nodes have room for 100 runs at a time."]),
        ("nodes=100", {}, 100,
         ["cpus_per_node is not given", "There are 8 runs, so that 92 slots stay empty.", "cluster.address is local"]),
        ("nodes=4,gpus_per_node=2", {"gpus_per_worker": 1, "workers_per_trial": 4, "address": "auto"}, 2,
         ["The nodes have room for 8 workers, and a run takes 4."]),
        ("nodes=4", {"gpus_per_worker": 1, "address": "auto", "max_concurrent_trials": 8}, 4,
         ["The nodes have room for 4 workers, and a run takes 1.", "gpus_per_node is not given"]),
        ("nodes=8,cpus_per_node=1", {"address": "auto"}, 8, []),
    ],
)  # fmt: skip
def test_it_says_why_there_are_no_more_slots(
    text: str, cluster: dict[str, Any], slots: int, notes: list[str]
) -> None:
    hardware, spec = Hardware.parse(text), ClusterSpec(**cluster)
    assert hardware.num_slots(spec) == slots
    said = hardware.slot_notes(spec, 8)
    assert len(said) == len(notes)
    assert all(one.startswith(note) for one, note in zip(said, notes, strict=True))


@pytest.mark.daily
def test_the_command_compares_the_orders(raydp: Command, write_spec: Callable[..., Path]) -> None:
    space = {"batch_size": [16, 64], "num_steps": [2, 4, 8], "learning_rate": [0.01]}
    spec = write_spec(space=space, seeds=[0, 1], cluster={})
    given_ = "nodes=5,seconds_per_example=0.01,trial_seconds=0,driver_seconds=0"
    found = json.loads(raydp("plan", spec, "--simulate", given_, "--json").out)
    assert len(found["configurations"]) == 6
    simulation = found["simulation"]
    assert (simulation["runs"], simulation["slots"], simulation["costs"]) == (
        12,
        5,
        "seconds_per_example",
    )
    assert simulation["total_seconds"] == pytest.approx(0.01 * 2 * (16 + 64) * 14)
    assert simulation["longest_seconds"] == pytest.approx(5.12)
    assert simulation["orders"]["largest_first"]["makespan_seconds"] == pytest.approx(5.12)
    assert simulation["orders"]["largest_first"]["ratio"] < simulation["orders"]["grid"]["ratio"]
    text = raydp("plan", spec, "--simulate", given_).out
    assert "12 runs on 5 slots" in text
    assert "largest first" in text
    assert "cpus_per_node is not given: each node counts as room for one worker." in text
    refused = raydp("plan", spec, "--simulate", "nodes=5")
    assert refused.code == 2
    assert "--simulate must know what runs cost, got none" in " ".join(refused.err.split())


def test_a_simulated_cluster_need_not_be_here(
    raydp: Command, write_spec: Callable[..., Path]
) -> None:
    spec = write_spec(cluster={"gpus_per_worker": 1000})
    hardware = "nodes=2,gpus_per_node=1000,seconds_per_example=0.01"
    assert raydp("plan", spec, "--simulate", hardware).code == 0

"""Sweeps over several hosts: the points are those of one host, and stay so when hosts and cables
fail."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.ray_hosts import RayHosts, ray_hosts
from tests.cluster.sweeps import FINISH_SECONDS, assert_kept, finish, under_way, write_spec
from tests.sweep.undisturbed import Done, results, spec_of, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

DEAD_SECONDS = 25
"""After so long without an answer Ray takes a node for dead: 5 checks, 3 seconds apart, and their
time-outs."""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[RayHosts]:
    """A head without CPUs for workers, and two nodes with one each."""
    with ray_hosts(tmp_path / "hosts", [0, 1, 1]) as opened:
        yield opened


@pytest.mark.thorough
def test_sweep_keeps_finished_runs_when_node_loses_power(
    hosts: RayHosts, done: Done, tmp_path: Path
) -> None:
    spec = write_spec(tmp_path, hosts)
    driver = hosts.raydp(tmp_path, "sweep", "spec.yaml", "--json")
    finished = under_way(driver, spec)
    hosts.nodes[-1].power_off()
    finish(driver, spec, done)
    assert_kept(finished)


@pytest.mark.thorough
def test_a_node_that_is_given_notice_saves_its_state(hosts: RayHosts, tmp_path: Path) -> None:
    """No checkpoint is due, and no run may be tried twice: it goes on elsewhere from the state that
    it saved."""
    spec = spec_of(tmp_path)
    spec["space"] = {"batch_size": [64], "num_steps": [400], "learning_rate": [0.01]}
    spec["seeds"] = [0, 1]
    spec["cluster"] = {"address": hosts.address, "checkpoint_seconds": 1e6, "max_retries": 0}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    driver = hosts.raydp(tmp_path, "sweep", "spec.yaml", "--json")
    trials = Path(spec["storage"]) / "small" / "trials"
    wait_until(
        lambda: (
            [p.read_text().count("\n") > 20 for p in trials.glob("*/ledger.txt")] == [True, True]
        ),
        driver,
    )
    assert not list(trials.glob("*/checkpoints/step-*"))
    hosts.drain(hosts.nodes[-1], seconds=60)
    wait_until(lambda: list(trials.glob("*/checkpoints/step-*")), driver)
    hosts.nodes[-1].power_off()
    out, err = driver.communicate(timeout=FINISH_SECONDS)
    assert driver.returncode == 0, err
    assert json.loads(out)["counts"]["finished"] == 2, out
    found = [json.loads(path.read_text()) for path in results(trials.parent)]
    assert sorted(result["resumed_from"] > 0 for result in found) == [False, True]
    assert {(r["attempts"], r["ledger"]["noisy_steps"], r["ledger"]["replays"]) for r in found} == {
        (1, 400, 0)
    }


@pytest.mark.thorough
@pytest.mark.parametrize(
    "seconds", [5, DEAD_SECONDS + 20], ids=["shortly", "until it is taken for dead"]
)
def test_a_node_that_is_cut_off_and_comes_back_loses_nothing(
    hosts: RayHosts, done: Done, tmp_path: Path, seconds: float
) -> None:
    """It goes on by itself meanwhile, with the files that both sides see: two workers train the
    same run."""
    spec = write_spec(tmp_path, hosts)
    driver = hosts.raydp(tmp_path, "sweep", "spec.yaml", "--json")
    finished = under_way(driver, spec)
    hosts.nodes[-1].cut()
    time.sleep(seconds)
    hosts.nodes[-1].mend()
    finish(driver, spec, done)
    assert_kept(finished)


@pytest.mark.thorough
def test_the_head_with_the_driver_is_switched_off_and_another_cluster_goes_on(
    hosts: RayHosts, done: Done, tmp_path: Path
) -> None:
    spec = write_spec(tmp_path, hosts)
    finished = under_way(hosts.raydp(tmp_path, "sweep", "spec.yaml", "--json"), spec)
    for host in (hosts.head, *hosts.nodes):
        host.power_off()
    with ray_hosts(tmp_path / "others", [1, 1]) as others:
        spec = write_spec(tmp_path, others)
        finish(
            others.raydp(tmp_path, "sweep", "spec.yaml", "--start-or-resume", "--json"), spec, done
        )
    assert_kept(finished)
    assert all(
        json.loads(path.read_text())["ledger"]["noisy_steps"] in (20, 40) for path in finished
    )

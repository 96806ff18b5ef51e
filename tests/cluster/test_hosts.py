"""Sweeps over several hosts: the points are those of one host, and stay so when hosts and cables fail."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from raydp import Sweep
from raydp.sweep.folder import SweepFolder
from tests.cluster.ray_hosts import RayHosts, ray_hosts
from tests.sweep.undisturbed import Done, assert_same_points, results, runs_in, spec_of, wait_until

pytestmark = pytest.mark.cluster

FINISH_SECONDS = 400
DEAD_SECONDS = 25
"""After so long without an answer Ray takes a node for dead: 5 checks, 3 seconds apart, and their time-outs."""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[RayHosts]:
    """A head without CPUs for workers, and two nodes with one each."""
    with ray_hosts(tmp_path / "hosts", [0, 1, 1]) as opened:
        yield opened


def write_spec(folder: Path, hosts: RayHosts, **cluster: Any) -> dict[str, Any]:
    spec = spec_of(folder)
    spec["cluster"] = {"address": hosts.address, "checkpoint_seconds": 0, **cluster}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    return spec


def finish(driver: Any, spec: dict[str, Any], done: Done, *, finished: int = 4) -> None:
    """All runs have finished, once each, with the points of an undisturbed sweep on one host."""
    out, err = driver.communicate(timeout=FINISH_SECONDS)
    assert driver.returncode == 0, err
    assert json.loads(out)["counts"]["finished"] == finished
    assert runs_in(spec["tracking"]["uri"]) == {"parents": 1, "children": finished, "versions": finished}
    assert_same_points(Sweep(spec).points(), done.points)


def under_way(driver: Any, spec: dict[str, Any]) -> dict[Path, int]:
    """Wait until one run has its result and others a checkpoint; returns the results with their times."""
    folder = Path(spec["storage"]) / "small"
    wait_until(lambda: list(folder.glob("trials/*/checkpoints/step-*")) and results(folder), driver)
    return {path: path.stat().st_mtime_ns for path in results(folder)}


def assert_kept(finished: dict[Path, int]) -> None:
    assert all(path.stat().st_mtime_ns == time_ns for path, time_ns in finished.items()), "nothing finished ran twice"


@pytest.mark.parametrize("workers", [1, 2])
def test_the_points_of_several_hosts_are_those_of_one(
    hosts: RayHosts, done: Done, tmp_path: Path, workers: int
) -> None:
    """With two workers a trial is shared by the two nodes: the head has no CPU for one."""
    spec = write_spec(tmp_path, hosts, workers_per_trial=workers)
    finish(hosts.raydp(tmp_path, "sweep", "spec.yaml", "--json"), spec, done)


def test_a_node_that_is_switched_off_loses_nothing(hosts: RayHosts, done: Done, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, hosts)
    driver = hosts.raydp(tmp_path, "sweep", "spec.yaml", "--json")
    finished = under_way(driver, spec)
    hosts.nodes[-1].power_off()
    finish(driver, spec, done)
    assert_kept(finished)


@pytest.mark.parametrize("seconds", [5, DEAD_SECONDS + 20], ids=["shortly", "until it is taken for dead"])
def test_a_node_that_is_cut_off_and_comes_back_loses_nothing(
    hosts: RayHosts, done: Done, tmp_path: Path, seconds: float
) -> None:
    """It goes on by itself meanwhile, with the files that both sides see: two workers train the same run."""
    spec = write_spec(tmp_path, hosts)
    driver = hosts.raydp(tmp_path, "sweep", "spec.yaml", "--json")
    finished = under_way(driver, spec)
    hosts.nodes[-1].cut()
    time.sleep(seconds)
    hosts.nodes[-1].mend()
    finish(driver, spec, done)
    assert_kept(finished)


def test_the_head_with_the_driver_is_switched_off_and_another_cluster_goes_on(
    hosts: RayHosts, done: Done, tmp_path: Path
) -> None:
    spec = write_spec(tmp_path, hosts)
    finished = under_way(hosts.raydp(tmp_path, "sweep", "spec.yaml", "--json"), spec)
    for host in (hosts.head, *hosts.nodes):
        host.power_off()
    with ray_hosts(tmp_path / "others", [1, 1]) as others:
        spec = write_spec(tmp_path, others)
        finish(others.raydp(tmp_path, "sweep", "spec.yaml", "--start-or-resume", "--json"), spec, done)
    assert_kept(finished)
    ledgers = [SweepFolder.open(Path(spec["storage"]) / "small").result(p.parent.name)["ledger"] for p in finished]
    assert all(ledger["noisy_steps"] in (20, 40) for ledger in ledgers)

"""Sweeps over hosts that stay: the points are those of one host, and a user's own code travels with the sweep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.builders.specs import small_spec
from tests.cluster.ray_hosts import RayHosts
from tests.cluster.sweeps import FINISH_SECONDS, finish, write_spec
from tests.sweep.undisturbed import Done

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_the_points_of_several_hosts_are_those_of_one(
    shared_hosts: RayHosts, done: Done, tmp_path: Path, workers: int
) -> None:
    """With two workers a trial is shared by the two nodes: the head has no CPU for one."""
    spec = write_spec(tmp_path, shared_hosts, workers_per_trial=workers)
    finish(shared_hosts.raydp(tmp_path, "sweep", "spec.yaml", "--json"), spec, done)


PLUGIN = """
from raydp.methods.dp import DPAdam


class Ours(DPAdam):
    pass
"""
ENTRY_POINTS = "[raydp.methods]\nours = plugin_of_ours:Ours\n"


def test_code_of_ones_own_travels_with_the_sweep(shared_hosts: RayHosts, tmp_path: Path) -> None:
    """A method that the driver alone can import: its folder is hidden on the nodes."""
    plugins = tmp_path / "plugins"
    (plugins / "ours-1.dist-info").mkdir(parents=True)
    (plugins / "plugin_of_ours.py").write_text(PLUGIN)
    (plugins / "ours-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 1\n")
    (plugins / "ours-1.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    work = tmp_path / "work"
    work.mkdir()
    for node in shared_hosts.nodes:
        node.hide(plugins)
    spec = small_spec(work, method={"name": "ours", "max_grad_norm": 0.1})
    spec["cluster"] = {"address": shared_hosts.address, "working_dir": str(plugins), "max_concurrent_trials": 1}
    (work / "spec.yaml").write_text(yaml.safe_dump(spec))
    path = f"{plugins}:{shared_hosts.variables['PYTHONPATH']}"
    driver = shared_hosts.raydp(work, "sweep", "spec.yaml", "--json", PYTHONPATH=path)
    out, err = driver.communicate(timeout=FINISH_SECONDS)
    assert driver.returncode == 0, err
    assert json.loads(out)["counts"]["finished"] == 2, out

"""Sweeps over hosts that stay: the points are those of one host, and a user's own code travels with
the sweep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.builders.packages import importable
from tests.cluster.ray_hosts import RayHosts
from tests.cluster.sweeps import finish, write_spec
from tests.sweep.undisturbed import SCORES, Done

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("sweep")]

PLUGIN = """
from raydp.scores.memorisation.vmr import ExactVerbatimMemorization


class Ours(ExactVerbatimMemorization):
    pass
"""
ENTRY_POINTS = "[raydp.scores]\nours = plugin_of_ours:Ours\n"


@pytest.fixture
def plugins(tmp_path: Path) -> Iterator[Path]:
    """A folder of packages with a score that raydp has under another name.

    This process can import it, too.
    """
    folder = tmp_path / "plugins"
    (folder / "ours-1.dist-info").mkdir(parents=True)
    (folder / "plugin_of_ours.py").write_text(PLUGIN)
    (folder / "ours-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: ours\nVersion: 1\n"
    )
    (folder / "ours-1.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    with importable(folder, "plugin_of_ours"):
        yield folder


@pytest.mark.daily("tests/cluster", "raydp/sweep/engine")
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_the_points_of_several_hosts_are_those_of_one_and_own_code_travels(
    shared_hosts: RayHosts, done: Done, tmp_path: Path, plugins: Path, workers: int
) -> None:
    """With two workers a trial is shared by the two nodes: the head has no CPU for one.

    The folder of the score's code is hidden on the nodes.
    """
    work = tmp_path / "work"
    work.mkdir()
    for node in shared_hosts.nodes:
        node.hide(plugins)
    spec = write_spec(work, shared_hosts, workers_per_trial=workers, working_dir=str(plugins))
    spec["scores"] = [*SCORES, {"name": "ours"}]
    (work / "spec.yaml").write_text(yaml.safe_dump(spec))
    path = f"{plugins}:{shared_hosts.variables['PYTHONPATH']}"
    driver = shared_hosts.raydp(work, "sweep", "spec.yaml", "--json", PYTHONPATH=path)
    points = finish(driver, spec, done, without=["score.ours", "score.ours.std_error"])
    assert points["score.ours"].tolist() == points["score.vmr_exact"].tolist()

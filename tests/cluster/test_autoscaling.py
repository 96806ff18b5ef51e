"""A cluster that grows: the sweep asks for workers that do not exist yet, and Ray's autoscaler adds the nodes."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest
import yaml
from ray.cluster_utils import AutoscalingCluster

from tests.cluster.hosts import network
from tests.cluster.ray_hosts import PORT, RAY, RayHosts
from tests.cluster.sweeps import finish
from tests.sweep.undisturbed import Done, spec_of

pytestmark = pytest.mark.cluster


def test_nodes_are_added_for_the_workers_of_a_sweep(done: Done, tmp_path: Path) -> None:
    """The head has no CPU, and nodes of one CPU can be added: Ray's own provider for tests makes them processes."""
    node = {"resources": {"CPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2}
    config = tmp_path / "autoscaler.json"
    config.write_text(json.dumps(AutoscalingCluster({"CPU": 0}, {"cpu": node})._config))
    with network(tmp_path / "net") as net:
        head = net.add()
        variables = {
            **RayHosts.settings(tmp_path, secrets.token_hex(32)),
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "RAY_FAKE_CLUSTER": "1",
        }
        where = [f"--port={PORT}", f"--node-ip-address={head.address}", "--temp-dir=/run/ray"]
        size = ["--num-cpus=0", "--num-gpus=0", "--object-store-memory=300000000", "--include-dashboard=false"]
        head.run(*RAY, "start", "--head", f"--autoscaling-config={config}", *where, *size, **variables)
        spec = spec_of(tmp_path)
        spec["cluster"] = {"checkpoint_seconds": 0, "autoscaling": True, "max_concurrent_trials": 2}
        spec["cluster"]["address"] = f"{head.address}:{PORT}"
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
        driver = head.popen(*RayHosts.command("sweep", "spec.yaml", "--json"), folder=tmp_path, **variables)
        finish(driver, spec, done)

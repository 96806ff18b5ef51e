"""A cluster that grows: the sweep asks for workers that do not exist yet, and Ray's autoscaler adds the nodes."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.hosts import network
from tests.cluster.ray_hosts import PORT, RAY, RayHosts
from tests.cluster.sweeps import finish
from tests.sweep.undisturbed import Done, spec_of

pytestmark = pytest.mark.cluster


HEAD_ID = "fffffffffffffffffffffffffffffffffffffffffffffffffff00000"
NOTHING = ("setup_commands", "initialization_commands", "head_setup_commands", "worker_setup_commands")
NOTHING += ("head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files")


def growing(cpus_per_node: int, max_nodes: int) -> dict[str, Any]:
    """The configuration of Ray's provider for tests, whose nodes are processes; the head has no CPU."""
    node = {"resources": {"CPU": cpus_per_node}, "node_config": {}, "min_workers": 0, "max_workers": max_nodes}
    head = {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
    return {
        "cluster_name": "growing",
        "max_workers": max_nodes,
        "provider": {"type": "fake_multinode", "head_node_id": HEAD_ID},
        "available_node_types": {"head": head, "node": node},
        "head_node_type": "head",
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 5,
        "auth": {},
        "file_mounts": {},
        **{name: [] for name in NOTHING},
    }


def test_nodes_are_added_for_the_workers_of_a_sweep(done: Done, tmp_path: Path) -> None:
    """Two nodes of one CPU can be added."""
    config = tmp_path / "autoscaler.json"
    config.write_text(json.dumps(growing(1, 2)))
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

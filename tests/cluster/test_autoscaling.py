"""A cluster that grows: the sweep asks for workers that do not exist yet, and Ray's autoscaler adds
the nodes."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.hosts import network
from tests.cluster.ray_hosts import PORT, RAY, RayHosts
from tests.cluster.sweeps import finish
from tests.sweep.undisturbed import Done, spec_of

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

COUNT_NODES = (
    "import ray; ray.init('auto', log_to_driver=False); print(sum(n['Alive'] for n in ray.nodes()))"
)
PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
ALL_AT_ONCE = {"launch_multiple": True, "disable_node_updaters": True}
HEAD, HEAD_ID = "ray.head.default", "f" * 51 + "00000"
"""The names that Ray's provider for tests has for its head."""


def growing(*, max_nodes: int) -> dict[str, Any]:
    """The configuration of Ray's provider for tests, whose nodes are processes; the head has no
    CPU."""
    node = {
        "resources": {"CPU": 1, "object_store_memory": 100_000_000},
        "node_config": {},
        "min_workers": 0,
    }
    commands = (
        "setup",
        "initialization",
        "head_setup",
        "worker_setup",
        "head_start_ray",
        "worker_start_ray",
    )
    return {
        "cluster_name": "growing",
        "max_workers": max_nodes,
        "provider": {
            "type": "external",
            "module": PROVIDER,
            "head_node_id": HEAD_ID,
            **ALL_AT_ONCE,
        },
        "available_node_types": {
            HEAD: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "node": {**node, "max_workers": max_nodes},
        },
        "head_node_type": HEAD,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 5,
        "auth": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        **{f"{name}_commands": [] for name in commands},
    }


@pytest.mark.thorough
def test_nodes_are_added_for_the_workers_of_a_sweep(done: Done, tmp_path: Path) -> None:
    """Two nodes of one CPU can be added; there is none at the start, and never one for the third
    worker group."""
    config = tmp_path / "autoscaler.json"
    config.write_text(json.dumps(growing(max_nodes=2)))
    with network(tmp_path / "net") as net:
        head = net.add()
        variables = RayHosts.settings(tmp_path, secrets.token_hex(32))
        provider = {
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "RAY_FAKE_CLUSTER": "1",
            "RAY_enable_autoscaler_v2": "1",
            "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
        }
        where = [f"--port={PORT}", f"--node-ip-address={head.address}", "--temp-dir=/run/ray"]
        size = [
            "--num-cpus=0",
            "--num-gpus=0",
            "--object-store-memory=300000000",
            "--include-dashboard=false",
        ]
        head.run(
            *RAY,
            "start",
            "--head",
            f"--autoscaling-config={config}",
            *where,
            *size,
            **variables,
            **provider,
        )
        spec = spec_of(tmp_path)
        spec["cluster"] = {"checkpoint_seconds": 0, "autoscaling": True, "max_concurrent_trials": 3}
        spec["cluster"]["address"] = f"{head.address}:{PORT}"
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
        driver = head.popen(
            *RayHosts.command("sweep", "spec.yaml", "--json"), folder=tmp_path, **variables
        )
        finish(driver, spec, done)
        assert head.run(sys.executable, "-c", COUNT_NODES, **variables).split()[-1] == "3", (
            "the head and two that were added"
        )

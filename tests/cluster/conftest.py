"""Hosts that several files of tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.ray_hosts import RayHosts, ray_hosts

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "planted-key-id", "AWS_SECRET_ACCESS_KEY": "planted-secret-key"}
"""What the hosts have to open an S3 store."""


@pytest.fixture(scope="package")
def shared_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHosts]:
    """A head without CPUs for workers, and two nodes with one each.

    The last test that uses them switches a node off: it stands in `test_store`, which is the last
    of these files.
    """
    folder = tmp_path_factory.mktemp("hosts")
    with ray_hosts(folder, [0, 1, 1], AWS_EC2_METADATA_DISABLED="true", **CREDENTIALS) as opened:
        yield opened

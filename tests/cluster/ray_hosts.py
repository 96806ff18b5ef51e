"""Ray on hosts of our own: a head, on which the driver runs, and further nodes."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.cluster.hosts import Host, Network, network

PORT = 6379
START_SECONDS = 120.0
ATTEMPT_SECONDS = 20.0
NODES_ARE_UP = """
import ray, time
ray.init('auto', log_to_driver=False)
deadline = time.monotonic() + {1}
while sum(node['Alive'] for node in ray.nodes()) != {0}:
    assert time.monotonic() < deadline
    time.sleep(0.1)
"""
NODE_AT = (
    "import ray; ray.init('auto', log_to_driver=False); "
    "print(*[n['NodeID'] for n in ray.nodes() if n['NodeManagerAddress'] == {0!r}])"
)
ROOT = Path(__file__).parents[2]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


class RayHosts:
    """A Ray cluster: host1 is its head.

    Args:
        folder: of its own, on every host the same one.
        cpus: of every host, the head first.
        variables: further ones of every program's environment.
    """

    def __init__(
        self, net: Network, folder: Path, cpus: list[int], variables: Mapping[str, str]
    ) -> None:
        self._net = net
        self.variables = {**self.settings(folder, secrets.token_hex(32)), **variables}
        self.nodes: list[Host] = []
        self.head = net.add()
        self._daemons = {self.head.name: self._start(self.head, cpus[0], head=True)}
        for number in cpus[1:]:
            self.add(number)

    @staticmethod
    def settings(folder: Path, token: str) -> dict[str, str]:
        """The environment of all programs; the token goes into a file of the folder."""
        path = folder / "ray-token"
        path.write_text(token)
        path.chmod(0o600)
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(path),
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }

    @staticmethod
    def command(*arguments: object) -> list[str]:
        """The `raydp` command."""
        return [sys.executable, "-m", "raydp.cli.main", *map(str, arguments)]

    @property
    def machine(self) -> str:
        """The address that the machine which the hosts are on has in their network."""
        return self._net.machine

    @property
    def address(self) -> str:
        return f"{self.head.address}:{PORT}"

    def add(self, cpus: int) -> Host:
        """One more node."""
        host = self._net.add()
        self.nodes.append(host)
        self._daemons[host.name] = self._start(host, cpus, head=False)
        return host

    def _start(self, host: Host, cpus: int, *, head: bool) -> subprocess.Popen[str]:
        role = (
            [f"--port={PORT}", "--include-dashboard=false", "--head"]
            if head
            else [f"--address={self.address}"]
        )
        resources = [
            f"--num-cpus={cpus}",
            "--num-gpus=0",
            "--object-store-memory=300000000",
            "--temp-dir=/run/ray",
        ]
        return host.popen(
            *RAY,
            "start",
            *role,
            *resources,
            f"--node-ip-address={host.address}",
            "--block",
            **self.variables,
        )

    def wait(self, nodes: int) -> None:
        """Until so many nodes are alive."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(AssertionError, OSError):
                socket.create_connection(
                    (self.head.address, PORT), timeout=5
                ).close()  # before seconds of imports
                self.head.run(
                    sys.executable,
                    "-c",
                    NODES_ARE_UP.format(nodes, ATTEMPT_SECONDS),
                    **self.variables,
                )
                return
            for name, daemon in self._daemons.items():
                assert daemon.poll() is None, f"{name}: {daemon.communicate()}"
            assert time.monotonic() < deadline, "the nodes have not come up"
            time.sleep(0.1)

    def drain(self, host: Host, seconds: int) -> None:
        """Give notice that a node will be gone after so many seconds, as a cloud does of a spot
        instance."""
        node = self.head.run(
            sys.executable, "-c", NODE_AT.format(host.address), **self.variables
        ).split()[-1]
        reason = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot"]
        self.head.run(
            *RAY, "drain-node", f"--address={self.address}", f"--node-id={node}", *reason,
            f"--deadline-remaining-seconds={seconds}", **self.variables,
        )  # fmt: skip

    def raydp(self, folder: Path, *arguments: object, **variables: str) -> subprocess.Popen[str]:
        """The command, on the head."""
        return self.head.popen(
            *self.command(*arguments), folder=folder, **{**self.variables, **variables}
        )


@contextlib.contextmanager
def ray_hosts(folder: Path, cpus: list[int], **variables: str) -> Iterator[RayHosts]:
    """A cluster for the time of the block."""
    with network(folder) as net:
        hosts = RayHosts(net, folder, cpus, variables)
        hosts.wait(len(cpus))
        yield hosts

"""Hosts of our own on one machine: each with its network address, processes, host name, /run, /tmp
files and shared memory. What one does to another goes over a (virtual) wire that can be cut. Needs
root and Debian's iproute2."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

_INIT = """
set -e
hostname "$1"
mount -t tmpfs none /run
mount -t tmpfs none /dev/shm
mount --bind "$2" /etc/hosts
mkdir /run/tmp /run/cache
echo ready
trap 'exit 0' TERM
while :; do sleep 3600 & wait $!; done
"""
"""The first process of a host: bash, which also reaps what loses its parent."""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def _unused() -> str:
    """The beginning of addresses that nobody has, such as 10.77.0: a test that was killed leaves
    its network behind."""
    taken = subprocess.run(
        ["ip", "-4", "-oneline", "addr"], check=True, capture_output=True, text=True
    ).stdout
    return next(f"10.77.{k}" for k in range(256) if f" 10.77.{k}." not in taken)


class Host:
    """One host.

    Args:
        network: of which hosts.
        number: 1 to 253; the last part of its address.
    """

    def __init__(self, network: Network, number: int) -> None:
        self.name = f"host{number}"
        self.address = f"{network.prefix}.{number}"
        self._space = f"{network.name}-{number}"
        self._cable = f"{network.name}v{number}"
        _ip("netns", "add", self._space)
        _ip(
            "link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self._space
        )
        _ip("link", "set", self._cable, "master", network.name, "up")
        for command in (
            ("addr", "add", f"{self.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
            ("route", "add", "default", "via", network.machine),
        ):
            _ip("-n", self._space, *command)
        unshared = [
            "unshare",
            "--mount",
            "--uts",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        self._init = subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                self._space,
                *unshared,
                "bash",
                "-c",
                _INIT,
                "init",
                self.name,
                network.hosts_file,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._init.stdout is not None
        assert self._init.stdout.readline() == "ready\n", "the host has not started"
        children = (
            Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text().split()
        )
        self._pid = int(children[0])  # unshare's child is process 1 of the host

    def popen(
        self, *command: str, folder: Path | None = None, **variables: str
    ) -> subprocess.Popen[str]:
        """Start a program there; `variables` are added to its environment."""
        plain = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        own = {"TMPDIR": "/run/tmp", "XDG_CACHE_HOME": "/run/cache", "HOME": "/run"}
        inside = ["nsenter", f"--target={self._pid}", "--net", "--mount", "--uts", "--pid"]
        return subprocess.Popen(
            [*inside, "env", f"--chdir={folder or '/run'}", *command],
            env={**plain, **own, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *command: str, timeout: float = 120, **variables: str) -> str:
        """Run a program there to its end; returns what it printed."""
        program = self.popen(*command, **variables)
        out, err = program.communicate(timeout=timeout)
        assert program.returncode == 0, f"{command}: {out}\n{err}"
        return out

    def hide(self, folder: Path) -> None:
        """Put an empty folder of its own in the place of one that all hosts share."""
        self.run("mount", "-t", "tmpfs", "none", str(folder))

    def cut(self) -> None:
        """Unplug its network cable."""
        _ip("link", "set", self._cable, "down")

    def mend(self) -> None:
        """Plug it in again."""
        _ip("link", "set", self._cable, "up")

    def power_off(self) -> None:
        """Kill every process there at once and take it off the network."""
        if self._init.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, 9)
            self._init.wait(timeout=30)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._cable)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "del", self._space)


class Network:
    """A switch, and the hosts that are plugged into it; the machine that it runs on is `machine`
    there."""

    def __init__(self, folder: Path) -> None:
        self.name = f"rd{secrets.token_hex(3)}"
        self.prefix = _unused()
        self.machine = f"{self.prefix}.254"
        self.hosts: list[Host] = []
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"{self.prefix}.{k} host{k}" for k in range(1, 20)]
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(names) + "\n")
        self.hosts_file = str(folder / "hosts")
        # Without an address of its own it takes its ports' lowest, another one with each host that
        # comes or goes.
        _ip("link", "add", self.name, "address", "02:00:00:00:00:fe", "type", "bridge")
        _ip("addr", "add", f"{self.machine}/24", "dev", self.name)
        _ip("link", "set", self.name, "up")

    def add(self) -> Host:
        """One more host."""
        host = Host(self, len(self.hosts) + 1)
        self.hosts.append(host)
        return host

    def close(self) -> None:
        """Power everything off."""
        for host in self.hosts:
            host.power_off()
        _ip("link", "del", self.name)


@contextlib.contextmanager
def network(folder: Path) -> Iterator[Network]:
    """A network of hosts for the time of the block."""
    opened = Network(folder)
    try:
        yield opened
    finally:
        opened.close()

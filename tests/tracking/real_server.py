"""A tracking server of programs, as deploy/tracking/tracking.sh starts it: PostgreSQL, an S3
server, MLflow."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "deploy" / "tracking" / "tracking.sh"


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


@dataclass(frozen=True)
class RealServer:
    """One that may be stopped and started again on the same ports, with the same data."""

    folder: Path
    ports: tuple[int, int, int]

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    def run(self, action: str, *options: str) -> subprocess.CompletedProcess[str]:
        """The script, with the programs of this environment first in the PATH."""
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        return subprocess.run(
            [SCRIPT, action, self.folder, *options], env=environment, capture_output=True, text=True, check=False,
            timeout=300,
        )  # fmt: skip

    def start(self, workers: int = 2) -> None:
        """Start what does not run.

        Each process of MLflow's server imports MLflow, which takes seconds.
        """
        http, postgres, s3 = map(str, self.ports)
        ports = ["--port", http, "--postgres-port", postgres, "--s3-port", s3]
        done = self.run("start", *ports, "--workers", str(workers))
        assert done.returncode == 0, (
            done.stderr
        )  # a component that is missing is a failure, not a reason to skip

    def stop(self) -> None:
        done = self.run("stop")
        assert done.returncode == 0, done.stderr

    def kill_mlflow(self) -> None:
        """MLflow alone goes, without a goodbye."""
        pid = int((self.folder / "run" / "mlflow").read_text())
        os.killpg(pid, 9)
        while True:  # until its port is closed: its processes end one after the other
            try:
                socket.create_connection(("127.0.0.1", self.ports[0]), timeout=5).close()
            except OSError:
                return
            time.sleep(0.05)

    def secret(self, name: str) -> str:
        return (self.folder / "secrets" / name).read_text()

    def objects(self) -> Path:
        """Where the S3 server keeps the bucket's objects, as files."""
        return self.folder / "s3" / "mlflow"


def new_server() -> RealServer:
    """Below /tmp, which the user postgres may enter also where pytest's own folders are closed to
    others."""
    return RealServer(
        Path(tempfile.mkdtemp(prefix="raydp-tracking-", dir="/tmp")), tuple(free_ports(3))
    )


def remove(server: RealServer) -> None:
    for name in ("mlflow", "s3"):  # their goodbyes take seconds
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.killpg(int((server.folder / "run" / name).read_text()), 9)
    server.stop()
    shutil.rmtree(server.folder)

"""A real Slurm on this machine: munged, slurmctld and one slurmd a node from Debian's packages,
with their own key, ports and folders. Needs `munge`, `slurmctld`, `slurmd` and `slurm-client`."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from getpass import getuser
from pathlib import Path

CONFIGURATION = """
ClusterName=tests
FirstJobId={first}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
GresTypes=gpu
KillWait=5
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 Gres=gpu:{gpus}"
"""`cred_expire` is also how long a job that is queued again waits; 120 seconds by default."""

DEVICES = ("/dev/null", "/dev/zero")
"""What stands for GPUs; nothing opens them."""

START_SECONDS = 60


def program(name: str) -> str:
    """Where a program of Debian's Slurm is."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    assert found, (
        f"{name} must be installed, got nothing. apt-get install munge slurmctld slurmd "
        "slurm-client"
    )
    return found


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Slurm:
    """A running Slurm, as its users see it.

    Args:
        configuration: its slurm.conf.
    """

    def __init__(self, configuration: Path) -> None:
        # No variable of another job or Ray must reach this one's.
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "SLURM"))}
        self.environment = {**plain, "SLURM_CONF": str(configuration)}

    def run(
        self, command: str, *arguments: object, folder: Path | None = None, **variables: str
    ) -> str:
        """What a command of Slurm says."""
        done = subprocess.run(
            [program(command), *map(str, arguments)],
            cwd=folder,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows of a job."""
        words = self.run("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(self, number: str, *states: str, seconds: float) -> dict[str, str]:
        """Wait until a job is in one of these states."""
        deadline = time.monotonic() + seconds
        while (job := self.job(number))["JobState"] not in states:
            assert time.monotonic() < deadline, (
                f"{job['JobState']} after {seconds} seconds, not {states}"
            )
            time.sleep(0.5)
        return job


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def slurm(*, nodes: int, gpus: int = 0) -> Iterator[Slurm]:
    """A Slurm of so many nodes, with one CPU and so many made-up GPUs (2 at most) each; its jobs
    end with it.

    Raises:
        AssertionError: a program is not installed, or a node has not come up.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short, for munge's socket
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        host, ports = socket.gethostname(), free_ports(1 + nodes)
        lines = [
            NODE.format(name=f"n{k}", host=host, port=ports[k], gpus=gpus)
            for k in range(1, nodes + 1)
        ]
        text = CONFIGURATION.format(
            host=host,
            port=ports[0],
            user=getuser(),
            folder=folder,
            nodes="\n".join(lines),
            first=1 + secrets.randbelow(60_000),  # a job's ports and folders come from its number
        )
        (folder / "slurm.conf").write_text(text)
        (folder / "gres.conf").write_text(
            "".join(f"Name=gpu File={device}\n" for device in DEVICES[:gpus])
        )
        key = folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        running = Slurm(folder / "slurm.conf")

        def start(name: str, *arguments: object) -> None:
            with (folder / f"{name}-{len(list(folder.iterdir()))}.out").open("wb") as out:
                process = subprocess.Popen(
                    [program(name), *map(str, arguments)],
                    env=running.environment,
                    stdout=out,
                    stderr=out,
                )
            stack.callback(_stop, process)

        own = [f"--{kind}-file={folder}/munge.{kind}" for kind in ("key", "pid", "log", "seed")]
        start("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *own)
        _wait_until((folder / "munge.socket").exists, folder)
        start("slurmctld", "-D", "-f", folder / "slurm.conf")
        for k in range(1, nodes + 1):
            (folder / f"n{k}").mkdir()
            start("slurmd", "-D", "-N", f"n{k}", "-f", folder / "slurm.conf")
        stack.callback(_end_jobs, running)

        def idle() -> bool:
            sinfo = subprocess.run(
                [program("sinfo"), "-h", "-N", "-o", "%t"],
                env=running.environment,
                capture_output=True,
                text=True,
            )
            return sinfo.stdout.split() == ["idle"] * nodes

        _wait_until(idle, folder)
        yield running


def _wait_until(condition: Callable[[], bool], folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("*.out"))
        assert time.monotonic() < deadline, f"Slurm has not come up:\n{logs}"
        time.sleep(0.2)


def _end_jobs(running: Slurm) -> None:
    """Cancel what still runs, and wait for it."""
    running.run("scancel", f"--user={getuser()}")
    deadline = time.monotonic() + 60
    while running.run("squeue", "-h") and time.monotonic() < deadline:
        time.sleep(0.5)

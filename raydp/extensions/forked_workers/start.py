"""Start a sweep's processes here as forks of one that has imported what they need.

Ray starts every process by itself, and each would import torch, transformers and Ray's libraries
again. Here Ray runs a small client instead of Python, which asks the server for a fork. If the
server does not answer, the client runs Python: nothing depends on the server but the time that a
start takes.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from raydp.extensions.forked_workers import client, server
from raydp.plugins.registries import used_packages
from raydp.spec.sections import ClusterSpec

WORKERS = "*/ray/_private/workers/*_worker.py"
"""Ray's scripts that the client takes over, as a pattern of the shell."""
READ_AT_IMPORT = (
    "PYTHON",
    "HF_",
    "TRANSFORMERS_",
    "TORCH_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "XDG_",
    "LD_",
    "CUDA_",
)
"""Beginnings of the variables that libraries read when they are imported.

A server is of use while these variables stay the same.
"""
SHARED_PACKAGES = (
    "raydp.methods.",
    "raydp.models.",
    "raydp.scores.",
    "raydp.tasks.",
    "transformers.",
    "peft.",
)
"""Packages without Ray. The server imports those of their modules that the driver has imported.

To these it adds the extensions whose plug-ins the sweep uses.
"""

_server: WarmServer | None = None
"""The server of this process. It serves all sweeps of the process, and ends with it."""


class WarmServer:
    """The server, its sockets, and the script that Ray runs in place of Python.

    Raises:
        OSError: the server cannot be started.
    """

    def __init__(self) -> None:
        # The server's libraries have read these values. Other values need another server.
        self.variables = _read_at_import()
        self._folder = Path(tempfile.mkdtemp(prefix="raydp-warm-"))  # nobody else may connect
        path = self._folder / "socket"
        self.script = self._folder / "python"
        # The server inherits the listening socket, so clients may connect before it is ready.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(1024)
            # The server ends when the driver's end of this pair closes, also at a kill.
            self._control, theirs = socket.socketpair()
            with theirs:
                files = (listener.fileno(), theirs.fileno())
                arguments = [
                    sys.executable,
                    "-P",
                    server.__file__,
                    *map(str, files),
                    str(self._folder),
                ]
                self._process = subprocess.Popen(
                    arguments,
                    pass_fds=files,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
        # In place of Python: the client for Ray's workers, and Python itself for everything else.
        python, start = shlex.quote(sys.executable), shlex.quote(client.__file__)
        self.script.write_text(
            f'#!/bin/sh\ncase "$1" in\n{WORKERS}) exec {python} -I -S {start} '
            f'{shlex.quote(str(path))} "$@";;\n*) exec {python} "$@";;\nesac\n'
        )
        self.script.chmod(0o700)

    def answers(self) -> bool:
        """Return whether the server runs, and libraries would read the same variables again."""
        return self._process.poll() is None and self.variables == _read_at_import()

    def send(self, modules: list[str]) -> None:
        """Let the server import these modules before it forks another worker."""
        self._control.sendall(" ".join(modules).encode() + b"\n")

    def close(self) -> None:
        """End the server. Its forks go on."""
        self._control.close()
        self._process.wait()


def warm_up(cluster: ClusterSpec) -> None:
    """Start the server, if this machine is the cluster and the server does not run yet.

    A fork cannot use a GPU that a library has looked at before, so sweeps on GPUs have no server.
    """
    global _server
    if cluster.address != "local" or cluster.gpus_per_worker or sys.platform != "linux":
        return
    if _server is not None and _server.answers():
        return
    # Libraries would read other variables now: replace the server.
    if _server is not None:
        _server.close()
        _server = None
    with suppress(OSError):
        _server = WarmServer()


@contextmanager
def forked_workers(cluster: ClusterSpec) -> Iterator[None]:
    """Let Ray, which starts in the block, fork its workers from the server if there is one."""
    warm_up(cluster)
    if _server is None or cluster.address != "local" or cluster.gpus_per_worker:
        yield
        return
    # What the driver needs of these packages, the workers need too.
    with suppress(OSError):
        shared = (*SHARED_PACKAGES, *used_packages())
        _server.send([name for name in list(sys.modules) if name.startswith(shared)])
    python = sys.executable
    sys.executable = str(_server.script)  # Ray starts its own processes with it
    try:
        yield
    finally:
        sys.executable = python


def _read_at_import() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(READ_AT_IMPORT)}

"""A process that has imported what the processes of a sweep need, and forks them.

It has computed nothing and opened nothing, so that a fork of it is as good as a new process. It
does not import Ray. Ray reads the variables of a process once, at its import, and each worker has
other variables.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PRELOADED = ("raydp.sweep.engine.trial", "pandas", "pyarrow")
LOOK_SECONDS = 0.5
"""Time between two looks whether the driver has ended."""
OOM_SCORE = "1000"
"""Ray's own score for its workers: the system ends them first if memory runs out."""


def serve(listener: socket.socket, control: socket.socket, folder: Path) -> None:
    """Fork a worker for each connection, until the driver ends.

    Args:
        listener: where clients connect.
        control: the driver sends names of modules, one a line, and closes it when it ends.
        folder: the folder of the sockets, which is removed at the end.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as Ray does for its processes
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forgets a child that has ended
    # A collection would write to memory pages that the children share with the server.
    gc.disable()
    with _ending_with(control, folder):
        _import(PRELOADED)
    while True:
        # The control socket closes when the driver ends, whatever has ended it.
        ready, _, _ = select.select([control, listener], [], [])
        if control in ready:
            names = _read_line(control)
            if names is None:
                shutil.rmtree(folder, ignore_errors=True)
                return
            with _ending_with(control, folder):
                _import(names)
            assert "ray" not in sys.modules, "a fork would have the server's settings of Ray"
            continue
        connection, _ = listener.accept()
        gc.freeze()  # the children share what they never change
        if os.fork() == 0:
            listener.close()
            control.close()
            _become_worker(connection)
        connection.close()


@contextmanager
def _ending_with(control: socket.socket, folder: Path) -> Iterator[None]:
    """End soon after the driver, also in the block, which takes long and holds much memory."""

    def look(*_: object) -> None:
        with suppress(BlockingIOError):
            if not control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                shutil.rmtree(folder, ignore_errors=True)
                os._exit(0)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _import(names: Any) -> None:
    """Import modules but those that fail here: the worker imports them, or does without."""
    for name in names:
        if name not in sys.modules:
            try:
                importlib.import_module(name)
            except Exception:  # noqa: BLE001 - whatever a module does at its import
                continue


def _read_line(control: socket.socket) -> list[str] | None:
    """Return the names of a message; None if the driver has ended."""
    message = b""
    while not message.endswith(b"\n"):
        part = control.recv(1 << 16)
        if not part:
            return None
        message += part
    return message.decode().split()


def _become_worker(connection: socket.socket) -> None:
    """Run Ray's script with the client's variables, folder and files, and end with it."""
    code = 1
    try:
        request = _receive(connection)
        # Undo what the server set for itself, and take over what Ray gave to the client.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        os.setpriority(os.PRIO_PROCESS, 0, request["niceness"])
        _expect_to_be_ended_first()
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed()  # the other children have the same state
        gc.enable()
        # The client ends at this answer. Without the answer, it would start Python itself.
        connection.sendall(b"1")
        connection.close()
        sys.argv = request["command"]
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001 - as at the end of any process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # End without the server's cleanup: its handlers and its folder are not this process's.
        os._exit(code)


def _receive(connection: socket.socket) -> dict[str, Any]:
    """Take the client's standard files for this process, and return its request."""
    header, files, _, _ = socket.recv_fds(connection, 8, 3)
    size, message = int.from_bytes(header, "big"), b""
    while len(message) < size:
        message += connection.recv(size - len(message))
    # Standard input, output and error are those that Ray gave to the client.
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    request: dict[str, Any] = json.loads(message)
    return request


def _expect_to_be_ended_first() -> None:
    try:
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    except OSError:
        return  # a container may forbid it


if __name__ == "__main__":
    listening, controlling = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    serve(listening, controlling, Path(sys.argv[3]))

"""Asks the server to fork a worker of Ray.

Without an answer, the worker starts as Ray would have started it.

Ray runs this file instead of Python, by the script that `Warm` writes. It imports nothing but the
standard library.

    python -I -S client.py SOCKET SCRIPT ARGUMENTS...
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

SETUP = "setup_worker.py"
"""Ray's script that applies a runtime environment, and then becomes the worker."""
CONTEXT, LANGUAGE = "--serialized-runtime-env-context=", "--language="


def request_of(command: list[str]) -> dict[str, Any] | None:
    """Return what the server needs to start a worker; None if a fork cannot be that worker."""
    environment = dict(os.environ)
    # With a runtime environment, Ray calls a script that would set variables and start the worker.
    if os.path.basename(command[0]) == SETUP:
        found = [argument for argument in command if argument.startswith(CONTEXT)]
        context = json.loads(found[0].removeprefix(CONTEXT)) if len(found) == 1 else {}
        variables = context.pop("env_vars", None) or {}
        executable = context.pop("py_executable", None)
        if not found or executable not in (None, sys.executable) or any(context.values()):
            return None  # Ray would start a container or another interpreter; a fork cannot
        if any("$" in value for value in variables.values()):
            return None  # Ray fills these in
        environment |= variables
        command = [
            argument for argument in command[1:] if not argument.startswith((CONTEXT, LANGUAGE))
        ]
    return {
        "command": command,
        "environment": environment,
        "folder": os.getcwd(),
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
    }


def forked(path: str, request: dict[str, Any]) -> bool:
    """Return whether the server has started the worker."""
    message = json.dumps(request).encode()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            # Hand over the standard files of this process, to which Ray has bound the worker's log.
            socket.send_fds(connection, [len(message).to_bytes(8, "big")], [0, 1, 2])
            connection.sendall(message)
            return connection.recv(1) == b"1"
    except OSError:
        return False


if __name__ == "__main__":
    wanted = request_of(sys.argv[2:])
    if wanted is None or not forked(sys.argv[1], wanted):
        os.execv(sys.executable, [sys.executable, *sys.argv[2:]])

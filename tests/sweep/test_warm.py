"""Workers that are forked: they are as workers that start, and they start all the same without the server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raydp.sweep.engine.warm import client
from raydp.sweep.engine.warm.start import WarmServer

ENTRY = "import json, os, sys, random; sys.stdout.write(json.dumps({}))"
SAID = "[sys.argv[1:], os.environ['MINE'], os.getcwd(), 'pandas' in sys.modules, 'ray' in sys.modules, os.getppid()]"


def worker_script(folder: Path) -> Path:
    """A script in the place of Ray's, which writes down what it sees."""
    script = folder / "ray" / "_private" / "workers" / "default_worker.py"
    script.parent.mkdir(parents=True)
    script.write_text(ENTRY.format(SAID))
    return script


def until(condition: Callable[[], object]) -> None:
    """Wait until something holds; fail after 60 s."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it does not become true"
        time.sleep(0.05)


def test_a_fork_is_the_worker_that_was_asked_for(tmp_path: Path) -> None:
    """With its arguments, variables, folder and files. Without the server's answer it is a process of its own."""
    script, out, server = worker_script(tmp_path), tmp_path / "out", WarmServer()
    command = [server.script, script, "--of=ray"]

    def start() -> list[object]:
        with out.open("w") as stdout:
            subprocess.run(command, check=True, stdout=stdout, cwd=tmp_path, env={**os.environ, "MINE": "yes"})
        until(lambda: out.read_text().endswith("]"))
        seen: list[object] = json.loads(out.read_text())
        return seen

    assert start() == [["--of=ray"], "yes", str(tmp_path), True, False, server._process.pid]
    server._process.kill()
    server._process.wait()
    *plain, parent = start()
    assert plain == [["--of=ray"], "yes", str(tmp_path), False, False]
    assert parent == os.getpid(), "the client has become the worker"
    server.close()


def test_the_server_ends_with_its_driver(tmp_path: Path) -> None:
    """Whatever ends the driver. It leaves no files."""
    code = (
        "from raydp.sweep.engine.warm.start import WarmServer; import time\n"
        "server = WarmServer(); print(server._process.pid, server._folder, flush=True); time.sleep(600)\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    pid, folder = driver.stdout.readline().split()
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    until(lambda: not Path(folder).exists())
    until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])


@pytest.mark.parametrize(
    ("context", "answer"),
    [
        ('{"env_vars": {"A": "1"}}', True),
        ('{"env_vars": {"A": "${HOME}"}}', False),
        ('{"command_prefix": ["docker"]}', False),
        ('{"py_executable": "/other/python"}', False),
        (f'{{"py_executable": "{sys.executable}", "env_vars": {{}}}}', True),
    ],
)
def test_a_runtime_environment_of_variables_alone_is_forked(context: str, answer: bool) -> None:
    command = ["/x/setup_worker.py", "/x/default_worker.py", "--language=PYTHON", f"{client.CONTEXT}{context}", "--a=b"]
    request = client.request_of(command)
    assert (request is not None) == answer
    if request is not None:
        assert request["command"] == ["/x/default_worker.py", "--a=b"]

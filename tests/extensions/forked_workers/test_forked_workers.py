"""Workers that are forked: they are as workers that start, and they start all the same without the
server."""

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

from raydp.extensions.forked_workers import client
from raydp.extensions.forked_workers.start import WarmServer

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


def seen_by_a_worker(start_script: Path | str, folder: Path) -> list[object]:
    """What a worker sees that this process starts by a server's script."""
    script, out = worker_script(folder), folder / "out"
    with out.open("w") as stdout:
        command, variables = [start_script, script, "--of=ray"], {**os.environ, "MINE": "yes"}
        subprocess.run(command, check=True, stdout=stdout, cwd=folder, env=variables)
    until(lambda: out.read_text().endswith("]"))
    seen: list[object] = json.loads(out.read_text())
    return seen


@pytest.mark.slow
def test_a_fork_is_the_worker_that_was_asked_for(tmp_path: Path) -> None:
    """With its arguments, variables, folder and files.

    The server ends with its driver, whatever ends that one, and leaves no files.
    """
    code = (
        "from raydp.extensions.forked_workers.start import WarmServer; import time\nserver = WarmServer(); "
        "print(server._process.pid, server.script, flush=True); time.sleep(600)\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    pid, script = driver.stdout.readline().split()
    assert seen_by_a_worker(script, tmp_path) == [
        ["--of=ray"],
        "yes",
        str(tmp_path),
        True,
        False,
        int(pid),
    ]
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    until(lambda: not Path(script).parent.exists())
    until(
        lambda: (
            not Path(f"/proc/{pid}").exists()
            or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]
        )
    )


def test_without_the_servers_answer_a_worker_is_a_process_of_its_own(tmp_path: Path) -> None:
    server = WarmServer()
    server._process.kill()
    server._process.wait()
    *plain, parent = seen_by_a_worker(server.script, tmp_path)
    assert plain == [["--of=ray"], "yes", str(tmp_path), False, False]
    assert parent == os.getpid(), "the client has become the worker"
    server.close()


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
    command = [
        "/x/setup_worker.py",
        "/x/default_worker.py",
        "--language=PYTHON",
        f"{client.CONTEXT}{context}",
        "--a=b",
    ]
    request = client.request_of(command)
    assert (request is not None) == answer
    if request is not None:
        assert request["command"] == ["/x/default_worker.py", "--a=b"]

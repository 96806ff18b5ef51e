"""Ray's start on a machine that is too slow for it: waits end on a signal, leave no process, and
are tried again."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import MagicMock

import psutil
import pytest
import ray
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.air.execution._internal.tracked_actor import TrackedActor
from ray.air.execution._internal.tracked_actor_task import TrackedActorTask

from raydp.spec.sections import ClusterSpec
from raydp.sweep.engine import ray_start
from raydp.system import watcher
from raydp.system.files import LONGEST_FOLDER, private_folder
from tests.processes import below

SECONDS = 25.0
"""Below the 30 s for which Ray's own waits hear no signal, and above the 5 s of a quiet machine."""
PATIENCE = 240.0
"""For what has no bound of its own: a busy machine or a cold disk may be slow."""
DRIVER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.default_int_handler)
signal.signal(signal.SIGINT, signal.default_int_handler)
from raydp.spec.sections import ClusterSpec
from raydp.sweep.engine import ray_start
from ray._private import services

name, times, *seconds = sys.argv[1:]
moment, _, process = name.partition("_")
name = f"start_{process}"
later, answered = moment == "registered", moment == "answered"
start, left, pids = getattr(services, name), int(times), []
ray_start.STUCK_SECONDS = 3.0
if seconds:
    ray_start.START_SECONDS = tuple(map(float, seconds))

def stopped(*arguments, **options):
    global left
    started = start(*arguments, **options)
    pids.append(started.process.pid)
    if left and not answered:
        left -= 1
        while later and not ray_start.LocalNode.newest.is_ready():
            time.sleep(0.1)
        os.kill(started.process.pid, signal.SIGSTOP)  # as slow as a process can be
        print("stopped", flush=True)
    return started

def ready(self, is_ready=ray_start.LocalNode.is_ready):
    known = is_ready(self)
    if known and answered:
        os.kill(pids[-1], signal.SIGSTOP)
        print("stopped", flush=True)
    return known

setattr(services, name, stopped)
ray_start.LocalNode.is_ready = ready
try:
    ray_start.start_ray(ClusterSpec())
    print("started", flush=True)
    sys.stdin.readline()
    ray_start.stop_ray()
except KeyboardInterrupt:
    print("interrupted", flush=True)
except OSError as error:
    print("refused:", error, flush=True)
"""


def driver(tmp_path: Path, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, umask=0,
        env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip


def of_session(pid: int) -> list[psutil.Process]:
    """Return the processes of the Ray session that a process has started.

    Its agents end a moment after the others.
    """
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(
            f"_{pid}/" in part or part.endswith(f"_{pid}") for part in process.info["cmdline"] or ()
        )
    ]


def assert_nothing_is_left(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while left := of_session(pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("process", "number"), [("start_gcs_server", signal.SIGTERM), ("start_raylet", signal.SIGINT)]
)
def test_a_signal_ends_a_start_that_hangs(
    tmp_path: Path, process: str, number: signal.Signals
) -> None:
    """Ray waits for the file of a port in C++, where Python handles no signal for up to 30 s."""
    with driver(tmp_path, process, 9) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "stopped\n"
        time.sleep(0.5)
        started.send_signal(number)
        began = time.monotonic()
        assert started.stdout.readline() == "interrupted\n"
        assert time.monotonic() - began < SECONDS
        assert started.wait(PATIENCE) == 0
        assert_nothing_is_left(started.pid)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_start_during_which_python_cannot_run(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Ray's code in C++ waits for a node manager that has answered once, and lets no thread of
    Python run."""
    with driver(tmp_path, "answered_raylet", 9) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "stopped\n"
        time.sleep(0.5)
        started.send_signal(number)
        out, err = started.communicate(timeout=SECONDS)
        assert "interrupted" in out + err
        assert_nothing_is_left(started.pid)


@pytest.mark.slow
def test_a_start_that_takes_too_long_is_tried_again_with_more_time(tmp_path: Path) -> None:
    """What starts is reachable from this machine and by this user alone, whatever the umask."""
    with driver(tmp_path, "start_gcs_server", 1, 10, 200) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        assert started.stderr is not None
        assert [started.stdout.readline() for _ in range(2)] == ["stopped\n", "started\n"]
        sockets = [
            link for process in of_session(started.pid) for link in process.net_connections("tcp")
        ]
        listening = [link.laddr.ip for link in sockets if link.status == psutil.CONN_LISTEN]
        assert len(listening) >= 3
        assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
        token = tmp_path / ".ray" / "auth_token"
        assert [stat.S_IMODE(path.stat().st_mode) for path in (token, token.parent)] == [
            0o600,
            0o700,
        ]
        started.stdin.write("\n")
        started.stdin.flush()
        assert started.wait(PATIENCE) == 0
        said = started.stderr.read()
        # A busy machine may not have started the control store within the 10 s.
        awaited = r"its (control store \(gcs_server\)|processes)"
        assert re.search(f"starting Ray: no answer from {awaited}", said), said
        assert "Trying again, for at most 200 s" in said
        assert_nothing_is_left(started.pid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("process", "seconds"),
    [
        ("start_gcs_server", 2),
        ("registered_raylet", 10),
        ("answered_raylet", 5),
        ("answered_gcs_server", 10),
    ],
)
def test_a_start_that_never_ends_is_one_sentence(
    tmp_path: Path, process: str, seconds: int
) -> None:
    """A node manager that freezes once the control store knows it made Ray's code in C++ end the
    driver."""
    with driver(tmp_path, process, 9, 1, seconds) as started:
        out, err = started.communicate(timeout=PATIENCE)
        assert "Traceback" not in out + err
        reasons = "no answer from its|a process of Ray has ended|an end of this process|System error: Failed to connect"
        assert re.search(
            f"Ray must start within [0-9]+ s, got ({reasons})", out + err
        )  # the load decides which
        assert_nothing_is_left(started.pid)


def test_start_goes_on_when_watcher_is_killed() -> None:
    with watcher.watched(60, "the driver did not answer"):
        # A process has no command line for a moment while it begins.
        while not (found := below(os.getpid(), watcher.__file__)):
            time.sleep(0.01)
        (beside,) = found
        beside.kill()
        beside.wait()


def test_a_private_folder_is_the_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the umask is 0, where its path would be too long for a socket, and where a link is
    in its place."""
    umask = os.umask(0)
    try:
        for base in (tmp_path / "t", tmp_path / ("long" * LONGEST_FOLDER)):
            base.mkdir()
            monkeypatch.setattr("tempfile.tempdir", str(base))
            folder = private_folder("test")
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert stat.S_IMODE(folder.parent.stat().st_mode) & 0o077 in (0, 0o077)
            assert len(str(folder)) <= LONGEST_FOLDER or folder.parent == Path("/tmp")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
        monkeypatch.setattr("raydp.system.files.LONGEST_FOLDER", 1000)
        (elsewhere := tmp_path / "elsewhere").mkdir()
        taken = private_folder("taken")
        taken.rmdir()
        taken.symlink_to(elsewhere)
        assert private_folder("taken").parent == Path("/tmp")
    finally:
        os.umask(umask)


@pytest.mark.parametrize(
    "death",
    [
        ray.exceptions.ActorDiedError(),
        ray.exceptions.OutOfMemoryError("low on memory"),
        ray.exceptions.NodeDiedError("the node is gone"),
    ],
    ids=lambda death: type(death).__name__,
)
def test_tune_takes_every_death_of_an_actor_for_one(death: ray.exceptions.RayError) -> None:
    """A sweep that ran out of memory ended because Tune knew the first of these alone."""
    ray_start._options(ClusterSpec())
    told: list[tuple[str, Exception]] = []
    manager, cleared = object.__new__(RayActorManager), MagicMock()
    vars(manager).update(_failed_actor_ids=set(), _cleanup_actor=cleared)
    actor = TrackedActor(7, on_error=lambda _, error: told.append(("actor", error)))
    task = TrackedActorTask(actor, on_error=lambda _, error: told.append(("task", error)))
    manager._actor_task_failed(task, death)
    assert told == [("actor", death), ("task", death)]
    cleared.assert_called_once_with(tracked_actor=actor)

"""Starts Ray, joins a cluster, and stops again. Every wait for Ray's start can be interrupted.

Ray waits for its processes in calls of C++, in which Python handles no signal. So a thread starts
Ray, and the caller waits for the thread.
"""

from __future__ import annotations

import atexit
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import ray
from ray import _raylet
from ray._private import node, services
from ray.air.execution._internal import actor_manager
from ray.tune.execution import class_cache, tune_controller

from raydp.plugins.registries import service
from raydp.spec.sections.cluster import ClusterSpec
from raydp.sweep.engine.machine import check_address, usable_cpus
from raydp.system.files import private_folder
from raydp.system.output import stderr
from raydp.system.watcher import watched

NODE_SECONDS = 3600
"""How long a worker group waits for a node that an autoscaler adds."""
START_SECONDS = (60.0, 240.0)
"""How long each attempt to start Ray may take. A busy machine may need the second one."""
LOCAL_CONFIG = {
    "agent_register_timeout_ms": int(1000 * START_SECONDS[-1]),
    "worker_register_timeout_seconds": int(START_SECONDS[-1]),
    "prestart_worker_first_driver": False,
    "enable_metrics_collection": False,
}
"""Ray's settings on one machine.

A raylet waits long enough for its agents and workers, also on a busy machine. The driver waits for
no worker: it would wait for ever for a worker that did not start in time. Metrics are off, because
nothing reads them.
"""
SAID_SECONDS = 10.0
"""Time between two lines on what the start waits for."""
END_SECONDS = 1.0
"""How long a given-up start may take to end. Its processes are killed at once."""
STUCK_SECONDS = 10.0
"""How much longer Ray's C++ code may wait for a silent process before the process is killed."""
POLL_SECONDS = 0.1
LOOPBACK = "127.0.0.1"
ANSWER_SECONDS = 1.0
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The preface of HTTP/2 and an empty SETTINGS frame (RFC 9113, section 3.4).

A server answers them.
"""
RAYLET: Any = _raylet
NODE: Any = node
"""Ray's modules without their types: what is used of them is private."""
DEATHS = (
    ray.exceptions.RayActorError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.NodeDiedError,
)
"""What Ray raises for an actor that has died, by Ray's memory monitor or with its node too."""
UNUSED_PORTS = (
    RAYLET.METRICS_AGENT_PORT_NAME,
    RAYLET.METRICS_EXPORT_PORT_NAME,
    RAYLET.DASHBOARD_AGENT_LISTEN_PORT_NAME,
)
"""Ports of Ray's dashboard agent, which nobody asks here."""


class LocalNode(node.Node):
    """Ray's processes on this machine alone, without a process that has no work.

    They are reachable from this machine only.

    Ray's log monitor has no reader, its autoscaler no node to add, and its API server no dashboard.
    Each takes a second to start.
    """

    newest: LocalNode | None = None
    """The node that starts, or has started."""

    def __init__(self, ray_params: Any, **options: Any) -> None:
        LocalNode.newest = self
        self.all_processes: dict[str, Any] = {}
        # `ray.init` would take the machine's address in its place
        ray_params.node_ip_address = LOOPBACK
        # Ray's sockets and logs, in a folder that this user alone may read.
        ray_params.temp_dir = str(private_folder("ray"))
        # Start no process without work; see the class.
        ray_params.include_log_monitor = False
        ray_params.no_monitor = True
        # The raylet is told its agent's port before the agent starts; see `start_raylet`.
        ray_params.runtime_env_agent_port = _free_port()
        super().__init__(ray_params, **options)

    def start_api_server(self, **_: Any) -> None:
        """Start no API server."""

    def start_raylet(self, *args: Any, **options: Any) -> None:
        """Start the raylet, which needs the ports of its agents.

        Otherwise the raylet would wait 15 s for each port and abort, however busy the machine is.
        """
        ports = {
            RAYLET.RUNTIME_ENV_AGENT_PORT_NAME: self._ray_params.runtime_env_agent_port,
            **dict.fromkeys(UNUSED_PORTS, -1),
        }
        for name, port in ports.items():
            RAYLET.persist_port(self._session_dir, self._node_id, name, port)
        super().start_raylet(*args, **options)

    def awaited(self) -> str:
        """Return what the start waits for."""
        return {0: "its processes", 1: "its control store (gcs_server)"}.get(
            len(self.all_processes), "its node manager (raylet)"
        )

    def is_ready(self) -> bool:
        """Return whether the control store knows this node, and its node manager answers.

        A node manager that did not answer the driver would make Ray's code in C++ end this process.
        """
        try:
            nodes = self.get_gcs_client().get_all_node_info(timeout=1)  # type: ignore[no-untyped-call]
        except ray.exceptions.RpcError:
            return False
        own = [info for node_id, info in nodes.items() if node_id.hex() == self._node_id]
        return bool(own) and _answers(own[0].node_manager_port)

    def has_failed(self) -> bool:
        """Return whether one of the processes has ended."""
        return any(
            started.process.poll() is not None
            for group in self.all_processes.values()
            for started in group
        )

    def kill(self) -> None:
        """Kill the processes that have started; those that start meanwhile need another call."""
        # The processes are about to be made, or to be killed.
        with suppress(RuntimeError, AttributeError, KeyError):
            self.kill_all_processes(check_alive=False)


class Start(threading.Thread):
    """An attempt to start Ray.

    The thread lives as long as Ray: the system kills Ray's processes with the thread.
    """

    def __init__(self, options: dict[str, object]) -> None:
        super().__init__(daemon=True, name="ray-start")
        self._options = options
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self.stopped = threading.Event()

    def run(self) -> None:
        try:
            ray.init(**self._options)  # type: ignore[arg-type]
        except BaseException as error:  # noqa: BLE001 - the caller of `start_ray` raises it
            self.error = error
            self.ended.set()
            return
        self.ended.set()
        # The system kills Ray's processes with this thread, so it stays until Ray is stopped.
        self.stopped.wait()


_running: Start | None = None


def ray_phase(cluster: ClusterSpec) -> str:
    """Return what `start_ray` does, in words."""
    return (
        "starting Ray" if cluster.address == "local" else f"connecting to Ray at {cluster.address}"
    )


def start_ray(cluster: ClusterSpec) -> None:
    """Start Ray here, or join the cluster.

    Raises:
        ValueError: nothing answers at the cluster's address.
        TimeoutError: Ray has not started in time, twice, or cannot be started again.
    """
    check_address(cluster.address)
    options, local = _options(cluster), cluster.address == "local"
    # Where it is installed, workers start faster.
    fork = service("forked_workers", needed_by=None)
    # The second attempt has more time, for a busy machine. There is no third.
    for seconds, following in zip(START_SECONDS, (*START_SECONDS[1:], None), strict=True):
        words = _refusal(seconds, "an end of this process, while a process of Ray did not answer")
        with (
            watched(seconds + STUCK_SECONDS, words),
            nullcontext() if fork is None else fork(cluster),
            _own_node(seconds) if local else nullcontext(),
        ):
            reason = _attempt(options, seconds)
        if reason is None:
            return
        if following is None:
            raise TimeoutError(_refusal(seconds, reason))
        stderr.print(
            f"starting Ray: {reason} ({_load()}). Trying again, for at most {following:g} s",
            markup=False,
        )


def _refusal(seconds: float, reason: str) -> str:
    return (
        f"Ray must start within {seconds:g} s, got {reason} ({_load()}). End other programs, or "
        "wait until they have ended, and give the command again."
    )


def _options(cluster: ClusterSpec) -> dict[str, object]:
    """Quieten Ray in this process, and return the arguments of `ray.init`."""
    # Variables of this process, and of Ray's processes on every node.
    quiet = {
        "RAY_AIR_NEW_OUTPUT": "0",
        "RAY_USAGE_STATS_ENABLED": "0",  # sends nothing anywhere, and saves a process
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # results go to the sweep's folder and to MLflow
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
        # as Ray Train's own trainer sets it for its controllers
        "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0",
        # an actor for each slot; `Slots` watches the nodes
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        "TUNE_WARN_THRESHOLD_S": "5",
        "WANDB_ERROR_REPORTING": "false",  # W&B would send figures of its own use, also offline
    }
    if cluster.autoscaling:
        quiet["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(NODE_SECONDS)
    # The user's own settings win.
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    # Ray prints warnings of its own processes, whatever log_to_driver says. One would come in every
    # sweep: that there are more processes than CPUs, because each slot has helpers.
    ray._private.worker._worker_logs_enabled = False
    # Tune hands the driver's AWS keys to its trials, in a runtime environment that Ray writes into
    # its logs in the clear. A trial of a sweep does not need them, because it only waits for the
    # queue.
    class_cache.ENV_VARS_TO_PROPAGATE -= {
        n for n in class_cache.ENV_VARS_TO_PROPAGATE if n.startswith("AWS_")
    }
    # Tune knows one error of an actor that has died, and would end with any other one.
    for module in (actor_manager, tune_controller):
        vars(module)["RayActorError"] = DEATHS
    # `ray.init` warns before it reads its logging_level.
    logging.getLogger("ray").setLevel(logging.ERROR)
    local = cluster.address == "local"
    return {
        "address": cluster.address,  # "local" never joins an instance that someone else started
        "num_cpus": usable_cpus() if local else None,
        "include_dashboard": False if local else None,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        # Processes on this machine inherit the variables.
        "runtime_env": None if local else _environment(cluster, quiet),
        "_system_config": LOCAL_CONFIG if local else None,
    }


def _attempt(options: dict[str, object], seconds: float) -> str | None:
    """Start Ray in a thread. Return None if it has started, else the reason why not.

    Raises:
        KeyboardInterrupt: the wait was interrupted. No process is left.
        TimeoutError: the thread is stuck in Ray, and holds the lock that a further attempt would
            wait for.
        ValueError: an argument is wrong.
    """
    global _running
    LocalNode.newest = None
    start = Start(options)
    began = said = time.monotonic()
    try:
        start.start()
        # Wait in short steps, between which Python handles signals: Ctrl-C ends the start.
        while not start.ended.wait(POLL_SECONDS) and (now := time.monotonic()) - began < seconds:
            _keep_sigterm()
            if now - said >= SAID_SECONDS:
                said = now
                stderr.print(
                    f"starting Ray: waiting for {_awaited()} since {now - began:.0f} s ({_load()})"
                )
        if start.ended.is_set() and start.error is None:
            _running = start
            return None
        awaited = _awaited()
    finally:
        # Also after an interruption, no process of Ray may be left.
        _keep_sigterm()
        if _running is not start:
            _give_up(start)
    # Give the reason: a wrong argument, Ray's own error, or a process that did not answer.
    if isinstance(start.error, ValueError):
        raise start.error
    if start.error is not None:
        return next(iter(str(start.error).strip().splitlines()), type(start.error).__name__)
    reason = f"no answer from {awaited} after {seconds:g} s"
    # The thread holds Ray's lock, so a further attempt would hang.
    if not start.ended.is_set():
        raise TimeoutError(_refusal(seconds, reason))
    return reason


def _keep_sigterm() -> None:
    """Install Python's handler of SIGTERM again: Ray's prints a stack trace and aborts."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def _awaited() -> str:
    return "the cluster" if LocalNode.newest is None else LocalNode.newest.awaited()


def _load() -> str:
    """Return this machine's load, and the memory limit that Ray's processes inherit, if any."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    words = f"; {limit / 1e9:.1f} GB of memory a process (`ulimit -v`)"
    limited = "" if limit == resource.RLIM_INFINITY else words
    return f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors{limited}"


def _kill_newest() -> None:
    if LocalNode.newest is not None:
        LocalNode.newest.kill()


def _give_up(start: Start) -> None:
    """Kill what an attempt has started, until its thread has ended or starts nothing more."""
    deadline = time.monotonic() + END_SECONDS
    # Processes that start meanwhile are killed in the next round.
    while True:
        _kill_newest()
        if start.ended.wait(POLL_SECONDS) or time.monotonic() > deadline:
            break
    start.stopped.set()
    if not start.ended.is_set():
        atexit.unregister(ray.shutdown)  # it would wait for the thread
    elif start.error is None:
        ray.shutdown()


@contextmanager
def _own_node(seconds: float) -> Iterator[None]:
    """Let Ray, which starts in the block, start a `LocalNode`, and wait for it this long.

    What it makes is private.
    """
    own, get_node, wait_for_port = NODE.Node, services.get_node, NODE.wait_for_persisted_port
    # What Ray creates in the block is for this user alone.
    umask = os.umask(0o077)
    deadline = time.monotonic() + seconds

    def started() -> LocalNode:
        assert LocalNode.newest is not None
        return LocalNode.newest

    # These two replace waits of Ray in C++, during which Python handles no signal.
    def registered(*args: Any) -> Any:
        _poll(started().is_ready, started(), deadline)
        return get_node(*args)  # type: ignore[no-untyped-call]

    def port(folder: str, node_id: str, name: str, **_: Any) -> Any:
        _poll((Path(folder) / NODE.get_port_filename(node_id, name)).exists, started(), deadline)
        return wait_for_port(folder, node_id, name)

    NODE.Node, services.get_node, NODE.wait_for_persisted_port = LocalNode, registered, port
    try:
        yield
    finally:
        NODE.Node, services.get_node, NODE.wait_for_persisted_port = own, get_node, wait_for_port
        os.umask(umask)


def _poll(condition: Callable[[], bool], started: LocalNode, deadline: float) -> None:
    """Wait for a condition.

    Ray's own waits let no other thread run, so that no signal would be handled.

    Raises:
        OSError: the time is over, or a process has ended.
    """
    while not condition():
        if started.has_failed():
            raise ChildProcessError("a process of Ray has ended while it started")
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer from {started.awaited()}")
        time.sleep(POLL_SECONDS)


def _answers(port: int) -> bool:
    """Return whether a gRPC server on a loopback port answers; a frozen one would only connect."""
    with (
        suppress(OSError),
        socket.create_connection((LOOPBACK, port), timeout=ANSWER_SECONDS) as connection,
    ):
        # The system accepts connections for a frozen server too, so wait for a byte.
        connection.sendall(GREETING)
        connection.recv(1)
        return True
    return False


def _free_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as one:
        one.bind((LOOPBACK, 0))
        port: int = one.getsockname()[1]
        return port


def stop_ray() -> None:
    """Stop Ray here, or leave the cluster; kill a frozen process of Ray after some seconds."""
    global _running
    # Ray's own shutdown would wait for a frozen process for ever.
    killer = threading.Timer(STUCK_SECONDS, _kill_newest)
    killer.daemon = True
    killer.start()
    ray.shutdown()
    killer.cancel()
    if _running is not None:
        _running.stopped.set()
        _running = None


def _environment(cluster: ClusterSpec, names: Collection[str]) -> dict[str, object]:
    """Return the runtime environment of all processes: these variables, and those of Ray Train."""
    variables = {k: v for k, v in os.environ.items() if k in names or k.startswith("RAY_TRAIN_")}
    code = {} if cluster.working_dir is None else {"working_dir": cluster.working_dir}
    return {"env_vars": variables, **code}

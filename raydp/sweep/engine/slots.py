"""The slots of a sweep: Ray, the queue and one long-lived Ray Train worker group a slot, which takes its trials from
the queue. A slot is a thread of the driver that starts its worker group, waits for its end and starts the next."""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import ray.train
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.tune.execution import class_cache
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raydp.io.output import phase, stderr
from raydp.spec.sections import ClusterSpec
from raydp.sweep.engine.group import Announce, train_loop
from raydp.sweep.engine.machine import check_address, fitting_groups
from raydp.sweep.engine.queue import TrialQueue
from raydp.sweep.engine.stopping import EarlyStopping

if TYPE_CHECKING:
    from raydp.sweep.engine.worker import WorkerInputs

MAX_CONTROLLER_DEATHS = 3
"""How often Train's controller of a slot may die before the slot gives up."""

TRIALS_PER_GROUP = 200
"""A worker group is replaced by a fresh one after so many runs: memory that libraries keep does not add up."""

CALLS_PER_SLOT = 10
"""Calls of the queue that may be in progress at once, for each slot: Tune's waits for a result, a lease, heartbeats."""

NODE_SECONDS = 3600
"""How long a worker group waits for the node that an autoscaler is to add."""

DRAIN_SECONDS = 2.0
"""How often it is looked whether nodes are about to be taken away."""

CLOSE_SECONDS = 30.0
"""How long the end of a sweep waits for its worker groups to go home."""


def start_ray(cluster: ClusterSpec) -> None:
    """Start Ray here, or join the cluster.

    Raises:
        ValueError: nothing answers at the cluster's address.
    """
    check_address(cluster.address)
    quiet = {
        "RAY_AIR_NEW_OUTPUT": "0",
        "RAY_USAGE_STATS_ENABLED": "0",  # sends nothing anywhere, and saves a process
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # results go to the sweep's folder and to MLflow
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # an actor a slot; the driver looks for all of them
        "TUNE_WARN_THRESHOLD_S": "5",
        **({"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(NODE_SECONDS)} if cluster.autoscaling else {}),
    }
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    # Ray prints warnings of its own processes whatever log_to_driver says, one of them about every sweep: a slot's
    # helpers are more processes than CPUs.
    ray._private.worker._worker_logs_enabled = False
    # Tune hands the driver's AWS keys to its trials, in a runtime environment that Ray writes into its logs in the
    # clear. Our trials only wait for a queue.
    class_cache.ENV_VARS_TO_PROPAGATE -= {n for n in class_cache.ENV_VARS_TO_PROPAGATE if n.startswith("AWS_")}
    local = cluster.address == "local"
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=cluster.address,  # "local" never joins an instance that someone else started
            include_dashboard=False if local else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env=None if local else _environment(cluster, quiet),  # here processes inherit it, and start faster
        )
    except SystemExit as stop:  # a SIGTERM meanwhile, by Ray's handler
        raise KeyboardInterrupt from stop
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own ends the process with a stack trace


def stop_ray() -> None:
    """Stop Ray here, or leave the cluster."""
    ray.shutdown()


def _environment(cluster: ClusterSpec, variables: dict[str, str]) -> dict[str, Any]:
    """What Ray gives the processes of a sweep on every node."""
    code = {} if cluster.working_dir is None else {"working_dir": cluster.working_dir}
    return {"env_vars": variables, **code}


def beside_driver(cls: type, **options: Any) -> Any:
    """An actor's class that takes no CPU and lives on the driver's node, so that its actor ends with nobody else.

    Args:
        options: further ones of Ray's.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(cls).options(num_cpus=0, scheduling_strategy=here, **options)


def fitting_workers(cluster: ClusterSpec) -> int:
    """How many workers the cluster can hold at once."""
    return sum(cluster.workers_on(*node) for node in _nodes())


def fitting_slots(cluster: ClusterSpec) -> int:
    """How many worker groups the cluster can hold at once, at most what the spec allows; all of those where it grows.

    Raises:
        ValueError: not even one fits.
    """
    if cluster.autoscaling and cluster.max_concurrent_trials is not None:
        return cluster.max_concurrent_trials
    return fitting_groups(cluster, _nodes())


def _nodes() -> list[tuple[float, float]]:
    """CPUs and GPUs of each node that is up."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [(node.get("CPU", 0), node.get("GPU", 0)) for node in nodes]


def first_group(slot: int, num_slots: int) -> int:
    """Runs of a slot's first worker group: from half of them for slot 0 to all for the last, so that slots do not all
    stand still for their replacement at once."""
    return math.ceil(TRIALS_PER_GROUP * (num_slots + slot + 1) / (2 * num_slots))


class SlimTrainer(TorchTrainer):
    """Without two helpers of each worker group, processes that would start and do nothing: Ray Data's, as runs read
    their examples from the object store, and the cleaner of placement groups, as `Slots` gives them back itself."""

    def _create_default_callbacks(self) -> list[Any]:
        return [
            callback
            for callback in super()._create_default_callbacks()  # type: ignore[misc] # its annotations are of Train v1
            if not isinstance(callback, DatasetsCallback | PlacementGroupCleanerCallback)
        ]


class Slots:
    """Starts the slots of a sweep; ends them and Ray with the block.

    Args:
        expected: runs that will be put into the queue, the measurement of the base model among them.
        storage: a folder for Ray Train's own state.
        early_stopping: which runs end early.
    """

    def __init__(
        self, cluster: ClusterSpec, *, expected: int, storage: Path, early_stopping: EarlyStopping | None = None
    ) -> None:
        self.num_slots = min(fitting_slots(cluster), expected)
        calls = CALLS_PER_SLOT * self.num_slots + 1000  # those that wait in it must leave room for those that end it
        queue = beside_driver(TrialQueue, max_concurrency=calls)
        self.queue: Any = queue.remote(
            expected=expected, max_retries=cluster.max_retries, early_stopping=early_stopping
        )
        self._shared: Any = None
        self._cluster = cluster
        self._storage = storage
        self._max_failures = (1 + cluster.max_retries) * (expected + 1)
        self._reasons: list[str] = []
        self._running = self.num_slots
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._threads = [threading.Thread(target=self._keep, args=(k,), daemon=True) for k in range(self.num_slots)]
        if cluster.address != "local":
            self._threads.append(threading.Thread(target=self._watch_nodes, daemon=True))

    def __enter__(self) -> Slots:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._pause()
        with phase(stderr, "Stop Ray"):
            try:
                deadline = time.monotonic() + CLOSE_SECONDS  # a group may still wait for a node
                for thread in self._threads[: self.num_slots] if kind is None else []:
                    thread.join(max(0.0, deadline - time.monotonic()))
                self._close()
            finally:
                stop_ray()

    def _pause(self) -> None:
        """Let runs in progress save their state; a second interruption does not wait for it."""
        seconds = self._cluster.grace_seconds
        stderr.print(f"stopping: runs in progress save their state, which may take {seconds:g} s")
        with suppress(ray.exceptions.RayError, KeyboardInterrupt):
            self.queue.pause.remote()
            ray.get(self.queue.idle.remote(), timeout=seconds)

    def _close(self) -> None:
        """End the threads by killing the controllers that they wait for. A thread that is left in a call of Ray when
        Ray shuts down can end the whole process, without a word to Python."""
        self._closing.set()
        deadline = time.monotonic() + CLOSE_SECONDS
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < deadline:
            with suppress(ray.exceptions.RayError):
                for controller in ray.get(self.queue.controllers.remote(), timeout=CLOSE_SECONDS):
                    ray.kill(controller)
            for thread in self._threads:
                thread.join(0.2)

    def share(self, shared: WorkerInputs) -> None:
        """Put what every worker needs into the object store, once; they wait for it."""
        self._shared = ray.put(shared)
        self.queue.share.remote([self._shared])

    def _watch_nodes(self) -> None:
        """Tell the queue of nodes that Ray drains: spot instances with notice, a cluster that shrinks."""
        known: dict[str, int] = {}
        while not self._closing.wait(DRAIN_SECONDS):
            with suppress(ray.exceptions.RayError):
                draining: dict[str, int] = ray._private.state.state.get_draining_nodes()
                if draining.keys() != known.keys():
                    ray.get(self.queue.drain.remote(list(draining)))
                    known = draining

    def _keep(self, slot: int) -> None:
        """Keep a slot's worker group alive until there is nothing left for it. When the last slot has ended, whatever
        still waits would wait for ever: it fails with the slots' reasons."""
        try:
            self._run_groups(slot)
        except Exception as error:  # noqa: BLE001 - whatever ends a slot, those who wait for it must hear of it
            self._reasons.append(str(error).strip().splitlines()[-1])
        with self._lock:
            self._running -= 1
            if not self._running and not self._closing.is_set():
                ray.get(self.queue.abandon.remote("; ".join(self._reasons) or "no worker group is left"))

    def _run_groups(self, slot: int) -> None:
        deaths, max_trials = 0, first_group(slot, self.num_slots)
        while True:
            try:
                self._trainer(slot, max_trials).fit()
            except ray.exceptions.RayActorError:  # Train's controller has died
                deaths += 1
                if deaths > MAX_CONTROLLER_DEATHS:
                    raise
            if self._closing.is_set() or not ray.get(self.queue.has_work_for.remote(slot)):
                return
            self._free_leftovers(slot)
            max_trials = TRIALS_PER_GROUP

    def _trainer(self, slot: int, max_trials: int) -> SlimTrainer:
        """A new worker group."""
        cluster = self._cluster
        resources = {"CPU": cluster.cpus_per_worker}
        if cluster.gpus_per_worker:
            resources["GPU"] = cluster.gpus_per_worker
        return SlimTrainer(
            train_loop,
            train_loop_config={
                "slot": slot,
                "queue": self.queue,
                "max_trials": max_trials,
            },
            torch_config=TorchConfig(backend="nccl" if cluster.gpus_per_worker else "gloo"),
            scaling_config=ray.train.ScalingConfig(
                num_workers=cluster.workers_per_trial,  # type: ignore[arg-type] # Train v2 takes a range
                elastic_resize_monitor_interval_s=math.inf,  # type: ignore[call-arg] # a group that is well is left alone
                use_gpu=cluster.gpus_per_worker > 0,
                resources_per_worker=resources,
            ),
            run_config=ray.train.RunConfig(
                name=f"slot-{slot}-{secrets.token_hex(4)}",
                storage_path=str(self._storage),
                callbacks=[Announce(self.queue, slot)],  # type: ignore[list-item] # Train v2 takes its own kind
                failure_config=ray.train.FailureConfig(max_failures=self._max_failures),
            ),
        )

    def _free_leftovers(self, slot: int) -> None:
        """Give back what a controller that was killed still holds: Train's own cleaner needs the state API, which needs
        the dashboard, and the next worker group would wait for these devices for ever."""
        leftover = ray.get(self.queue.placement_group.remote(slot))
        if leftover is not None:
            ray.util.remove_placement_group(leftover)

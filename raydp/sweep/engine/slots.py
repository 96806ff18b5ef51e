"""The slots of a sweep, each with one long-lived worker group of Ray Train.

A worker group takes its runs from the queue. A slot is a thread of the driver that starts a worker
group, waits for its end and starts the next group.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ray
import ray.train
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raydp.spec.sections.cluster import ClusterSpec
from raydp.sweep.engine.context import WorkerInputs
from raydp.sweep.engine.group import LazyTorchConfig, LoopConfig, SilentScalingPolicy, train_loop
from raydp.sweep.engine.machine import fitting_groups
from raydp.sweep.engine.queue import TrialQueue
from raydp.sweep.engine.ray_start import DEATHS, stop_ray
from raydp.sweep.engine.stopping import EarlyStopping
from raydp.system.output import phase, stderr

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorClass, ActorHandle, ActorProxy
    from ray.train.v2.api.callback import RayTrainCallback
    from ray.train.v2.api.result import Result

    from raydp.sweep.store.results import RunResult

T = TypeVar("T")

LOGGER = logging.getLogger(__name__)

MAX_CONTROLLER_DEATHS = 3
"""How often Train's controller of a slot may die before the slot gives up."""

TRIALS_PER_GROUP = 200
"""Number of runs after which a fresh worker group replaces a worker group.

Memory that libraries keep cannot grow further.
"""

CALLS_PER_SLOT = 10
"""Calls of the queue that may be in progress at once, for each slot.

They are waits for results and leases, and heartbeats.
"""

DRAIN_SECONDS = 2.0
"""Time between two checks for nodes that will be removed."""

CLOSE_SECONDS = 30.0
"""How long the end of a sweep waits for its worker groups to end."""

ANSWER_SECONDS = 1.0
"""How long an interrupted sweep waits for the queue's answer. The queue may have died."""

UNSAVED = (
    "a run did not save its state within {seconds:g} s: it goes on from its last checkpoint. "
    "Raise cluster.grace_seconds to wait longer"
)

KILL_SECONDS = 10.0
"""How long the end of a sweep waits once the controllers of its worker groups are killed.

Longer waits are for a process of Ray that has frozen.
"""


def beside_driver(cls: type[T], **options: object) -> ActorClass[T]:
    """Return a class of actors that take no CPU and run on the driver's node.

    These actors survive the loss of every other node.

    Args:
        cls: class of the actor.
        options: further options of Ray's actors.
    """
    # An actor on another node would die with that node.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(cls).options(num_cpus=0, scheduling_strategy=here, **options)


def fitting_workers(cluster: ClusterSpec) -> int:
    """Return how many workers the cluster can hold at once."""
    return sum(cluster.workers_on(*node) for node in _nodes())


def fitting_slots(cluster: ClusterSpec) -> int:
    """Return how many worker groups the cluster can hold at once, at most what the spec allows.

    A cluster that grows holds all groups that the spec allows.

    Raises:
        ValueError: not even one worker group fits.
    """
    if cluster.autoscaling and cluster.max_concurrent_trials is not None:
        return cluster.max_concurrent_trials
    return fitting_groups(cluster, _nodes())


def _nodes() -> list[tuple[float, float]]:
    """Return the CPUs and GPUs of each node that is up."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [(node.get("CPU", 0), node.get("GPU", 0)) for node in nodes]


def first_group(slot: int, num_slots: int) -> int:
    """Return the number of runs of a slot's first worker group.

    The number grows from about half of `TRIALS_PER_GROUP` for slot 0 to all for the last slot.
    Worker groups are then not all replaced at once.
    """
    return math.ceil(TRIALS_PER_GROUP * (num_slots + slot + 1) / (2 * num_slots))


class SlimTrainer(DataParallelTrainer):
    """A Ray Train trainer without idle helper processes. It passes its controller to `started`.

    Ray Data's helper has no work, because runs read their examples from the object store. The
    cleaner of placement groups has no work, because `Slots` gives them back. For the coordinator
    see `SilentScalingPolicy`.

    Args:
        grows: whether the cluster adds nodes for the worker group.
        started: called with the controller, whose process may not run yet.
    """

    def __init__(
        self, *args: Any, grows: bool, started: Callable[[ActorHandle[Any]], object], **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._grows, self._started = grows, started

    def _create_default_callbacks(self) -> list[RayTrainCallback]:
        return [
            callback
            for callback in super()._create_default_callbacks()
            if not isinstance(callback, DatasetsCallback | PlacementGroupCleanerCallback)
        ]

    def _initialize_and_run_controller(self, **options: Any) -> Result:
        # If the cluster grows, Train must announce the group, so that a node is added.
        if not self._grows and type(options["scaling_policy"]) is FixedScalingPolicy:
            options["scaling_policy"] = SilentScalingPolicy(
                options["scaling_policy"].scaling_config
            )
        # On the driver's node: a controller must not end with a node of the workers.
        controller: Any = beside_driver(TrainController).remote(**options)
        self._started(controller)
        ray.get(controller.run.remote())
        result: Result = ray.get(controller.get_result.remote())
        return result


class Slots:
    """Starts the slots of a sweep at the beginning of a `with` block.

    The end of the block stops them and Ray.

    Args:
        expected: number of runs that will enter the queue, including the measurement of the base
            model.
        storage: a folder for Ray Train's own state.
        early_stopping: see `RunQueue`.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        *,
        expected: int,
        storage: Path,
        early_stopping: Mapping[str, EarlyStopping] | None = None,
    ) -> None:
        # No more slots than runs: an idle slot would hold devices for nothing.
        self.num_slots = min(fitting_slots(cluster), expected)
        # Calls that wait must leave room for calls that end a wait.
        calls = CALLS_PER_SLOT * self.num_slots + 1000
        self.queue: ActorProxy[TrialQueue] = beside_driver(
            TrialQueue, max_concurrency=calls
        ).remote(expected=expected, max_retries=cluster.max_retries, early_stopping=early_stopping)
        self._controllers: dict[int, ActorHandle[Any]] = {}
        self._shared: ObjectRef[WorkerInputs] | None = None  # keeps the object in the store
        self._cluster = cluster
        self._storage = storage
        # Train must not give up on a slot before every run has failed in every attempt.
        self._max_failures = (1 + cluster.max_retries) * (expected + 1)
        self._reasons: list[str] = []
        self._running = self.num_slots
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep, args=(k,), daemon=True)
            for k in range(self.num_slots)
        ]
        # Only a cluster of several nodes gives notice of a node that will be removed.
        if cluster.address != "local":
            self._threads.append(threading.Thread(target=self._watch_nodes, daemon=True))

    def __enter__(self) -> Slots:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        with phase(
            stderr,
            "stopping Ray" if self._cluster.address == "local" else "leaving the Ray cluster",
        ):
            try:
                # A worker group may still wait for a node, so the wait for the slots is limited.
                deadline = time.monotonic() + CLOSE_SECONDS
                # After an error nobody waits for the runs in progress.
                for thread in self._threads[: self.num_slots] if kind is None else []:
                    thread.join(max(0.0, deadline - time.monotonic()))
                self._close()
            finally:
                stop_ray()

    def pause(self) -> list[RunResult]:
        """Let the trials save, and return results that are not on disk; Ctrl-C ends the wait."""
        seconds = self._cluster.grace_seconds
        said = f"stopping: runs that train save their state, for at most {seconds:g} s"
        # The queue may have died, or the user interrupts again: then nothing more is kept.
        with suppress(ray.exceptions.RayError, KeyboardInterrupt), phase(stderr, said):
            self.queue.pause.remote()
            if not ray.wait([self.queue.saved.remote()], timeout=seconds)[0]:
                LOGGER.warning(UNSAVED.format(seconds=seconds))
            return ray.get(self.queue.ended.remote(), timeout=ANSWER_SECONDS)
        return []

    def _close(self) -> None:
        """End the threads by killing the controllers that they wait for.

        If a thread is still in a call of Ray when Ray shuts down, the whole process can end without
        an exception.
        """
        self._closing.set()
        deadline = time.monotonic() + KILL_SECONDS
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < deadline:
            for controller in list(self._controllers.values()):
                ray.kill(controller)
            for thread in self._threads:
                thread.join(0.2)

    def share(self, shared: WorkerInputs) -> None:
        """Put the workers' inputs into the object store, once. The workers wait for them."""
        self._shared = ray.put(shared)
        self.queue.share.remote([self._shared])

    def _watch_nodes(self) -> None:
        """Tell the queue which nodes will be removed, such as spot instances after their notice."""
        known: set[str] = set()
        while not self._closing.wait(DRAIN_SECONDS):
            with suppress(ray.exceptions.RayError):
                draining = set(ray._private.state.state.get_draining_nodes())
                if draining != known:
                    ray.get(self.queue.drain.remote(draining))
                    known = draining

    def _keep(self, slot: int) -> None:
        """Start worker groups until no run is left for the slot.

        When the last slot ends, the runs that still wait fail with the slots' reasons: otherwise
        they would wait for ever.
        """
        try:
            self._run_groups(slot)
        except Exception as error:  # noqa: BLE001 - whatever ends a slot becomes the reason of the runs that wait
            self._reasons.append(str(error).strip().splitlines()[-1])
        # Count under a lock, so that exactly one slot sees that it is the last.
        with self._lock:
            self._running -= 1
            if not self._running and not self._closing.is_set():
                ray.get(
                    self.queue.abandon.remote("; ".join(self._reasons) or "no worker group is left")
                )

    def _run_groups(self, slot: int) -> None:
        """Run one worker group after another, until no run is left for the slot."""
        deaths, max_trials = 0, first_group(slot, self.num_slots)
        while True:
            LOGGER.debug("slot %d starts a worker group for at most %d runs", slot, max_trials)
            try:
                self._trainer(slot, max_trials).fit()
            except DEATHS:  # Train's controller has died
                # Train replaces dead workers by itself; a dead controller needs a new worker group.
                deaths += 1
                if deaths > MAX_CONTROLLER_DEATHS:
                    raise
            if self._closing.is_set() or not ray.get(self.queue.has_work_for.remote(slot)):
                return
            self._free_leftovers(slot)
            max_trials = TRIALS_PER_GROUP

    def _trainer(self, slot: int, max_trials: int) -> SlimTrainer:
        """Return a new worker group of the slot."""
        cluster = self._cluster
        resources = {"CPU": cluster.cpus_per_worker}
        if cluster.gpus_per_worker:
            resources["GPU"] = cluster.gpus_per_worker
        return SlimTrainer(
            train_loop,
            grows=cluster.autoscaling,
            started=partial(self._controllers.__setitem__, slot),
            train_loop_config={
                "loop": LoopConfig(slot=slot, queue=self.queue, max_trials=max_trials)
            },
            backend_config=LazyTorchConfig(backend="nccl" if cluster.gpus_per_worker else "gloo"),
            scaling_config=ray.train.ScalingConfig(
                # Train v2 also takes a range of workers, which its types do not say.
                num_workers=cluster.workers_per_trial,  # type: ignore[arg-type]
                # Never resize a worker group that is well.
                elastic_resize_monitor_interval_s=math.inf,  # type: ignore[call-arg]
                use_gpu=cluster.gpus_per_worker > 0,
                resources_per_worker=resources,
            ),
            run_config=ray.train.RunConfig(
                # A new name for each group: under a known name, Train would restore an earlier
                # state.
                name=f"slot-{slot}-{secrets.token_hex(4)}",
                storage_path=str(self._storage),
                failure_config=ray.train.FailureConfig(max_failures=self._max_failures),
            ),
        )

    def _free_leftovers(self, slot: int) -> None:
        """Give back the devices that a killed controller still holds.

        Otherwise the next worker group would wait for these devices for ever. Train's own cleaner
        would need the state API, and so the dashboard.
        """
        leftover = ray.get(self.queue.placement_group.remote(slot))
        if leftover is not None:
            ray.util.remove_placement_group(leftover)

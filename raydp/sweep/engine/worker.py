"""The work of a worker of Ray Train: it takes runs from the queue until no run is left."""

from __future__ import annotations

import gc
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import ray
import ray.train
import torch
from ray.train.torch import get_device

from raydp.models import sharing
from raydp.search_spaces.settings import NO_SETTINGS, Settings
from raydp.sweep.engine.context import SweepInputs, WorkerInputs
from raydp.sweep.engine.leases.run_queue import News
from raydp.sweep.engine.queue import Order, TrialQueue
from raydp.sweep.engine.trial import TrialRunner, runs_on
from raydp.sweep.store.folder import BASE_RUN
from raydp.system.files import wait_until_writable
from raydp.training.comm import Comm, DistributedComm, LocalComm
from raydp.training.probe import DependentExamples
from raydp.training.trial import Paused

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorProxy
    from ray.util.placement_group import PlacementGroup

DISK_SECONDS = 600.0
"""How long a failed run waits for a disk that takes no file, before the failure counts."""
BEAT_SECONDS = 1.0
"""Time between two heartbeats.

The answer to each is an order to pause, which comes at once, or to go on.
"""
LOOK_SECONDS = 0.1
"""Time between two looks for that answer."""


def work(queue: ActorProxy[TrialQueue], slot: int, max_trials: int) -> None:
    """Lease runs, train them and hand in results, until no run is left or the group is replaced.

    Args:
        queue: the sweep's queue.
        slot: number of the worker's slot.
        max_trials: number of runs after which the worker group is replaced.
    """
    context = ray.train.get_context()
    device = get_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    comm: Comm = DistributedComm(device) if context.get_world_size() > 1 else LocalComm(device)
    here = ray.util.get_current_placement_group()
    # Rank 0 alone talks to the queue and broadcasts the answers, so that all ranks do the same.
    if not comm.broadcast_object(_register(queue, slot, here) if comm.rank == 0 else None):
        return
    (reference,) = ray.get(queue.shared.remote())
    shared = ray.get(reference)
    # A node that does not see the sweeps' folders can train no run, so the slot gives up.
    try:
        for sweep in shared.sweeps.values():
            sweep.require_folder()
    except ValueError as error:
        ray.get(queue.explain.remote(slot, str(error), True))
        raise
    # Set the model up once, for all runs of this worker group.
    try:
        name, settings = shared.first
        first = shared.sweeps[name]
        torch.set_num_threads(max(1, int(first.spec.cluster.cpus_per_worker)))
        runners = Runners(
            shared, comm, partial(queue.prepare.remote, slot) if comm.rank == 0 else None
        )
        runners.of(first, settings)
    except DependentExamples as error:
        # Examples depend on each other by model and task: another worker group cannot help.
        ray.get(queue.explain.remote(slot, str(error), True))
        raise
    except Exception as error:
        ray.get(queue.explain.remote(slot, f"{type(error).__name__}: {error}", False))
        raise
    # Work off leases. After `max_trials` runs, the slot replaces this worker group.
    for _ in range(max_trials):
        lease = comm.broadcast_object(ray.get(queue.lease.remote(slot)) if comm.rank == 0 else None)
        if lease is None:
            return
        _run_lease(runners, shared, queue, *lease)


def _register(
    queue: ActorProxy[TrialQueue], slot: int, placement_group: PlacementGroup | None
) -> bool:
    """Tell the queue where the group's workers are. Return whether they go on."""
    nodes = list(ray.util.placement_group_table(placement_group)["bundles_to_node_id"].values())
    return ray.get(queue.register.remote(slot, placement_group, nodes))


def _run_lease(
    runners: Runners, shared: WorkerInputs, queue: ActorProxy[TrialQueue], key: str, token: int
) -> None:
    """Run the leased run; report a failure with its reason, and restart the worker group."""
    sweep, run_id = shared.of(key)
    files = sweep.files(run_id)
    # The tokens of a resumed sweep begin at 1 again, so the name has a random part.
    attempt = f"attempt-{token}-{secrets.token_hex(4)}"
    # Train under heartbeats, whose answers bring the order to pause.
    with closing(files), Heartbeat(queue, key, token, active=runners.comm.rank == 0) as heart:
        try:
            if run_id == BASE_RUN:
                outcome = runners.of(sweep, NO_SETTINGS).measure_base(sweep.spec.seed_labels[0])
            else:
                trial = sweep.trials[run_id]
                outcome = runners.of(sweep, trial.settings).run(
                    trial, files, attempt, heart, sweep.accounted[run_id]
                )
        except Paused:
            ray.get(queue.release.remote(key, token))  # changes nothing if the lease was lost
            return
        except Exception as error:
            refused = isinstance(error, DependentExamples)  # another attempt would find the same
            reason = str(error) if refused else f"{type(error).__name__}: {error}"
            # With a full disk the next attempt would fail at once, too.
            if isinstance(error, OSError) and sweep.exchange is None:
                wait_until_writable(
                    sweep.folder / "trials", seconds=DISK_SECONDS, stop_fn=heart.must_pause
                )
            ray.get(queue.fail.remote(key, token, reason, not refused))
            raise
    # Rank 0 alone has an outcome. The queue refuses it if the lease was lost.
    if outcome is not None:
        ray.get(queue.complete.remote(key, token, outcome))


class Runners:
    """The runner of the runs of one sweep or several.

    It has one base model in memory, and is set up anew where runs need another one.

    Args:
        shared: what every worker needs.
        comm: the worker group.
        prepare: takes what the worker does before a run, in words; None says nothing.
    """

    def __init__(
        self, shared: WorkerInputs, comm: Comm, prepare: Callable[[str], object] | None
    ) -> None:
        self.comm = comm
        self._shared = shared
        self._prepare = prepare
        self._runner: TrialRunner | None = None

    def of(self, sweep: SweepInputs, settings: Settings) -> TrialRunner:
        """Return the runner of a sweep's runs with these settings."""
        spec = sweep.spec.of_run(settings)
        if self._runner is None or not self._runner.turn_to(spec, task=sweep.task, key=sweep.key):
            self._runner = None
            gc.collect()  # the earlier model's memory, before the next model needs its own
            if self.comm.device.type == "cuda":
                torch.cuda.empty_cache()
            model = sharing.assemble(sweep.models[spec.model.weight_dtype])
            model = replace(model, quantization=spec.model.quantization)
            self._runner = TrialRunner(
                spec,
                sweep.task,
                model,
                self.comm,
                sweep.key,
                prepare=self._prepare,
                planned=[
                    trial
                    for other in self._shared.sweeps.values()
                    if other.task is sweep.task
                    for trial in runs_on(spec.model, other.spec, list(other.trials.values()))
                ],
            )
        return self._runner


class Heartbeat:
    """Tells the queue at intervals that the lease is held, also while scores are measured.

    This is the `TrialControl` of a sweep's runs.

    The queue answers whether the run goes on.

    Args:
        active: whether to send heartbeats. Rank 0 alone does.
    """

    def __init__(
        self, queue: ActorProxy[TrialQueue], run_id: str, token: int, *, active: bool
    ) -> None:
        self._queue, self._run_id, self._token = queue, run_id, token
        self._at = News()
        self._order: Order = "go on"
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True) if active else None

    def beat(self, step: int, num_steps: int, row: Mapping[str, float]) -> None:
        """Note how far training is. The next heartbeat sends it."""
        self._at = News(step=step, num_steps=num_steps, row=row)

    def must_pause(self) -> bool:
        """Return whether the sweep pauses, or this worker was thought dead and lost its lease."""
        return self._order != "go on"

    def check(self, name: str, utility_loss: float) -> str | None:
        """Return why the run ends at this check; None if it goes on."""
        return ray.get(self._queue.check.remote(self._run_id, self._token, name, utility_loss))

    def __enter__(self) -> Heartbeat:
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        if self._thread:
            self._thread.join()

    def _send(self) -> ObjectRef[Order]:
        return self._queue.heartbeat.remote(self._run_id, self._token, self._at, BEAT_SECONDS)

    def _loop(self) -> None:
        # One heartbeat at a time, because the queue holds its answer back for an order.
        sent = self._send()
        while not self._done.wait(LOOK_SECONDS):
            if ray.wait([sent], timeout=0)[0]:  # while the network is down there is no answer
                with suppress(ray.exceptions.RayError):
                    self._order = ray.get(sent)
                sent = self._send()

"""What a worker of Ray Train does: it takes trials from the queue until nothing is left."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train.torch import get_device

from raydp.models import sharing
from raydp.spec.document import SweepSpec
from raydp.sweep.engine.queue import LEASE_SECONDS, Order
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.transfer import Bucket, StoredFiles, TrialFiles
from raydp.tasks.base import Task
from raydp.training.comm import Comm, DistributedComm, LocalComm
from raydp.training.trial import Paused
from raydp.training.trial_plan import TrialPlan


@dataclass(frozen=True, kw_only=True)
class WorkerInputs:
    """What every worker needs, put into the object store once; all processes of a node map the same arrays."""

    spec: SweepSpec
    task: Task
    model: sharing.SharedModel
    trials: dict[str, TrialPlan]
    sweep_id: str
    folder: Path
    bucket: Bucket | None
    key: bytes

    def files(self, run_id: str) -> TrialFiles:
        """Where a run's files are, as seen from this node."""
        if self.bucket is not None:
            return StoredFiles(bucket=self.bucket, run_id=run_id)
        return SweepFolder(path=self.folder).files(run_id)

    def require_folder(self) -> None:
        """Check that the sweep's folder is seen from this node, where runs are handed over by it.

        Raises:
            ValueError: it is not, or something else is there.
        """
        plan = self.folder / "plan.json"
        if self.bucket is None and not (plan.is_file() and self.sweep_id in plan.read_text(encoding="utf-8")):
            raise ValueError(
                f"storage must be a folder that every node sees, got {str(self.folder)!r}, which "
                f"{socket.gethostname()} does not. Mount it there, or set cluster.exchange to the URI of an object "
                "store."
            )

    def __repr__(self) -> str:
        return f"WorkerInputs({self.spec.name!r})"  # the key is never shown


def work(config: dict[str, Any]) -> None:
    """What a worker does: lease, train, hand in, until there is nothing left or the group is due for replacement.

    Args:
        config: `slot`, its number; `queue`, the TrialQueue's actor; `max_trials`, how many to run before the group is
            replaced.
    """
    context = ray.train.get_context()
    device = get_device()
    comm: Comm = DistributedComm(device) if context.get_world_size() > 1 else LocalComm(device)
    queue, slot = config["queue"], config["slot"]
    here = ray.util.get_current_placement_group()
    if not comm.broadcast_object(_register(queue, slot, here) if comm.rank == 0 else None):
        return
    (reference,) = ray.get(queue.shared.remote())
    shared: WorkerInputs = ray.get(reference)
    try:
        shared.require_folder()
    except ValueError as error:
        ray.get(queue.give_up.remote(slot, str(error)))
        raise
    try:
        torch.set_num_threads(max(1, int(shared.spec.cluster.cpus_per_worker)))
        runner = TrialRunner(shared.spec, shared.task, sharing.assemble(shared.model), comm, shared.key)
    except Exception as error:
        ray.get(queue.explain.remote(slot, f"{type(error).__name__}: {error}"))
        raise
    for _ in range(config["max_trials"]):
        lease = comm.broadcast_object(ray.get(queue.lease.remote(slot)) if comm.rank == 0 else None)
        if lease is None:
            return
        _run_lease(runner, shared, queue, *lease)


def _register(queue: Any, slot: int, placement_group: Any) -> bool:
    """Tell the queue where the group's workers are; whether they are to go on."""
    nodes = list(ray.util.placement_group_table(placement_group)["bundles_to_node_id"].values())
    goes_on: bool = ray.get(queue.register.remote(slot, placement_group, nodes))
    return goes_on


def _run_lease(runner: TrialRunner, shared: WorkerInputs, queue: Any, run_id: str, token: int) -> None:
    """Run what was leased; a failure is reported with its reason and then restarts the whole worker group."""
    files = shared.files(run_id)
    attempt = f"attempt-{token}-{secrets.token_hex(4)}"  # another driver's tokens begin at 1 again
    with closing(files), Heartbeat(queue, run_id, token, active=runner.comm.rank == 0) as heart:
        try:
            if run_id == BASE_RUN:
                outcome = runner.measure_base(shared.spec.seeds[0])
            else:
                outcome = runner.run(shared.trials[run_id], files, attempt, heart)
        except Paused:
            ray.get(queue.release.remote(run_id, token))  # of a lease that was lost it changes nothing
            return
        except Exception as error:
            ray.get(queue.fail.remote(run_id, token, f"{type(error).__name__}: {error}"))
            raise
    if outcome is not None:
        ray.get(queue.complete.remote(run_id, token, outcome))


class Heartbeat:
    """Tells the queue now and then that the lease is held, also while a score is being measured, and hears whether the
    run is to go on."""

    def __init__(self, queue: Any, run_id: str, token: int, *, active: bool) -> None:
        self._at: tuple[int, int, Mapping[str, float]] = (0, 0, {})
        self._send: Callable[[], Any] = lambda: queue.heartbeat.remote(run_id, token, *self._at)
        self._check: Callable[[str, float], Any] = lambda name, loss: ray.get(
            queue.check.remote(run_id, token, name, loss)
        )
        self._order: Order = "go on"
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True) if active else None

    def beat(self, step: int, num_steps: int, row: Mapping[str, float]) -> None:
        """Note how far training is. The next heartbeat sends it."""
        self._at = (step, num_steps, row)

    def must_pause(self) -> bool:
        """Whether the sweep is being stopped, or the lease is somebody else's: this worker was thought dead."""
        return self._order != "go on"

    def check(self, name: str, utility_loss: float) -> str | None:
        """Why the run is to end at this check; None if it is to go on."""
        reason: str | None = self._check(name, utility_loss)
        return reason

    def __enter__(self) -> Heartbeat:
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        if self._thread:
            self._thread.join()

    def _loop(self) -> None:
        sent = self._send()
        while not self._done.wait(min(1.0, LEASE_SECONDS / 10)):
            if ray.wait([sent], timeout=0)[0]:  # on a network that is down there is no answer
                with suppress(ray.exceptions.RayError):
                    self._order = ray.get(sent)
                sent = self._send()

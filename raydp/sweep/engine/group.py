"""The code that Ray Train's controller of a worker group unpickles.

Every slot has a controller, so the module imports little. The workers alone import torch and the
training code.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import ray
import ray.train
from ray.exceptions import GetTimeoutError
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy

from raydp.system.imports import imported

if TYPE_CHECKING:
    from ray.actor import ActorProxy
    from ray.train._internal.base_worker_group import BaseWorkerGroup

    from raydp.sweep.engine.queue import TrialQueue

JOIN = timedelta(minutes=30)
"""How long workers wait for each other, when they meet and in each exchange; as in Ray Train."""
LEAVE_SECONDS = 30.0
"""How long the end of a worker group waits for its workers to leave their process group."""


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """Config of a worker's loop.

    Attributes:
        slot: number of the worker's slot.
        queue: the sweep's queue.
        max_trials: number of runs after which the worker group is replaced.
    """

    slot: int
    queue: ActorProxy[TrialQueue]
    max_trials: int


class SilentScalingPolicy(FixedScalingPolicy):
    """A fixed number of workers, without Ray Data's autoscaling coordinator.

    Train announces every worker group to the coordinator, so that Ray Data leaves it its CPUs and a
    cluster can grow for it. A sweep has no Ray Data, and a cluster that does not grow has nothing
    to announce. The coordinator would be a further process, and each worker group would wait until
    it has started.
    """

    def _send_resource_request(self) -> None:
        pass

    def _maybe_send_resource_request(self) -> None:
        pass

    def _cancel_resource_request(self) -> None:
        pass


class LazyTorchBackend(Backend):
    """Sets up torch's process group as Ray Train does, but imports torch in the workers only."""

    share_cuda_visible_devices = True

    def on_start(self, worker_group: BaseWorkerGroup, backend_config: BackendConfig) -> None:
        """Let the workers join one process group, which meets on the first worker's node."""
        assert isinstance(backend_config, LazyTorchConfig)
        address, port = worker_group.execute_single(0, meeting_point)
        size = len(worker_group)
        # Start all joins before waiting: a join returns only when every rank has met the others.
        joined: list[Any] = [
            worker_group.execute_single_async(
                rank, _join, rank, size, address, port, backend_config.backend
            )
            for rank in range(size)
        ]
        ray.get(joined)

    def on_shutdown(self, worker_group: BaseWorkerGroup, backend_config: BackendConfig) -> None:
        """Let the workers leave the process group, and wait for them at most `LEAVE_SECONDS`."""
        left: list[Any] = worker_group.execute_async(_leave, len(worker_group))
        # A worker that hangs in a collective operation never leaves, so the wait is limited.
        with suppress(GetTimeoutError):
            ray.get(left, timeout=LEAVE_SECONDS)


@dataclass
class LazyTorchConfig(BackendConfig):
    """Names the backend of torch's process group.

    Attributes:
        backend: "gloo" or "nccl".
    """

    backend: str

    @property
    def backend_cls(self) -> type[Backend]:
        return LazyTorchBackend


def meeting_point() -> tuple[str, int]:
    """Return this node's address, and a port that is free there now."""
    address = ray.util.get_node_ip_address()
    with _listening(address, 0) as free:
        port: int = free.getsockname()[1]
    return address, port


def _listening(address: str, port: int) -> socket.socket:
    """Return a socket that listens at one address alone."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)


def _join(rank: int, size: int, address: str, port: int, backend: str) -> None:
    """Join the process group of a worker group. Runs in a worker."""
    from ray.train.torch import get_device

    context = ray.train.get_context()
    # Libraries in the worker read these variables, as under Ray Train's own backend.
    os.environ |= {
        "MASTER_ADDR": address, "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(context.get_local_rank()), "NODE_RANK": str(context.get_node_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "ACCELERATE_TORCH_DEVICE": str(get_device()),
    }  # fmt: skip
    make_process_group(rank, size, address, port, backend)


def make_process_group(rank: int, size: int, address: str, port: int, backend: str) -> None:
    """Join the others of a process group at an address of the first one.

    The meeting point listens on that address alone, where torch's "env://" would listen on all
    interfaces.
    """
    import torch.distributed

    # All workers are on this machine, but gloo would listen at the address of the machine's name,
    # which other machines may reach.
    if address == "127.0.0.1":
        names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]  # Linux, macOS
        os.environ.setdefault("GLOO_SOCKET_IFNAME", names[0])
    # A socket of our own listens on this one address. `TCPStore` would listen on all interfaces.
    listening = _listening(address, port).detach() if rank == 0 else None
    # `TCPStore` is public, but not exported by name.
    store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
        address,
        port,
        size,
        is_master=rank == 0,
        wait_for_workers=False,
        master_listen_fd=listening,
        timeout=JOIN,
    )
    torch.distributed.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=JOIN
    )


def _leave(size: int) -> None:
    """Leave the process group, and free the GPU's memory. Runs in a worker."""
    import torch.distributed

    if size > 1 and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch.cuda.empty_cache()  # does nothing where no GPU was used


def train_loop(config: dict[str, LoopConfig]) -> None:
    """Do a worker's work with the config under "loop"; see `raydp.sweep.engine.worker.work`."""
    # The first work of this process: what is imported is frozen for the garbage collector.
    imported("raydp.sweep.engine.worker", first=True)
    from raydp.sweep.engine.worker import work

    loop = config["loop"]
    work(loop.queue, loop.slot, loop.max_trials)

"""What Ray Train's controller of a worker group unpickles: light to import, for every slot has a controller. The worker
alone imports what trains."""

from __future__ import annotations

from typing import Any

import ray
from ray.train.v2._internal.execution.callback import ControllerCallback


class Announce(ControllerCallback):
    """Tells the queue who controls a slot; runs in the controller."""

    def __init__(self, queue: Any, slot: int) -> None:
        self._queue, self._slot = queue, slot

    def after_controller_start(self, train_run_context: Any) -> None:
        """Train's controller has started."""
        self._queue.control.remote(self._slot, ray.get_runtime_context().current_actor)


def train_loop(config: dict[str, Any]) -> None:
    """What a worker does; see `raydp.sweep.engine.worker.work`."""
    from raydp.sweep.engine.worker import work

    work(config)

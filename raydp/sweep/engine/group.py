"""What Ray Train's controller of a worker group unpickles.

Every slot has a controller, so the module imports little. The workers alone import the training code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import ray
from ray.train.v2._internal.execution.callback import ControllerCallback

from raydp.io.imports import imported

if TYPE_CHECKING:
    from ray.actor import ActorProxy

    from raydp.sweep.engine.queue import TrialQueue


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


class Announce(ControllerCallback):
    """Tells the queue which actor controls a slot. It runs in the controller."""

    def __init__(self, queue: ActorProxy[TrialQueue], slot: int) -> None:
        self._queue, self._slot = queue, slot

    def after_controller_start(self, train_run_context: object) -> None:
        """Register Train's controller, which has started."""
        self._queue.control.remote(self._slot, ray.get_runtime_context().current_actor)


def train_loop(config: dict[str, LoopConfig]) -> None:
    """Do a worker's work with the config under "loop"; see `raydp.sweep.engine.worker.work`."""
    imported("raydp.sweep.engine.worker", first=True)
    from raydp.sweep.engine.worker import work

    work(config["loop"])

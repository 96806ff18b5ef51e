"""Simulation of a sweep's duration on a cluster: list scheduling of the runs by their costs.

It does not use Ray.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from raydp.plugins.registries import unknown_name
from raydp.spec.sections import ClusterSpec

TRIAL_SECONDS = 0.05
"""Time that a worker adds to a run beside its training and scores.

It is for the lease, the hand-over and saving the model.
"""
DRIVER_SECONDS = 0.1
"""Time of the driver, a single process, per run: commit, record, MLflow.

Measured by benchmarks/many_trials.py on two shared cores. Its reciprocal is the largest number of
runs per second of any sweep, for any number of slots.
"""

KEYS = (
    "nodes",
    "gpus_per_node",
    "cpus_per_node",
    "trial_seconds",
    "driver_seconds",
    "seconds_per_example",
)
COUNTS = ("nodes", "gpus_per_node", "cpus_per_node")
MOST, LEAST = 1e9, 1e-9
"""Bounds of every value. The overheads may also be 0."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The hardware that `--simulate` describes.

    Attributes:
        nodes: number of machines.
        gpus_per_node: GPUs of each machine; by default 1 if workers use GPUs.
        cpus_per_node: CPUs of each machine. By default they are unlimited, or one worker's on a
            sweep without GPUs.
        trial_seconds: time that the orchestration adds to a run on its slot.
        driver_seconds: the driver's time per run, one run after the other; 0 ignores the driver.
        seconds_per_example: training time of one example in one step; None if a measurement or a
            recorded sweep gives the costs.
    """

    nodes: int
    gpus_per_node: int | None = None
    cpus_per_node: int | None = None
    trial_seconds: float = TRIAL_SECONDS
    driver_seconds: float = DRIVER_SECONDS
    seconds_per_example: float | None = None

    @classmethod
    def parse(cls, text: str) -> Hardware:
        """Parse a text such as `nodes=1000,gpus_per_node=8`.

        Raises:
            ValueError: a key is unknown or repeated, a value is not a number above 0 (at least 0
                for the overheads), or nodes is missing.
        """
        given: dict[str, Any] = {}
        for part in text.split(","):
            key, _, value = (piece.strip() for piece in part.partition("="))
            if key not in KEYS:
                raise ValueError(unknown_name("--simulate: the key", key, sorted(KEYS)))
            if key in given:
                raise ValueError(
                    f"--simulate must name {key} once, got {text!r}. Remove the repeated one."
                )
            given[key] = _number(key, value)
        if "nodes" not in given:
            raise ValueError(
                f"--simulate must name nodes, got {text!r}. Write nodes=1000,gpus_per_node=8."
            )
        return cls(**given)

    def num_slots(self, cluster: ClusterSpec) -> int:
        """Return the number of trials side by side: whole workers a node, at most the spec's limit.

        Raises:
            ValueError: no trial fits, or GPUs are given to a sweep that does not use them.
        """
        if not cluster.gpus_per_worker and self.gpus_per_node is not None:
            raise ValueError(
                "--simulate: gpus_per_node must be left out with cluster.gpus_per_worker 0, got "
                f"{self.gpus_per_node}. Give cpus_per_node, or the spec's workers a GPU."
            )
        workers = self._num_workers(cluster)
        # As in `fitting_groups`: if no group of full size fits, one smaller group may.
        fit = workers // cluster.max_workers or int(workers >= cluster.min_workers)
        if fit < 1:
            raise ValueError(
                f"--simulate: nodes must hold a trial's {cluster.min_workers} workers of "
                f"{cluster.gpus_per_worker:g} GPUs and {cluster.cpus_per_worker:g} CPUs, got room "
                f"for {workers}. Give more or larger nodes."
            )
        return min(fit, cluster.max_concurrent_trials or fit)

    def slot_notes(self, cluster: ClusterSpec, runs: int) -> list[str]:
        """Explain why there are no more slots than `num_slots` returns, and what to change."""
        slots = self.num_slots(cluster)
        notes = []
        # Why there are no more slots: the spec's limit, or the size of the nodes.
        if (
            slots == cluster.max_concurrent_trials
            and self._num_workers(cluster) // cluster.max_workers > slots
        ):
            notes.append(
                f"cluster.max_concurrent_trials is {slots}, and the nodes have room for "
                f"{self._num_workers(cluster) // cluster.max_workers} runs at a time. Raise it, or "
                "leave it out."
            )
        elif slots < runs:
            notes.append(
                f"The nodes have room for {self._num_workers(cluster)} workers, and a run takes "
                f"{cluster.max_workers}. Give more or larger nodes for more slots."
            )
        # Defaults that a user may not expect.
        if not cluster.gpus_per_worker and self.cpus_per_node is None:
            notes.append(
                "cpus_per_node is not given: each node counts as room for one worker. Give "
                "cpus_per_node=C."
            )
        if cluster.gpus_per_worker and self.gpus_per_node is None:
            notes.append(
                "gpus_per_node is not given: each node counts as one GPU. Give gpus_per_node=G."
            )
        # Settings with which slots or nodes stay unused.
        if slots > runs:
            notes.append(f"There are {runs} runs, so that {slots - runs} slots stay empty.")
        if cluster.address == "local" and self.nodes > 1:
            notes.append(
                "cluster.address is local: the sweep itself would use one machine. Set it to auto "
                "on the cluster."
            )
        return notes

    def workers_per_trial(self, cluster: ClusterSpec) -> int:
        """Return the number of workers of a trial; if it varies, as many as each slot can have."""
        return min(
            cluster.max_workers,
            max(cluster.min_workers, self._num_workers(cluster) // self.num_slots(cluster)),
        )

    def _num_workers(self, cluster: ClusterSpec) -> int:
        # Without a number, CPUs are no limit for workers with GPUs.
        cpus = (
            math.inf
            if self.cpus_per_node is None and cluster.gpus_per_worker
            else self.cpus_per_node
        )
        cpus = cluster.cpus_per_worker if cpus is None else cpus
        return self.nodes * cluster.workers_on(cpus, self.gpus_per_node or 1)


def makespan(costs: Sequence[float], num_slots: int, *, driver_seconds: float = 0.0) -> float:
    """Return the seconds until all runs are done, if free slots take the runs in their order.

    Args:
        costs: seconds of each run on its slot.
        num_slots: number of slots side by side.
        driver_seconds: the driver's time per result. The driver takes in one result after the
            other, and hands out one run for each. Twice as many runs as slots are handed out at a
            time.

    Guarantee:
        Without driver_seconds, the makespan is at most (2 - 1/m) times the best order's (Graham
        1966). In descending order it is at most (4/3 - 1/(3m)) times the best order's (Graham
        1969).
    """
    # List scheduling (Graham 1966): a heap of the times at which the slots become free.
    running = list(costs[:num_slots])
    heapq.heapify(running)
    # When the driver has handed out each waiting run. The first ones are there at the start.
    driver, handed_out = 0.0, deque([0.0] * min(num_slots, len(costs)))
    # The slot that is free first takes the next run, once the driver has handed it out.
    for cost in costs[num_slots:]:
        free = running[0]
        heapq.heapreplace(running, max(free, handed_out.popleft()) + cost)
        driver = max(driver, free) + driver_seconds
        handed_out.append(driver)
    # The driver takes in the last results one after another.
    while running:
        driver = max(driver, heapq.heappop(running)) + driver_seconds
    return driver


def lower_bound(costs: Sequence[float], num_slots: int) -> float:
    """Return a lower bound on the makespan of any order: max(total / slots, longest)."""
    return max(math.fsum(costs) / num_slots, max(costs, default=0.0))


def simulate(
    costs: Sequence[float],
    num_slots: int,
    hardware: Hardware,
    *,
    orders: Mapping[str, Sequence[int]],
) -> dict[str, object]:
    """Return makespan, utilisation and the lower bound of a sweep.

    Args:
        costs: training and scoring seconds of each run.
        num_slots: number of slots side by side.
        hardware: the overheads.
        orders: name -> positions of the runs, in the order in which they are handed out.

    Returns:
        "runs", "slots", "total_seconds", "longest_seconds", "lower_bound_seconds",
        "driver_bound_seconds" (all runs one after the other in the driver), "orders", and the
        hardware. "orders" is name -> "makespan_seconds": time from the first start until the driver
        has the last result; "utilisation": share of the slots' time until then that is used by
        runs; "ratio": makespan over the lower bound.
    """
    # The orchestration's time occupies the slot too.
    on_slot = [cost + hardware.trial_seconds for cost in costs]
    bound, total = lower_bound(on_slot, num_slots), math.fsum(on_slot)
    schedules = {}
    for name, positions in orders.items():
        seconds = makespan(
            [on_slot[k] for k in positions], num_slots, driver_seconds=hardware.driver_seconds
        )
        schedules[name] = {
            "makespan_seconds": seconds,
            "utilisation": total / (num_slots * seconds),
            "ratio": seconds / bound,
        }
    return {
        "runs": len(on_slot),
        "slots": num_slots,
        "total_seconds": total,
        "longest_seconds": max(on_slot, default=0.0),
        "lower_bound_seconds": bound,
        "driver_bound_seconds": hardware.driver_seconds * len(on_slot),
        "slots_that_fill_the_driver": _slots_that_fill(on_slot, hardware.driver_seconds),
        "orders": schedules,
        **asdict(hardware),
    }


def _slots_that_fill(costs: Sequence[float], driver_seconds: float) -> int | None:
    """Return the number of slots from which on runs end faster than the driver takes them in."""
    return (
        math.ceil(math.fsum(costs) / len(costs) / driver_seconds)
        if costs and driver_seconds
        else None
    )


def _number(key: str, value: str) -> float | int:
    try:
        number: float | int = int(value) if key in COUNTS else float(value)
    except ValueError:
        # Not a number: refused below like a value out of range.
        number = -1
    least_is_open = key in COUNTS or key == "seconds_per_example"
    if not (LEAST <= number <= MOST or (number == 0 and not least_is_open)):
        kind = (
            "a whole number above 0"
            if key in COUNTS
            else "above 0"
            if least_is_open
            else "0 or above"
        )
        kind += f" and at most {MOST:.0e}"
        raise ValueError(
            f"--simulate: {key} must be {kind}, got {value!r}. Write nodes=1000,gpus_per_node=8."
        )
    return number

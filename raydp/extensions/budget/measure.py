"""Measurement of a few real private steps on this machine, to estimate the cost of a sweep.

No model is kept, and no sweep's key is used: the noise is drawn from the test key.
"""

from __future__ import annotations

import math
import resource
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from raydp.extensions.budget.costs import MeasuredSteps, StepLaw
from raydp.models import base_models as models
from raydp.spec.document import SweepSpec
from raydp.sweep.engine.stopping import evaluations_between
from raydp.sweep.engine.trial import TrialRunner, runs_on
from raydp.sweep.store.transfer import SharedFolder
from raydp.system.output import stderr
from raydp.tasks.task import Task
from raydp.training.comm import LocalComm
from raydp.training.noise.stream import TEST_KEY
from raydp.training.trial_plan import TrialPlan

LIMIT_SECONDS = 60.0
"""No further step of a batch size is timed after this time, if one step is timed."""


class _Timed(Exception):  # noqa: N818 - nothing is wrong
    """Enough steps are timed."""


class _TooLong(BaseException):
    """A time has passed. Code that expects errors must not catch it."""


class _Timer:
    """Controls a run: shows its steps, times them, and ends the run when enough are timed.

    This is a `TrialControl`.

    The first step is not timed, because it also finds the size of a micro-batch.

    Args:
        wanted: number of steps to time.
        limit_seconds: time after which fewer steps are enough.
        show: is told which step runs.
    """

    def __init__(self, wanted: int, limit_seconds: float, show: Callable[[str], object]) -> None:
        self._wanted, self._limit, self._show = wanted, limit_seconds, show
        self._ends: list[float] = []
        self._drawn: list[float] = []
        self._began = time.perf_counter()
        show("a first step, which is not timed")

    def beat(self, step: int, num_steps: int, row: Mapping[str, float]) -> None:
        """Note that a step has ended.

        Raises:
            _Timed: it was the last one to time.
        """
        # A GPU computes asynchronously: without waiting, only its launches would be timed.
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._ends.append(time.perf_counter())
        self._drawn.append(row["drawn"])
        timed = len(self.seconds)
        if timed >= self._wanted or (timed and self._ends[-1] - self._began > self._limit):
            raise _Timed
        self._show(f"step {timed + 1} of {self._wanted}")

    def must_pause(self) -> bool:
        return False

    def check(self, name: str, utility_loss: float) -> str | None:
        return None

    @property
    def seconds(self) -> list[float]:
        """The time of each step."""
        return [after - before for before, after in zip(self._ends, self._ends[1:], strict=False)]

    @property
    def examples(self) -> list[float]:
        """The number of examples that each of these steps drew."""
        return self._drawn[1:]


def measure_cost(
    spec: SweepSpec,
    task: Task,
    trials: Sequence[TrialPlan],
    *,
    num_steps: int,
    limit_seconds: float = LIMIT_SECONDS,
    all_limit_seconds: float = math.inf,
    score_limit_seconds: float = math.inf,
) -> MeasuredSteps:
    """Time steps of three batch sizes, and one scoring of the base model.

    The batch sizes are the smallest, a middle and the largest one of the plan.

    If the space varies further fields, the steps have the values of the plan's first run.

    Args:
        spec: the sweep.
        task: its task.
        trials: the runs of the sweep's plan.
        num_steps: number of steps to time at each batch size. A slower first step runs before them
            and is not timed.
        limit_seconds: after this time at a batch size, fewer steps are timed, but at least one.
        all_limit_seconds: after this time no further batch size is timed.
        score_limit_seconds: scores are broken off after this time, which then stands for theirs.

    Raises:
        ValueError: the workers' device is not available here, the model is sharded, num_steps is
            below 1, or the method's cost is not the cost of its steps.
    """
    # The frozen prefix pays for all runs of the plan, so it is told of all of them.
    whole, planned = spec, trials
    spec, trials = _of_one_kind(spec, trials)
    device = _device(spec, num_steps)
    torch.set_num_threads(max(1, int(spec.cluster.cpus_per_worker)))
    runner = _prepared(spec, task, device, runs_on(spec.model, whole, planned))
    # Time the steps alone.
    steps_alone = spec.model_copy(update={"stopping": None, "evaluate_every": None, "scores": ()})
    runner.turn_to(steps_alone)
    timed = partial(_timed, runner, num_steps=num_steps, limit_seconds=limit_seconds)
    steps, began = list[dict[str, float]](), time.monotonic()
    with TemporaryDirectory(prefix="raydp-") as scratch:
        for trial in _chosen(trials):
            if not steps or time.monotonic() - began <= all_limit_seconds:
                steps.append(timed(trial, Path(scratch)))
    # Time one utility, if runs measure it between their steps, and one scoring.
    between = any(evaluations_between(spec, trial.num_steps) for trial in trials)
    utility_seconds = _measuring_seconds(runner, spec, "utility") if between else 0.0
    runner.turn_to(spec)
    score_seconds = score_limit_seconds
    with suppress(TimeoutError), _at_most(score_limit_seconds):
        score_seconds = _measuring_seconds(runner, spec, "scores")
    return MeasuredSteps(
        law=StepLaw.fit([s["examples"] for s in steps], [s["seconds"] for s in steps]),
        score_seconds=score_seconds,
        utility_seconds=utility_seconds,
        memory_bytes=_peak_bytes(device),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        steps=tuple(steps),
    )


def _prepared(
    spec: SweepSpec, task: Task, device: torch.device, planned: Sequence[TrialPlan]
) -> TrialRunner:
    """Prepare the model as a worker does."""
    with stderr.status("preparing the model") as status:
        base = models.load_base(spec.model, new_tokens=task.facts().num_new_tokens)
        return TrialRunner(
            spec, task, base, LocalComm(device), TEST_KEY, planned=planned,
            prepare=lambda work: status.update(f"preparing the model: the worker {work}"),
        )  # fmt: skip


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """End the block after a time, by an alarm, which the main thread alone can set.

    Raises:
        TimeoutError: the time has passed.
    """
    if math.isinf(seconds) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _TooLong:
        raise TimeoutError from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _measuring_seconds(runner: TrialRunner, spec: SweepSpec, what: str) -> float:
    """Return the seconds in which the runner measures the untrained model."""
    with stderr.status(f"timing the {what} of one model"):
        started = time.perf_counter()
        runner.measure_base(spec.seed_labels[0])
        return time.perf_counter() - started


def _timed(
    runner: TrialRunner, trial: TrialPlan, scratch: Path, *, num_steps: int, limit_seconds: float
) -> dict[str, float]:
    """Begin a run, and return its mean step; see `MeasuredSteps.steps`."""
    # The run never gets to the last of these steps, so its model is never scored.
    short = replace(trial, run_id=f"measured-{trial.batch_size}", num_steps=num_steps + 2)
    text = f"timing steps of b = {trial.batch_size}"
    with stderr.status(text) as status:
        timer = _Timer(num_steps, limit_seconds, lambda at: status.update(f"{text}: {at}"))
        files = SharedFolder(folder=scratch / short.run_id, run_id=short.run_id)
        with suppress(_Timed):
            runner.run(short, files, "attempt-1", timer)
    return {
        "batch_size": trial.batch_size,
        "num_steps": len(timer.seconds),
        "examples": statistics.mean(timer.examples),
        "seconds": statistics.mean(timer.seconds),
    }


def _device(spec: SweepSpec, num_steps: int) -> torch.device:
    if num_steps < 1:
        raise ValueError(f"--steps must be at least 1, got {num_steps}. Leave it out for 3.")
    if not spec.method.params.costs_its_steps:
        raise ValueError(
            "method.name must be one whose cost is that of its steps with --measure, got "
            f"{spec.method.name!r}. Run one configuration instead; --simulate takes the cost that "
            "it records."
        )
    if spec.cluster.sharding != "none":
        raise ValueError(
            f"cluster.sharding must be none with --measure, got {spec.cluster.sharding!r}: one "
            "process is measured. Run a short sweep instead; --simulate takes the costs that it "
            "records."
        )
    if not spec.cluster.gpus_per_worker:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError(
            f"cluster.gpus_per_worker must be 0 where there is no GPU to measure on, got "
            f"{spec.cluster.gpus_per_worker:g}. Run --measure on a node of the cluster."
        )
    return torch.device("cuda", 0)


def _of_one_kind(spec: SweepSpec, trials: Sequence[TrialPlan]) -> tuple[SweepSpec, list[TrialPlan]]:
    """Return the runs with the further fields of the first run, and their spec.

    The model of the first run takes most of the compute.
    """
    settings = trials[0].settings
    return spec.of_run(settings), [trial for trial in trials if trial.settings == settings]


def _chosen(trials: Sequence[TrialPlan]) -> list[TrialPlan]:
    """Return a run of the smallest, a middle and the largest batch, at the smallest rate each."""
    by_size: dict[int, TrialPlan] = {}
    # The last run of a size is kept, which has the smallest learning rate.
    for trial in sorted(trials, key=lambda t: t.learning_rate, reverse=True):
        by_size[trial.batch_size] = trial
    sizes = sorted(by_size)
    return [by_size[size] for size in dict.fromkeys([sizes[0], sizes[len(sizes) // 2], sizes[-1]])]


def _peak_bytes(device: torch.device) -> int:
    """Return the peak memory in bytes: of the device, or of this process on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # `ru_maxrss` is in bytes on macOS and in KiB on Linux.
    return peak if sys.platform == "darwin" else peak * 1024

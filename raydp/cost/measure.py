"""Measurement of a few real private steps on this machine, to estimate the cost of a sweep.

No model is kept, and no sweep's key is used: the noise is drawn from the test key.
"""

from __future__ import annotations

import gc
import resource
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from raydp.cost.costs import MeasuredSteps, StepLaw
from raydp.models import base_models as models
from raydp.spec.document import SweepSpec
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.store.transfer import SharedFolder
from raydp.tasks.base import Task
from raydp.training.comm import LocalComm
from raydp.training.noise.stream import TEST_KEY
from raydp.training.trial_plan import TrialPlan


class _Times:
    """Record the time at which each step ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def beat(self, step: int, num_steps: int, row: Mapping[str, float]) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

    def must_pause(self) -> bool:
        return False

    def check(self, name: str, utility_loss: float) -> str | None:
        return None


def measure_cost(spec: SweepSpec, task: Task, trials: Sequence[TrialPlan], *, num_steps: int) -> MeasuredSteps:
    """Run steps of the smallest, a middle and the largest batch size, and score the base model once.

    If the space varies further fields, the steps have the values of the plan's first run.

    Args:
        spec: the sweep.
        task: its task.
        trials: the runs of the sweep's plan.
        num_steps: number of steps to time at each batch size. A slower first step runs before them and is not timed.

    Raises:
        ValueError: the workers' device is not available here, the model is sharded, num_steps is below 1, or the
            method's cost is not the cost of its steps.
    """
    spec, trials = _of_one_kind(spec, trials)
    device = _device(spec, num_steps)
    torch.set_num_threads(max(1, int(spec.cluster.cpus_per_worker)))
    # Time the steps.
    steps, new_tokens = [], task.facts().num_new_tokens
    # Without scores, the trial measures only its utility. The scores are timed once, below.
    quick = spec.model_copy(update={"stopping": None, "scores": ()})
    runner = TrialRunner(quick, task, models.load_base(spec.model, new_tokens=new_tokens), LocalComm(device), TEST_KEY)
    with TemporaryDirectory(prefix="raydp-") as scratch:
        for trial in _chosen(trials):
            short = replace(trial, run_id=f"measured-{trial.batch_size}", num_steps=num_steps + 1)
            times = _Times()
            files = SharedFolder(folder=Path(scratch) / short.run_id, run_id=short.run_id)
            outcome = runner.run(short, files, "attempt-1", times)
            seconds = [after - before for before, after in zip(times.ends, times.ends[1:], strict=False)]
            assert outcome is not None, "there is one rank"
            drawn = [row["drawn"] for row in (outcome.history or ())[1:]]
            steps.append(
                {
                    "batch_size": trial.batch_size,
                    "num_steps": num_steps,
                    "examples": statistics.mean(drawn),
                    "seconds": statistics.mean(seconds),
                }
            )
    # Time one scoring.
    del runner
    gc.collect()
    runner = TrialRunner(spec, task, models.load_base(spec.model, new_tokens=new_tokens), LocalComm(device), TEST_KEY)
    started = time.perf_counter()
    runner.measure_base(spec.seed_labels[0])
    score_seconds = time.perf_counter() - started
    return MeasuredSteps(
        law=StepLaw.fit([s["examples"] for s in steps], [s["seconds"] for s in steps]),
        score_seconds=score_seconds,
        memory_bytes=_peak_bytes(device),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        steps=tuple(steps),
    )


def _device(spec: SweepSpec, num_steps: int) -> torch.device:
    if num_steps < 1:
        raise ValueError(f"--steps must be at least 1, got {num_steps}. Leave it out for 3.")
    if not spec.method.params.costs_its_steps:
        raise ValueError(
            f"method.name must be one whose cost is that of its steps with --measure, got {spec.method.name!r}. Run "
            "one configuration instead; --simulate takes the cost that it records."
        )
    if spec.cluster.sharding != "none":
        raise ValueError(
            f"cluster.sharding must be none with --measure, got {spec.cluster.sharding!r}: one process is measured. "
            "Run a short sweep instead; --simulate takes the costs that it records."
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
    """Return the runs with the further fields of the first one, whose model takes most of the compute, and their
    spec."""
    settings = trials[0].settings
    return spec.of_run(settings), [trial for trial in trials if trial.settings == settings]


def _chosen(trials: Sequence[TrialPlan]) -> list[TrialPlan]:
    """Return a run of the smallest, a middle and the largest batch size, each with the smallest learning rate."""
    by_size: dict[int, TrialPlan] = {}
    for trial in sorted(trials, key=lambda t: t.learning_rate, reverse=True):
        by_size[trial.batch_size] = trial
    sizes = sorted(by_size)
    return [by_size[size] for size in dict.fromkeys([sizes[0], sizes[len(sizes) // 2], sizes[-1]])]


def _peak_bytes(device: torch.device) -> int:
    """Return the peak memory in bytes: of the device, or of this process on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

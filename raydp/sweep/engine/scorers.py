"""The Ray actors that measure models, and the driver's loop that hands them work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch

from raydp.models import sharing
from raydp.models.sets import TrainedModels
from raydp.plugins.described import Plugin
from raydp.scores.base import Context
from raydp.spec.sections import ClusterSpec
from raydp.sweep.engine.slots import beside_driver, fitting_workers
from raydp.tasks.base import Task

Commit = Callable[[str, str, dict[str, Any]], None]
"""(label, model, result)"""

Report = Callable[[dict[str, tuple[int, int]]], None]
"""label -> (models that its score has gone through, of how many), of scores that know no value before they saw all"""

REPORT_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """Models that one actor measures in one call of `Score.measure_many`.

    Attributes:
        names: all of them; `done` are there already.
        work: the score's own folder (Context.folder).
    """

    label: str
    plugin: Plugin
    names: tuple[str, ...]
    seed: int
    work: Path
    done: frozenset[str] = field(default=frozenset())
    attempts: int = 0

    @property
    def left(self) -> list[str]:
        return [name for name in self.names if name not in self.done]


@dataclass(frozen=True, kw_only=True)
class ScorerInputs:
    """What every actor needs, in the object store once; all processes of a node map the same arrays."""

    task: Task
    model: sharing.SharedModel
    folders: dict[str, Path | None]
    cpus: float


class Reports:
    """An actor that keeps how far scores have come. A scorer that is busy cannot be asked."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}

    def tell(self, label: str, done: int, total: int) -> None:
        self._seen[label] = (done, total)

    def seen(self) -> dict[str, tuple[int, int]]:
        return self._seen


class Scorer:
    """An actor that holds the base model and measures one job after another."""

    def __init__(self, shared: list[Any], reports: Any) -> None:
        self._reports = reports
        given: ScorerInputs = ray.get(shared[0])
        torch.set_num_threads(max(1, int(given.cpus)))
        device = "cuda" if ray.get_gpu_ids() and torch.cuda.is_available() else "cpu"
        self._task = given.task
        self._base = sharing.assemble(given.model)
        self._folders = given.folders
        self._device = device
        self._models: TrainedModels | None = None

    def measure(self, job: Job) -> Iterator[tuple[str, dict[str, Any]]]:
        """(model, result) as soon as each is known. A score that fails is started again for those that are left, unless
        it got no further; then these have failed with its reason."""
        while job.left:
            known = job.done
            try:
                models, score = self._of(job.names), job.plugin.params
                context = Context(folder=job.work, done=job.done, progress=partial(self._tell, job.label))
                for name, measurement in score.measure_many(models, self._task, seed=job.seed, context=context):
                    job = replace(job, done=job.done | {name})
                    yield name, {"status": "finished", "measurement": measurement.document()}
                reason = "the score gave no value"
            except Exception as error:  # noqa: BLE001 - recorded as the model's failure, and the rest go on
                reason = f"{type(error).__name__}: {error}"
            if job.done == known:
                for name in job.left:
                    yield name, {"status": "failed", "reason": reason}
                return

    def _tell(self, label: str, done: int, total: int) -> None:
        if total > 1:  # of a single model its value tells
            self._reports.tell.remote(label, done, total)

    def _of(self, names: tuple[str, ...]) -> TrainedModels:
        if self._models is None:
            self._models = TrainedModels(self._base, self._folders, device=self._device)
        return self._models.only(names)


def run_jobs(
    jobs: list[Job], shared: ScorerInputs, cluster: ClusterSpec, commit: Commit, report: Report, *, workers: int | None
) -> None:
    """Measure every job's models on as many actors as fit; results are committed here, one by one.

    An actor that dies is replaced, and its job goes on without what is committed; after `max_retries` such deaths what
    is left of the job has failed.
    """
    number = min(_fitting(cluster), len(jobs), workers or len(jobs))
    reports = beside_driver(Reports).remote()
    given = ([ray.put(shared)], reports)
    waiting = deque(jobs)
    idle = [_start(cluster, given) for _ in range(number)]
    running: list[tuple[Any, Any, Job]] = []
    while waiting or running:
        while idle and waiting:
            actor, job = idle.pop(), waiting.popleft()
            stream = actor.measure.options(num_returns="streaming").remote(job)
            running.append((stream, actor, job))
        ready, _ = ray.wait([stream for stream, _, _ in running], num_returns=1, timeout=REPORT_SECONDS)
        if not ready:
            report(ray.get(reports.seen.remote()))
            continue
        position = next(i for i, (stream, _, _) in enumerate(running) if stream is ready[0])
        stream, actor, job = running.pop(position)
        try:
            name, result = ray.get(next(stream))
        except StopIteration:
            idle.append(actor)
        except ray.exceptions.RayActorError:
            idle.append(_start(cluster, given))
            again = replace(job, attempts=job.attempts + 1)
            if again.attempts <= cluster.max_retries:
                waiting.appendleft(again)
            else:
                for name in again.left:
                    commit(job.label, name, {"status": "failed", "reason": "the process that measured it died"})
        else:
            commit(job.label, name, result)
            running.append((stream, actor, replace(job, done=job.done | {name})))


def _start(cluster: ClusterSpec, given: tuple[list[Any], Any]) -> Any:
    scorer = ray.remote(Scorer).options(num_cpus=cluster.cpus_per_worker, num_gpus=cluster.gpus_per_worker)
    return scorer.remote(*given)


def _fitting(cluster: ClusterSpec) -> int:
    """How many actors the cluster holds at once, one process a model whatever the workers of a trial.

    Raises:
        ValueError: not even one fits.
    """
    total, fit = ray.cluster_resources(), fitting_workers(cluster)
    if fit < 1:
        raise ValueError(
            f"cluster must have {cluster.cpus_per_worker:g} CPUs and {cluster.gpus_per_worker:g} GPUs for a worker, "
            f"got {total.get('CPU', 0):g} CPUs and {total.get('GPU', 0):g} GPUs in all. Ask for less in the spec."
        )
    return min(fit, cluster.max_concurrent_trials or fit)

"""The Ray actors that measure models, and the driver's loop that hands them work."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import torch

from raydp.extensions.later_scores.sets import TrainedModels, adapter_kind
from raydp.models import sharing
from raydp.plugins.described import Plugin
from raydp.scores.score import Context
from raydp.spec.sections.cluster import ClusterSpec
from raydp.spec.sections.model import ModelSpec
from raydp.sweep.engine.ray_start import DEATHS
from raydp.sweep.engine.slots import beside_driver, fitting_workers
from raydp.tasks.task import Task
from raydp.tasks.wrappers.twins import for_seed

if TYPE_CHECKING:
    from ray import ObjectRef, ObjectRefGenerator
    from ray.actor import ActorProxy

Commit = Callable[[str, str, dict[str, object]], None]
"""Takes (label, model, result)."""

Report = Callable[[dict[str, tuple[int, int]]], None]
"""Takes label -> (models that the score has seen, models in all).

It is for scores that need all models for a value.
"""

REPORT_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """Models that one actor measures in one call of `Score.measure_many`.

    Attributes:
        names: all models of the job.
        seed: seed of the draws.
        of_seed: the task is as the runs of this seed see it.
        done: the models that have a result.
        work: the score's own folder (Context.folder).
        attempts: how often the actor of this job has died.
    """

    label: str
    plugin: Plugin
    names: tuple[str, ...]
    seed: int
    of_seed: int
    work: Path
    done: frozenset[str] = field(default=frozenset())
    attempts: int = 0

    @property
    def left(self) -> list[str]:
        """Return the models without a result."""
        return [name for name in self.names if name not in self.done]


@dataclass(frozen=True, kw_only=True)
class ScorerInputs:
    """The objects that every actor needs.

    They are in the object store once, and all processes of a node map the same arrays.

    Attributes:
        task: the task.
        models: the base model by the type of its weights.
        folders: model -> its folder, None for the base model.
        bases: model -> the section on the model that it was trained on.
        cpus: CPUs of an actor.
    """

    task: Task
    models: Mapping[str, sharing.SharedModel]
    folders: dict[str, Path | None]
    bases: Mapping[str, ModelSpec]
    cpus: float


class Reports:
    """An actor that keeps the progress of the scores, because a busy scorer does not answer."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], int] = {}

    @ray.method
    def tell(self, label: str, of_seed: int, done: int) -> None:
        self._seen[label, of_seed] = done

    @ray.method
    def seen(self) -> dict[str, int]:
        """Return label -> number of models that the jobs of the score have seen."""
        seen: Counter[str] = Counter()
        for (label, _), done in self._seen.items():
            seen[label] += done
        return dict(seen)


class Scorer:
    """An actor that holds the base model and measures one job after another."""

    def __init__(self, shared: list[ObjectRef[ScorerInputs]], reports: ActorProxy[Reports]) -> None:
        self._reports = reports
        given = ray.get(shared[0])
        # torch would take a thread for each CPU of the machine, in every actor.
        torch.set_num_threads(max(1, int(given.cpus)))
        device = "cuda" if ray.get_gpu_ids() and torch.cuda.is_available() else "cpu"
        self._task = given.task
        self._given = given
        self._device = device
        self._models: TrainedModels | None = None
        self._setting: tuple[str, str | None, str | None] | None = None

    def measure(self, job: Job) -> Iterator[tuple[str, dict[str, object]]]:
        """Yield (model, result) as soon as a result is known.

        A score that fails is started again for the models that are left. If it fails without
        another result, these models have failed with its reason.
        """
        task = for_seed(self._task, job.of_seed)
        while job.left:
            known = job.done
            try:
                models, score = self._of(job.names), job.plugin.params
                context = Context(folder=job.work, done=job.done, progress=partial(self._tell, job))
                for name, measurement in score.measure_many(
                    models, task, seed=job.seed, context=context
                ):
                    job = replace(job, done=job.done | {name})
                    yield name, {"status": "finished", "measurement": measurement.document()}
                reason = "the score gave no value"
            except Exception as error:  # noqa: BLE001 - recorded as the model's failure, and the rest go on
                reason = f"{type(error).__name__}: {error}"
            # Without a new result, starting the score again would fail in the same way for ever.
            if job.done == known:
                for name in job.left:
                    yield name, {"status": "failed", "reason": reason}
                return

    def _tell(self, job: Job, done: int, total: int) -> None:
        if len(job.names) > 1:  # the value of a single model shows its progress
            self._reports.tell.remote(job.label, job.of_seed, done)

    def _of(self, names: tuple[str, ...]) -> TrainedModels:
        """Return the models of a job, anew if their base or their kind of adapter is another."""
        given = self._given
        # Precision and quantisation change a model's outputs, so the job must have one of each.
        bases = {(given.bases[name].weight_dtype, given.bases[name].quantization) for name in names}
        if len(bases) > 1:
            raise ValueError(
                "the score compares models of one base, and model.dtype or model.quantization "
                "varies in this sweep"
            )
        ((dtype, quantization),) = bases
        folders = {name: given.folders[name] for name in names}
        # The untrained base model has no adapter, and is measured with that of any model.
        known = [
            folder for folder in (*folders.values(), *given.folders.values()) if folder is not None
        ]
        setting = dtype, quantization, adapter_kind(known[0]) if known else None
        # Setting up a base model takes seconds, so jobs of one setting share it.
        if self._models is None or self._setting != setting:
            whole = replace(sharing.assemble(given.models[dtype]), quantization=quantization)
            first = {"first": known[0]} if known else {}
            self._models, self._setting = (
                TrainedModels(whole, {**folders, **first}, device=self._device),
                setting,
            )
        return self._models.of(folders)


def run_jobs(
    jobs: list[Job],
    shared: ScorerInputs,
    cluster: ClusterSpec,
    commit: Commit,
    report: Report,
    *,
    workers: int | None,
) -> None:
    """Measure every job's models on as many actors as fit, and commit the results one by one.

    A job whose actor dies goes on in a new actor, `max_retries` times. Then its rest has failed.
    """
    number = min(_fitting(cluster), len(jobs), workers or len(jobs))
    reports: ActorProxy[Reports] = beside_driver(Reports).remote()
    inputs = ray.put(shared)
    totals = Counter(job.label for job in jobs for _ in job.left)
    waiting = deque(jobs)
    idle = [_start(cluster, inputs, reports) for _ in range(number)]
    running: list[tuple[ObjectRefGenerator, Any, Job]] = []
    while waiting or running:
        # Hand jobs to idle actors. Each streams its results, so that a crash loses one at most.
        while idle and waiting:
            actor, job = idle.pop(), waiting.popleft()
            stream = actor.measure.options(num_returns="streaming").remote(job)
            running.append((stream, actor, job))
        ready, _ = ray.wait(
            [stream for stream, _, _ in running], num_returns=1, timeout=REPORT_SECONDS
        )
        # Scores that need all models for a value are silent for long: show how far they are.
        if not ready:
            report(
                {
                    label: (done, totals[label])
                    for label, done in ray.get(reports.seen.remote()).items()
                }
            )
            continue
        position = next(i for i, (stream, _, _) in enumerate(running) if stream is ready[0])
        stream, actor, job = running.pop(position)
        try:
            name, result = ray.get(next(stream))
        except StopIteration:
            idle.append(actor)
        except DEATHS:
            # The actor died, perhaps because of the job: try again, but not for ever.
            idle.append(_start(cluster, inputs, reports))
            again = replace(job, attempts=job.attempts + 1)
            if again.attempts <= cluster.max_retries:
                waiting.appendleft(again)
            else:
                for name in again.left:
                    commit(
                        job.label,
                        name,
                        {"status": "failed", "reason": "the process that measured it died"},
                    )
        else:
            commit(job.label, name, result)
            running.append((stream, actor, replace(job, done=job.done | {name})))


def _start(
    cluster: ClusterSpec, inputs: ObjectRef[ScorerInputs], reports: ActorProxy[Reports]
) -> Any:
    """Start an actor of `Scorer`, untyped: Ray has no types for methods that yield results."""
    scorer = ray.remote(Scorer).options(
        num_cpus=cluster.cpus_per_worker, num_gpus=cluster.gpus_per_worker
    )
    return scorer.remote([inputs], reports)


def _fitting(cluster: ClusterSpec) -> int:
    """Return how many actors the cluster holds at once.

    One process measures a model, even if several train it.

    Raises:
        ValueError: not even one actor fits.
    """
    total, fit = ray.cluster_resources(), fitting_workers(cluster)
    if fit < 1:
        raise ValueError(
            f"cluster must have {cluster.cpus_per_worker:g} CPUs and {cluster.gpus_per_worker:g} "
            f"GPUs for a worker, got {total.get('CPU', 0):g} CPUs and {total.get('GPU', 0):g} GPUs "
            "in all. Ask for less in the spec."
        )
    return min(fit, cluster.max_concurrent_trials or fit)

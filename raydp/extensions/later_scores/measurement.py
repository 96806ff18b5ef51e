"""A measurement of a sweep's models by one score.

Several processes measure, each result is committed, and the values go to MLflow.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from functools import partial

from rich.console import Console

from raydp import tracking
from raydp.extensions.later_scores.measurements import WrittenMeasurements
from raydp.extensions.later_scores.models import FETCHED, model_folders
from raydp.extensions.later_scores.progress import MeasurementProgress
from raydp.extensions.later_scores.requests import ScoreRequest
from raydp.extensions.later_scores.scorers import Job, ScorerInputs, run_jobs
from raydp.models import sharing
from raydp.scores.score import OneByOne
from raydp.search_spaces.settings import NO_SETTINGS
from raydp.spec.document import SweepSpec
from raydp.sweep.engine.ray_start import ray_phase, start_ray, stop_ray
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.system.output import phase
from raydp.tasks.task import Task
from raydp.tasks.wrappers.twins import TwinTask


@dataclass(frozen=True, kw_only=True)
class BegunMeasurement:
    """A measurement that this call begins or resumes: its models, and where results go.

    Attributes:
        request: the score.
        measurements: where the results go.
        seeds: model -> seed of its draws.
        runs: model -> seed of its run; the base model has the first seed.
    """

    request: ScoreRequest
    measurements: WrittenMeasurements
    seeds: dict[str, int]
    runs: dict[str, int]

    @classmethod
    def of(
        cls,
        folder: SweepFolder,
        spec: SweepSpec,
        request: ScoreRequest,
        runs: dict[str, int],
        seed: int | None,
    ) -> BegunMeasurement:
        score = request.plugin.params
        names = list(runs) if score.of_a_set else [BASE_RUN, *runs]
        # Models that are measured together share one seed; otherwise each has the seed of its run.
        same_for_all = (
            seed
            if seed is not None
            else None
            if measures_one_by_one(score)
            else spec.seed_labels[0]
        )
        of_runs = {name: runs.get(name, spec.seed_labels[0]) for name in names}
        seeds = of_runs if same_for_all is None else dict.fromkeys(names, same_for_all)
        models = names if score.of_a_set else None
        measurements = WrittenMeasurements.begin(folder, request, seed=same_for_all, models=models)
        return cls(request=request, measurements=measurements, seeds=seeds, runs=of_runs)

    @property
    def label(self) -> str:
        return self.request.label

    def trained(self) -> dict[str, int]:
        """Return the trained models, with the seeds of their runs."""
        return {name: seed for name, seed in self.runs.items() if name != BASE_RUN}

    def finished(self) -> list[str]:
        return [name for name in self.seeds if self.measurements.finished(name) is not None]

    def jobs(self, task: Task) -> list[Job]:
        """Return one job for each model if models are measured one by one, else for each task.

        If the task depends on the seed of a run, the runs of each seed have a task of their own.
        Models that are compared with each other are measured together nevertheless; such scores
        read neither secrets nor twins.
        """
        done = frozenset(self.finished())
        left = [name for name in self.seeds if name not in done]
        work, score = (self.measurements.path / "work").resolve(), self.request.plugin.params
        job = partial(Job, label=self.label, plugin=self.request.plugin)
        # One by one: any process may take any model.
        if measures_one_by_one(score):
            return [
                job(names=(n,), seed=self.seeds[n], of_seed=self.runs[n], work=work) for n in left
            ]
        # Together: with twins, the seed of a run decides which twins the run has seen, so each
        # seed has its own task.
        if not isinstance(task, TwinTask) or score.of_a_set:
            groups = {self.runs[next(iter(self.seeds))]: tuple(self.seeds)}
        else:
            groups = {
                seed: tuple(n for n in self.seeds if self.runs[n] == seed)
                for seed in self.runs.values()
            }
        # A job also names the models that are done, because a value may depend on all of them.
        return [
            job(
                names=names,
                seed=self.seeds[names[0]],
                of_seed=seed,
                done=done.intersection(names),
                work=work / f"seed-{seed}" if len(groups) > 1 else work,
            )
            for seed, names in groups.items()
            if not done.issuperset(names)
        ]


def measures_one_by_one(score: object) -> bool:
    """Return whether a score measures models separately, so that processes can share them."""
    return isinstance(score, OneByOne) and type(score).measure_many is OneByOne.measure_many


def measure(
    folder: SweepFolder,
    spec: SweepSpec,
    task: Task,
    runs: dict[str, int],
    begun: list[BegunMeasurement],
    workers: int | None,
    console: Console,
) -> bool:
    """Measure what is left. Return False if it was interrupted."""
    jobs = [job for b in begun for job in b.jobs(task)]
    results = {b.label: b.measurements for b in begun}
    if not jobs:
        return True
    # Locate the models, and record the missing ones as failed.
    try:
        with console.status("finding the models"):
            folders, lost = model_folders(folder, spec, runs)
        for label, name, reason in [
            (job.label, n, lost[n]) for job in jobs for n in job.left if n in lost
        ]:
            results[label].commit(name, {"status": "failed", "reason": reason})
        jobs = [job for job in (_without(job, lost) for job in jobs) if job.left]
        if not jobs:
            return True
        # Measure the models in parallel.
        with phase(console, f"{ray_phase(spec.cluster)}, loading the base model"):
            start_ray(spec.cluster)
            trials = {trial.run_id: trial for trial in folder.plan().trials}
            settings = {n: trials[n].settings if n in trials else NO_SETTINGS for n in folders}
            bases = {name: spec.of_run(own).model for name, own in settings.items()}
            # Models of one adapter follow each other, because another adapter needs a new set-up.
            jobs.sort(key=lambda job: settings[job.names[0]])
            base = sharing.base_models(bases.values(), new_tokens=0)
        # Every actor gets the same inputs.
        shared = ScorerInputs(
            task=task, models=base, folders=folders, bases=bases, cpus=spec.cluster.cpus_per_worker
        )
        with MeasurementProgress(console, total=sum(len(job.left) for job in jobs)) as shown:

            def commit(label: str, name: str, result: dict[str, object]) -> None:
                results[label].commit(name, result)
                shown.advance()

            run_jobs(jobs, shared, spec.cluster, commit, shown.report, workers=workers)
    except KeyboardInterrupt:
        return False
    finally:
        stop_ray()
        shutil.rmtree(folder.path / FETCHED, ignore_errors=True)
    return True


def _without(job: Job, lost: dict[str, str]) -> Job:
    return replace(job, names=tuple(name for name in job.names if name not in lost))


def log_to_mlflow(
    folder: SweepFolder,
    spec: SweepSpec,
    runs: dict[str, int],
    begun: list[BegunMeasurement],
    console: Console,
) -> tuple[int, str | None]:
    """Log values on all registered models, keep existing ones; return the number, or why none."""
    values: dict[str, dict[str, float | None]] = {}
    selected = spec.select.score
    for name in runs:
        uri = folder.model_uri(name)
        scores = {
            b.label: score for b in begun if (score := b.measurements.finished(name)) is not None
        }
        if uri is not None and scores:
            values[uri] = {
                **{f"score.{label}": score.value for label, score in scores.items()},
                **{f"score.{label}.std_error": score.std_error for label, score in scores.items()},
                **({"score": scores[selected].value} if selected in scores else {}),
            }
    if not values:
        return 0, None
    try:
        with console.status("logging to MLflow"):
            return tracking.log_scores(values, tracking_uri=spec.tracking.uri), None
    except ValueError as error:
        return 0, f"the scores were not recorded in MLflow: {error}"

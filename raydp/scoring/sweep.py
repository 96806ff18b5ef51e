"""Scores measured after training: measure every finished model of a sweep, with new scores or other parameters."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NotRequired, TypedDict

from rich.console import Console

from raydp.io.output import phase
from raydp.models import sharing
from raydp.scores.base import OneByOne
from raydp.scores.requests import ScoreRequest
from raydp.scoring.scored_models import FETCHED, finished_runs, model_folders, require_same
from raydp.spec.document import SweepSpec
from raydp.sweep.engine.progress import MeasurementProgress
from raydp.sweep.engine.scorers import Job, ScorerInputs, run_jobs
from raydp.sweep.engine.slots import start_ray, stop_ray
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.measurements import Measurements, write_counts
from raydp.sweep.store.points import write_tables
from raydp.tasks.base import Task
from raydp.tasks.wrappers.twins import TwinTask
from raydp.tracking import log_scores


class FailedModel(TypedDict):
    """A model that could not be measured."""

    run_id: str
    reason: str


class MeasuredScore(TypedDict):
    """A score's values of a sweep's models.

    Keys:
        score: name of the score.
        note: says that training measured the score; there are no other keys then.
        measured: number of models that this call measured.
        already: number of models that were measured before.
    """

    score: str
    note: NotRequired[str]
    seed: NotRequired[int | str | None]
    measured: NotRequired[int]
    already: NotRequired[int]
    failed: NotRequired[list[FailedModel]]
    base: NotRequired[float | None]
    min: NotRequired[float | None]
    mean: NotRequired[float | None]
    max: NotRequired[float | None]
    seconds: NotRequired[float]


class SweepScores(TypedDict):
    """The document of `raydp score SWEEP --json`.

    Keys:
        folder: the sweep's folder.
        scores: label -> its values.
        tracked: number of models with all values in MLflow.
        note: None, or why MLflow has no values.
        interrupted: whether measurements are missing.
    """

    folder: Path
    scores: dict[str, MeasuredScore]
    tracked: int
    note: str | None
    interrupted: bool


def score_sweep(
    folder: SweepFolder,
    requests: list[ScoreRequest],
    *,
    seed: int | None = None,
    workers: int | None = None,
    console: Console,
) -> SweepScores:
    """Measure every finished model of a sweep, and its base model, with scores.

    Results are committed one by one to storage/name/scores/, so a second call resumes where the first stopped. It
    repeats only failed measurements. Then the tables are written, and the values are logged to MLflow.

    Args:
        folder: the sweep's folder.
        requests: the scores to measure.
        seed: seed of the draws of every model. By default, it is each run's own seed, as in training. For the base
            model, and for scores that compare models, it is the spec's first seed.
        workers: number of processes that measure side by side; by default as many as fit.
        console: console for progress.

    For a private selection, only the released model is measured: a score of any other model is a function of the
    private data that the guarantee does not cover. Its values are not logged to MLflow, because a score depends on the
    private secrets.

    Raises:
        ValueError: a score does not fit the task, a label is taken, the sweep is running, or its data or base weights
            have changed since it was started.
    """
    with folder.locked():
        spec = folder.spec()
        with console.status("reading data and checking the model"):
            task = _checked_task(folder, spec, requests)
        # Measure what is left.
        write_counts(folder, task.secrets())
        runs = finished_runs(folder)
        measure = [r for r in requests if not _measured_in_training(spec, r, seed)]
        begun = [_Begun.of(folder, spec, r, runs, seed) for r in measure]
        before = {b.label: set(b.finished()) for b in begun}
        interrupted = not _measure(folder, spec, task, runs, begun, workers, console)
        # Write the tables, and log to MLflow.
        write_tables(folder)
        note = folder.disclosure().keeps_scores
        tracked = 0
        if note is None:
            tracked, note = _log_to_mlflow(folder, spec, runs, begun, console)
        scores: dict[str, MeasuredScore] = {
            r.label: {"score": r.plugin.name, "note": "measured in training"} for r in requests
        }
        return {
            "folder": folder.path,
            "scores": {**scores, **{b.label: b.summary(before[b.label]) for b in begun}},
            "tracked": tracked,
            "note": note,
            "interrupted": interrupted,
        }


def _checked_task(folder: SweepFolder, spec: SweepSpec, requests: list[ScoreRequest]) -> Task:
    """Build the task, after checking that nothing has changed and that the scores fit the task."""
    task, weight_hash = build_task(spec)
    require_same(folder, spec, task, weight_hash)
    for request in requests:
        request.plugin.params.check(task)
    return task


@dataclass(frozen=True, kw_only=True)
class _Begun:
    """A measurement that this call begins or resumes: where its results go, and the models to measure.

    Attributes:
        request: the score.
        measurements: where the results go.
        seeds: model -> seed of its draws.
        runs: model -> seed of its run; the base model has the first seed.
    """

    request: ScoreRequest
    measurements: Measurements
    seeds: dict[str, int]
    runs: dict[str, int]

    @classmethod
    def of(
        cls, folder: SweepFolder, spec: SweepSpec, request: ScoreRequest, runs: dict[str, int], seed: int | None
    ) -> _Begun:
        score = request.plugin.params
        names = list(runs) if score.of_a_set else [BASE_RUN, *runs]
        same_for_all = seed if seed is not None else None if measures_one_by_one(score) else spec.seed_labels[0]
        of_runs = {name: runs.get(name, spec.seed_labels[0]) for name in names}
        seeds = of_runs if same_for_all is None else dict.fromkeys(names, same_for_all)
        models = names if score.of_a_set else None
        measurements = Measurements.begin(folder, request, seed=same_for_all, models=models)
        return cls(request=request, measurements=measurements, seeds=seeds, runs=of_runs)

    @property
    def label(self) -> str:
        return self.request.label

    def finished(self) -> list[str]:
        return [name for name in self.seeds if self.measurements.finished(name) is not None]

    def jobs(self, task: Task) -> list[Job]:
        """Return one job per model if models are measured one by one, else one job for all models of one task.

        If the task depends on the seed of a run, the runs of each seed have a task of their own. Models that are
        compared with each other are measured together nevertheless; such scores read neither secrets nor canaries.
        """
        done = frozenset(self.finished())
        left = [name for name in self.seeds if name not in done]
        work, score = (self.measurements.path / "work").resolve(), self.request.plugin.params
        job = partial(Job, label=self.label, plugin=self.request.plugin)
        if measures_one_by_one(score):
            return [job(names=(n,), seed=self.seeds[n], of_seed=self.runs[n], work=work) for n in left]
        if not isinstance(task, TwinTask) or score.of_a_set:
            groups = {self.runs[next(iter(self.seeds))]: tuple(self.seeds)}
        else:
            groups = {seed: tuple(n for n in self.seeds if self.runs[n] == seed) for seed in self.runs.values()}
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

    def summary(self, before: set[str]) -> MeasuredScore:
        finished = {name: self.measurements.finished(name) for name in self.seeds}
        scores = {name: score for name, score in finished.items() if score is not None}
        values = [score.value for name, score in scores.items() if name != BASE_RUN]
        failures = {name: self.measurements.failure(name) for name in self.seeds if name not in scores}
        about = self.measurements.about()
        return {
            "score": self.request.plugin.name,
            "seed": None if about is None else about["seed"],
            "measured": len(set(scores) - before),
            "already": len(before),
            "failed": [{"run_id": name, "reason": reason} for name, reason in failures.items() if reason is not None],
            "base": scores[BASE_RUN].value if BASE_RUN in scores else None,
            "min": min(values, default=None),
            "mean": sum(values) / len(values) if values else None,
            "max": max(values, default=None),
            "seconds": sum(score.cost.get("seconds", 0.0) for score in scores.values()),
        }


def measures_one_by_one(score: object) -> bool:
    """Return whether a score measures every model separately, so that models may be spread over processes."""
    return isinstance(score, OneByOne) and type(score).measure_many is OneByOne.measure_many


def _measured_in_training(spec: SweepSpec, request: ScoreRequest, seed: int | None) -> bool:
    """Return whether the sweep itself made this measurement in training.

    Raises:
        ValueError: the sweep measured the score of this label with other parameters.
    """
    own = {score.name: score.as_dict() for score in spec.scores}
    if request.label not in own:
        return False
    if own[request.label] == request.plugin.as_dict() and seed is None:
        return True
    raise ValueError(
        f"label must be new for another measurement, got {request.label!r}, which the sweep measured in training as "
        f"{own[request.label]}. Give --label, such as {request.label}-2."
    )


def _measure(
    folder: SweepFolder,
    spec: SweepSpec,
    task: Task,
    runs: dict[str, int],
    begun: list[_Begun],
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
        for label, name, reason in [(job.label, n, lost[n]) for job in jobs for n in job.left if n in lost]:
            results[label].commit(name, {"status": "failed", "reason": reason})
        jobs = [job for job in (_without(job, lost) for job in jobs) if job.left]
        if not jobs:
            return True
        # Measure the models in parallel.
        with phase(console, "starting Ray, loading the base model"):
            start_ray(spec.cluster)
            trials = {trial.run_id: trial for trial in folder.plan().trials}
            settings = {name: trials[name].settings if name in trials else "" for name in folders}
            bases = {name: spec.of_run(own).model for name, own in settings.items()}
            base = sharing.base_models(bases.values(), new_tokens=0)
        shared = ScorerInputs(
            task=task,
            models=base,
            folders=folders,
            bases=bases,
            cpus=spec.cluster.cpus_per_worker,
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


def _log_to_mlflow(
    folder: SweepFolder, spec: SweepSpec, runs: dict[str, int], begun: list[_Begun], console: Console
) -> tuple[int, str | None]:
    """Log the values on every registered model, keeping existing ones. Return the number of models, or why none."""
    values: dict[str, dict[str, float | None]] = {}
    for name in runs:
        uri = folder.model_uri(name)
        scores = {b.label: score for b in begun if (score := b.measurements.finished(name)) is not None}
        if uri is not None and scores:
            values[uri] = {
                **{f"score.{label}": score.value for label, score in scores.items()},
                **{f"score.{label}.std_error": score.std_error for label, score in scores.items()},
            }
    if not values:
        return 0, None
    try:
        with console.status("logging to MLflow"):
            return log_scores(values, tracking_uri=spec.tracking.uri), None
    except ValueError as error:
        return 0, f"the scores were not recorded in MLflow: {error}"

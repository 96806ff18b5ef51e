"""Scores measured after training: every finished model, with new scores or parameters."""

from __future__ import annotations

from pathlib import Path
from typing import NotRequired, TypedDict

from rich.console import Console

from raydp.extensions.later_scores.measurement import BegunMeasurement, log_to_mlflow, measure
from raydp.extensions.later_scores.models import finished_runs
from raydp.extensions.later_scores.requests import ScoreRequest
from raydp.spec.document import SweepSpec
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import run_id
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.measurements import Measurements, write_counts
from raydp.sweep.store.points import write_tables
from raydp.system.interruption import Interrupted
from raydp.tasks.task import Task


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

    Results are committed one by one to storage/name/scores/, so a second call resumes where the
    first stopped. It repeats only failed measurements. Then the tables are written, and the values
    are logged to MLflow.

    Args:
        folder: the sweep's folder.
        requests: the scores to measure.
        seed: seed of the draws of every model. By default, it is each run's own seed, as in
            training. For the base model, and for scores that compare models, it is the spec's first
            seed.
        workers: number of processes that measure side by side; by default as many as fit.
        console: console for progress.

    If the runs may not be shown, only the released model is measured: a score of any other model is a
    function of the private data that the guarantee does not cover. Its values are not logged to
    MLflow, because a score depends on the private secrets.

    Raises:
        ValueError: a score does not fit the task, a label is taken, the sweep is running, or its
            data or base weights have changed since it was started.
        Interrupted: Ctrl-C or SIGTERM came. The same call resumes.
    """
    with folder.locked():
        spec = folder.spec()
        with console.status("reading data and checking the model"):
            task = _checked_task(folder, spec, requests)
        # Measure what is left.
        write_counts(folder, task.secrets())
        runs = finished_runs(folder)
        left = [r for r in requests if not _measured_in_training(folder, spec, r, seed)]
        begun = [BegunMeasurement.of(folder, spec, r, runs, seed) for r in left]
        # Tell the models that this call measures from those that were measured before.
        before = {b.label: set(b.finished()) for b in begun}
        interrupted = not measure(folder, spec, task, runs, begun, workers, console)
        write_tables(folder)
        tracked, note = _log(folder, spec, runs, begun, console)
        # Scores that training has measured are listed, and not measured again.
        said = "measured in training"
        scores = {r.label: MeasuredScore(score=r.plugin.name, note=said) for r in requests}
        answer: SweepScores = {
            "folder": folder.path,
            "scores": {**scores, **{b.label: _summary(b, before[b.label]) for b in begun}},
            "tracked": tracked,
            "note": note,
            "interrupted": interrupted,
        }
    if interrupted:
        raise Interrupted(answer)
    return answer


def _log(
    folder: SweepFolder,
    spec: SweepSpec,
    runs: dict[str, int],
    begun: list[BegunMeasurement],
    console: Console,
) -> tuple[int, str | None]:
    """Log to MLflow. Return the number of models, and why MLflow lacks values."""
    if (note := folder.disclosure().keeps_scores) is not None:
        return 0, note
    counted = [b for b in begun if not b.measurements.is_open()]
    tracked, note = log_to_mlflow(folder, spec, runs, counted, console)
    if len(counted) < len(begun):
        note = "the sweep measures its models again: resume it, and the new values count"
    return tracked, note


def _checked_task(folder: SweepFolder, spec: SweepSpec, requests: list[ScoreRequest]) -> Task:
    """Build the task, after checking that nothing has changed and that the scores fit the task."""
    task, weight_hash = build_task(spec)
    _require_same(folder, spec, task, weight_hash)
    for request in requests:
        request.plugin.params.check(task)
    return task


def _summary(begun: BegunMeasurement, before: set[str]) -> MeasuredScore:
    finished = {name: begun.measurements.finished(name) for name in begun.seeds}
    scores = {name: score for name, score in finished.items() if score is not None}
    # The base model is no model of the sweep, so minimum, mean and maximum leave it out.
    values = [score.value for name, score in scores.items() if name != BASE_RUN]
    failures = {
        name: begun.measurements.failure(name) for name in begun.seeds if name not in scores
    }
    about = begun.measurements.about()
    return {
        "score": begun.request.plugin.name,
        "seed": None if about is None else about["seed"],
        "measured": len(set(scores) - before),
        "already": len(before),
        "failed": [
            {"run_id": name, "reason": reason}
            for name, reason in failures.items()
            if reason is not None
        ],
        "base": scores[BASE_RUN].value if BASE_RUN in scores else None,
        "min": min(values, default=None),
        "mean": sum(values) / len(values) if values else None,
        "max": max(values, default=None),
        "seconds": sum(score.cost.get("seconds", 0.0) for score in scores.values()),
    }


def _measured_in_training(
    folder: SweepFolder, spec: SweepSpec, request: ScoreRequest, seed: int | None
) -> bool:
    """Return whether the sweep itself made this measurement in training.

    Raises:
        ValueError: the sweep measured the score of this label with other parameters.
    """
    own = {score.name: score.as_dict() for score in spec.scores}
    if (
        request.label not in own
        or Measurements(folder=folder, label=request.label).about() is not None
    ):
        return False  # a measurement after training, also if its values replaced those of training
    if own[request.label] == request.plugin.as_dict() and seed is None:
        return True
    raise ValueError(
        f"label must be new for another measurement, got {request.label!r}, which the sweep "
        f"measured in training as {own[request.label]}. Give --label, such as {request.label}-2."
    )


def _require_same(folder: SweepFolder, spec: SweepSpec, task: Task, weight_hash: str) -> None:
    """Raise ValueError if data, secrets or base weights changed since the sweep was started."""
    trials = folder.plan().trials
    if not trials:
        return
    # A run's id is the hash of all of them, so one run tells.
    first = trials[0]
    own = spec.of_run(first.settings)
    if run_id(own, task.facts(), weight_hash, first) != first.run_id:
        raise ValueError(
            "SWEEP must have the data, secrets and base weights that it was started with, got "
            "others. Restore them: scores of other secrets would not compare."
        )

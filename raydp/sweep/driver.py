"""The driver of a sweep: gives every run to Tune, commits and tracks the results, selects at the end."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
from rich.console import Console

from raydp import models, sharing
from raydp.locations import is_uri
from raydp.output import phase
from raydp.spec import SweepSpec
from raydp.sweep.adaptive import RunSearcher, RunSource
from raydp.sweep.committer import Committer, Discarder
from raydp.sweep.exchange import bucket_of, check_exchange
from raydp.sweep.finish import NOT_FINISHED, OF_CANARIES, Finish, finish
from raydp.sweep.folder import BASE_RUN, SweepFolder
from raydp.sweep.inputs import build_task
from raydp.sweep.measurements import write_counts
from raydp.sweep.plan import SweepPlan, drawn, make_plan, plan_document
from raydp.sweep.points import SEARCH_FILE, counts, skipped_configurations, write_tables
from raydp.sweep.progress import SweepProgress
from raydp.sweep.recorder import Recorder
from raydp.sweep.selection import decided, release_best
from raydp.sweep.show import data_notes
from raydp.sweep.slots import Slots, check_cluster, start_ray
from raydp.sweep.stopping import Hopeless
from raydp.sweep.tune_rounds import rounds, run_tune
from raydp.sweep.worker import Shared
from raydp.tasks.base import Task
from raydp.tracking import check_store
from raydp.training.trial import TrialPlan

OUT_PER_SLOT = 2
"""So many runs a slot are in the queue or running: slots that end together need not wait for the driver to commit one
result after the other, nor for the last run of a round."""


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """What a sweep left behind.

    Attributes:
        folder: the sweep's folder.
        counts: runs by status and the failures with their reasons.
        selected: the selection (see analysis.Selection.to_dict), None with nothing to select from.
        best_utility: the same for the rule best-utility.
        reason: why nothing was selected.
        report: the HTML report.
        interrupted: stopped before all runs had a result.
    """

    folder: Path
    counts: dict[str, Any]
    selected: dict[str, Any] | None
    best_utility: dict[str, Any] | None
    reason: str | None
    report: Path | None
    interrupted: bool

    def document(self) -> dict[str, Any]:
        """What `raydp sweep --json` prints."""
        return asdict(self)


def run_sweep(spec: SweepSpec, *, resume: bool, console: Console) -> SweepResult:
    """Run a sweep to its end, or go on with one.

    Raises:
        ValueError: anything wrong with spec, model, data or folder; nothing was trained then.
    """
    folder = None
    if resume:
        folder = SweepFolder.resume(spec)
    else:
        SweepFolder.require_new(spec)
    check_store(spec.tracking.uri)
    check_cluster(spec.cluster.address)
    check_exchange(spec.cluster.exchange)
    _check_working_dir(spec.cluster.working_dir)
    with console.status("reading data and checking the model"):
        task, weight_hash = build_task(spec)
    with console.status("calibrating the noise") as status:
        plan = make_plan(
            spec, task.facts(), weight_hash, progress=lambda k, n: status.update(f"calibrating the noise {k}/{n}")
        )
    for note in data_notes(plan.facts):
        console.print(note, markup=False)
    for warning in plan.warnings:
        console.print(f"warning: {warning}", markup=False)
    for rejected in plan.rejected:
        console.print(f"left out: {rejected.configuration}: {rejected.reason}", markup=False)
    if plan.selection is not None:
        console.print(plan.selection, markup=False)
    with SweepFolder.running(spec):
        if folder is None:
            sweep_id = secrets.token_hex(8)
            folder = SweepFolder.create(
                spec, lambda key: plan_document(drawn(plan, spec, weight_hash, key), sweep_id=sweep_id)
            )
        write_counts(folder, task.secrets())
        trials = planned_runs(folder, drawn(plan, spec, weight_hash, folder.key()))
        return _run(spec, folder, task, weight_hash, trials, console)


def _check_working_dir(working_dir: str | None) -> None:
    if working_dir is not None and not is_uri(working_dir) and not Path(working_dir).is_dir():
        raise ValueError(
            f"cluster.working_dir must be an existing folder or the URI of a zip file, got {working_dir!r}. Check it."
        )


def _run(
    spec: SweepSpec, folder: SweepFolder, task: Task, weight_hash: str, trials: list[TrialPlan], console: Console
) -> SweepResult:
    """Run a sweep that has a folder; an interruption, wherever it comes, is an answer as well."""
    try:
        ending = _ending(spec, folder, task, weight_hash, trials, console)
    except KeyboardInterrupt:
        return SweepResult(folder=folder.path, counts=counts(folder), interrupted=True, **asdict(NOT_FINISHED))
    return SweepResult(folder=folder.path, counts=counts(folder), interrupted=False, **asdict(ending))


def _ending(
    spec: SweepSpec, folder: SweepFolder, task: Task, weight_hash: str, trials: list[TrialPlan], console: Console
) -> Finish:
    """Train what has no result yet, track what is not tracked, and select."""
    left = [t for t in trials if not folder.has_ended(t.run_id)]
    skipped = skipped_configurations(folder)  # what a search that has ended did not run is not left
    left = [t for t in left if t.configuration not in skipped]
    if not trials or decided(folder):  # a private selection of no run, or one that has released its model
        left = []
    if trials and (left or not folder.is_finished(BASE_RUN)):
        recorder = _train(spec, folder, task, weight_hash, trials, left, console)
    else:
        recorder = _recorder(spec, folder, task, weight_hash)
    recorder.clear_store()
    recorder.track_missing(trials)
    if isinstance(recorder, Recorder):
        return finish(spec, folder, recorder)
    if spec.privacy.selects:
        return release_best(spec, folder, recorder)
    write_tables(folder)
    return OF_CANARIES


def _recorder(spec: SweepSpec, folder: SweepFolder, task: Task, weight_hash: str) -> Committer:
    """Tells MLflow of every run as it ends; of a private selection's runs nothing, nor of models of canaries."""
    kind = Committer if spec.privacy.selects else Discarder if task.facts().num_new_tokens else Recorder
    return kind.open(spec, folder, task.facts(), weight_hash)


def planned_runs(folder: SweepFolder, plan: SweepPlan) -> list[TrialPlan]:
    """The runs with the noise they were started with, which a new library version must not change in mid-sweep.

    Raises:
        ValueError: data, secrets or base weights are not those that the sweep was started with.
    """
    trials = [TrialPlan(**t) for t in folder.read_json("plan.json")["trials"]]
    if {t.run_id for t in trials} != {t.run_id for t in plan.trials}:
        raise ValueError(
            "SPEC must give the runs that the sweep was started with, got others: data, secrets or base weights have "
            "changed. Restore them, or give the sweep a new name."
        )
    return trials


def _train(
    spec: SweepSpec,
    folder: SweepFolder,
    task: Task,
    weight_hash: str,
    trials: list[TrialPlan],
    left: list[TrialPlan],
    console: Console,
) -> Committer:
    """Run what is left; the workers start while the base model is loaded and the tracking store opened."""
    measure_base = not folder.is_finished(BASE_RUN)
    sweep_id = folder.read_json("plan.json")["sweep_id"]
    costs = {t.run_id: t.batch_size * t.num_steps for t in left}
    with phase(console, "starting Ray"):
        start_ray(spec.cluster)
    with Slots(
        spec.cluster,
        expected=len(left) + measure_base,
        storage=folder.path.resolve() / "ray",
        hopeless=_hopeless(spec, folder, trials),
    ) as slots:
        queue = slots.queue
        nodes = "adding nodes, " if spec.cluster.autoscaling else ""
        with phase(console, f"{nodes}starting the workers, loading the base model, opening the tracking store"):
            slots.share(
                Shared(
                    spec=spec,
                    task=task,
                    model=sharing.disassemble(models.load_base(spec.model, new_tokens=task.facts().num_new_tokens)),
                    trials={t.run_id: t for t in trials},
                    sweep_id=sweep_id,
                    folder=folder.path.resolve(),
                    bucket=bucket_of(spec.cluster.exchange, sweep_id),
                    key=folder.key(),
                )
            )
            recorder = _recorder(spec, folder, task, weight_hash)
            base = queue.submit.remote(BASE_RUN) if measure_base else None
            source = _source(recorder, trials)
            out = OUT_PER_SLOT * slots.num_slots if source is None else slots.num_slots
            first = [t.run_id for t in left] if source is None else source.upcoming(out)
            queue.enqueue.remote(first[:out])  # begun before Tune starts, whose trials then wait for them
            if first or measure_base:
                ray.get(queue.first_lease.remote())
        with SweepProgress(
            console,
            costs,
            len(trials) - len(left),
            poll=lambda: ray.get(queue.status.remote()),
            searched=source is not None,
        ) as progress:
            recorder.attach(queue, base, progress)
            if source is not None:
                beside = int(measure_base)
                searcher = RunSearcher(source, lambda given: ray.get(queue.close.remote(given + beside)))
                run_tune(searcher, len(left), queue, recorder, folder, slots.num_slots)
            else:
                recorder.hand_out(first[out:])
                for run_ids in rounds(first, slots.num_slots):
                    run_tune(run_ids, len(run_ids), queue, recorder, folder, slots.num_slots)
            recorder.base()
    return recorder


def _hopeless(spec: SweepSpec, folder: SweepFolder, trials: list[TrialPlan]) -> Hopeless | None:
    """Which runs end early, with what is known from before a resume; None where none does."""
    if spec.stopping is None:
        return None
    hopeless = Hopeless(
        min_finished=spec.stopping.min_finished,
        slack=spec.stopping.slack,
        min_utility_gain=spec.select.min_utility_gain,
        max_loss=spec.select.max_loss,
    )
    for run_id in [BASE_RUN, *(t.run_id for t in trials)]:
        if (result := folder.result(run_id)) is not None:
            hopeless.learn(run_id, result)
    return hopeless


def _source(recorder: Committer, trials: list[TrialPlan]) -> RunSource | None:
    """What a search gives out, None where everything is run or the search has ended."""
    spec, folder = recorder.spec, recorder.folder
    if spec.space.search is None or folder.read_json(SEARCH_FILE) is not None:
        return None
    return RunSource(spec=spec, folder=folder, trials=trials, search=spec.space.search.params, base_fn=recorder.base)

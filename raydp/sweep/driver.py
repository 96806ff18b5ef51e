"""The driver of a sweep: starts the slots, gives every run to Tune, commits and tracks results, selects at the end."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune
from rich.console import Console

from raydp import models
from raydp.spec import ClusterSpec, SweepSpec
from raydp.sweep.finish import NOT_FINISHED, finish
from raydp.sweep.folder import SweepFolder
from raydp.sweep.plan import SweepPlan, build_task, make_plan, plan_document
from raydp.sweep.points import counts
from raydp.sweep.progress import SweepProgress
from raydp.sweep.queue import TrialQueue
from raydp.sweep.recorder import CommitCallback, Recorder
from raydp.sweep.worker import BASE_RUN, Shared, Slot
from raydp.tasks.base import Task
from raydp.training.trial import TrialPlan

TRIALS_PER_ROUND = 400
"""Tune keeps every trial of a run in the driver's memory; a sweep of thousands runs in rounds."""


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
    if not resume and (Path(spec.storage) / spec.name / "spec.yaml").exists():
        SweepFolder.create(spec)  # raises
    folder = SweepFolder.resume(spec) if resume else None
    with console.status("reading data and checking the model"):
        task, weight_hash = build_task(spec)
    with console.status("calibrating the noise") as status:
        plan = make_plan(
            spec, task.facts(), weight_hash, progress=lambda k, n: status.update(f"calibrating the noise {k}/{n}")
        )
    for warning in plan.warnings:
        console.print(f"warning: {warning}")
    for rejected in plan.rejected:
        console.print(f"left out: {rejected.configuration}: {rejected.reason}")
    if folder is None:
        folder = SweepFolder.create(spec)
        folder.write_json("plan.json", plan_document(plan, sweep_id=secrets.token_hex(8)))
    trials = _planned(folder, plan)
    left = [t for t in trials if (folder.result(t.run_id) or {}).get("status") != "finished"]
    recorder = Recorder.open(spec, folder, task.facts(), weight_hash)
    interrupted = False
    if left or folder.result(BASE_RUN) is None:
        interrupted = _train(spec, folder, task, trials, left, recorder, console)
    if not interrupted:
        recorder.track_missing(trials)
    ending = NOT_FINISHED if interrupted else finish(spec, folder, recorder)
    return SweepResult(folder=folder.path, counts=counts(folder), interrupted=interrupted, **asdict(ending))


def _planned(folder: SweepFolder, plan: SweepPlan) -> list[TrialPlan]:
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
    trials: list[TrialPlan],
    left: list[TrialPlan],
    recorder: Recorder,
    console: Console,
) -> bool:
    """Run what is left. Returns whether it was interrupted."""
    with console.status("starting Ray and loading the base model"):
        _start_ray(spec.cluster)
        num_slots = min(_fitting_slots(spec.cluster), max(len(left), 1))
        queue = (
            ray.remote(TrialQueue)
            .options(num_cpus=0)
            .remote(expected=len(left) + (folder.result(BASE_RUN) is None), max_retries=spec.cluster.max_retries)
        )
        shared = ray.put(
            Shared(
                spec=spec,
                task=task,
                model=models.disassemble(models.load_base(spec.model)),
                trials={t.run_id: t for t in trials},
                folder=folder.path.resolve(),
                key=folder.key(),
            )
        )
        base = queue.submit.remote(BASE_RUN) if folder.result(BASE_RUN) is None else None
        slots = [_start_slot(k, spec.cluster, queue, shared, folder, len(trials)) for k in range(num_slots)]
        over = threading.Event()
        watch = threading.Thread(target=_abandon_without_slots, args=(slots, queue, over), daemon=True)
        watch.start()
    costs = {t.run_id: t.batch_size * t.num_steps for t in left}
    try:
        with SweepProgress(
            console, costs, len(trials) - len(left), poll=lambda: ray.get(queue.status.remote())
        ) as progress:
            recorder.attach(queue, base, progress)
            for start in range(0, len(left), TRIALS_PER_ROUND):
                run_ids = [t.run_id for t in left[start : start + TRIALS_PER_ROUND]]
                _run_tune(run_ids, queue, recorder, folder, num_slots)
            recorder.base()
        ray.wait(slots, num_returns=len(slots), timeout=30)
    except KeyboardInterrupt:
        return True
    finally:
        over.set()
        watch.join()
        ray.shutdown()
    return False


def _start_ray(cluster: ClusterSpec) -> None:
    """Start Ray here, or join the cluster."""
    quiet = {
        "RAY_AIR_NEW_OUTPUT": "0",
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0" if cluster.address == "local" else "1",
        "TUNE_WARN_THRESHOLD_S": "5",
    }
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    # Ray prints warnings of its own processes whatever log_to_driver says, one of them about every sweep: a slot's
    # helpers are more processes than CPUs.
    ray._private.worker._worker_logs_enabled = False
    local = cluster.address == "local"
    ray.init(
        address=None if local else cluster.address,
        include_dashboard=False if local else None,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env=None if local else {"env_vars": quiet},  # here the processes inherit them, and start faster
    )


def _fitting_slots(cluster: ClusterSpec) -> int:
    """How many worker groups the cluster can hold at once, at most what the spec allows.

    Raises:
        ValueError: not even one fits.
    """
    total = ray.cluster_resources()
    need = {"CPU": cluster.cpus_per_worker, "GPU": cluster.gpus_per_worker}
    fit = min(int(total.get(k, 0) / v / cluster.workers_per_trial + 1e-9) for k, v in need.items() if v)
    if fit < 1:
        raise ValueError(
            f"cluster.workers_per_trial {cluster.workers_per_trial} must fit the cluster with "
            f"{cluster.cpus_per_worker:g} CPUs and {cluster.gpus_per_worker:g} GPUs a worker, got "
            f"{total.get('CPU', 0):g} CPUs and {total.get('GPU', 0):g} GPUs in all. Ask for less."
        )
    return min(fit, cluster.max_concurrent_trials or fit)


def _start_slot(k: int, cluster: ClusterSpec, queue: Any, shared: Any, folder: SweepFolder, num_trials: int) -> Any:
    scaling = {
        "num_workers": cluster.workers_per_trial,
        "use_gpu": cluster.gpus_per_worker > 0,
        "resources_per_worker": {
            "CPU": cluster.cpus_per_worker,
            **({"GPU": cluster.gpus_per_worker} if cluster.gpus_per_worker else {}),
        },
    }
    max_failures = (1 + cluster.max_retries) * (num_trials + 1)
    return Slot.remote().run.remote(k, queue, [shared], scaling, folder.path.resolve() / "ray", max_failures)


def _run_tune(run_ids: list[str], queue: Any, recorder: Recorder, folder: SweepFolder, num_slots: int) -> None:
    """One Tune trial per run, in the given order. A trial only waits for its run's result, so it holds no CPU: one that
    did would deadlock a small machine against the workers. Two more trials than slots keep the next run at hand. A
    trial that Tune gave up on is committed all the same."""

    def trial(config: dict[str, Any]) -> None:
        outcome = ray.get(queue.submit.remote(config["run_id"]))
        tune.report({"run_id": config["run_id"], "status": outcome["status"]})

    tune.Tuner(
        tune.with_resources(trial, tune.PlacementGroupFactory([{"memory": 1e6}])),
        param_space={"run_id": tune.grid_search(run_ids)},
        tune_config=tune.TuneConfig(max_concurrent_trials=num_slots + 2, reuse_actors=True),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder.path.resolve() / "ray"),
            verbose=0,
            callbacks=[CommitCallback(recorder)],
            failure_config=tune.FailureConfig(max_failures=3),
        ),
    ).fit()
    for run_id in run_ids:
        if folder.result(run_id) is None:
            recorder.commit(run_id)


def _abandon_without_slots(slots: list[Any], queue: Any, over: threading.Event) -> None:
    """When the last slot has ended, whatever still waits would wait for ever: it fails with the slots' reasons."""
    left, reasons = list(slots), []
    while left and not over.is_set():
        ended, left = ray.wait(left, num_returns=1, timeout=1.0)
        for slot in ended:
            try:
                ray.get(slot)
            except ray.exceptions.RayError as error:
                reasons.append(str(error).strip().splitlines()[-1])
    if not left:
        ray.get(queue.abandon.remote("; ".join(reasons) or "no worker group is left"))

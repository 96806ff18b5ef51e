"""Trains what a sweep has no result of yet: slots and workers are started, runs handed out, results committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

import ray
from ray.tune import Callback
from rich.console import Console

from raydp.io.output import phase
from raydp.models import base_models as models
from raydp.models import sharing
from raydp.spec.document import SweepSpec
from raydp.sweep.engine.adaptive import RunSource
from raydp.sweep.engine.committer import Committer
from raydp.sweep.engine.context import SweepContext
from raydp.sweep.engine.listeners import RunListener
from raydp.sweep.engine.progress import SweepProgress
from raydp.sweep.engine.slots import Slots, start_ray
from raydp.sweep.engine.stopping import EarlyStopping
from raydp.sweep.engine.tune.callbacks import GuardedCallback
from raydp.sweep.engine.tune.rounds import ListSource, TuneRun, rounds
from raydp.sweep.engine.worker import WorkerInputs
from raydp.sweep.names import run_name
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.transfer import bucket_of
from raydp.tasks.base import Task
from raydp.training.trial_plan import TrialPlan

OUT_PER_SLOT = 2
"""So many runs a slot are in the queue or running: slots that end together need not wait for the driver to commit one
result after the other, nor for the last run of a round."""


def train(
    context: SweepContext,
    task: Task,
    left: list[TrialPlan],
    console: Console,
    *,
    open_listener: Callable[[], RunListener],
    shown: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Committer:
    """Run what is left. The workers start while the base model is loaded and the tracking store is opened.

    Args:
        left: the runs without a result.
        open_listener: opens who hears of committed runs.
        shown: whether step metrics, utility and scores go through Tune.
        callbacks: the user's callbacks of Ray Tune.
    """
    spec, folder, trials = context.spec, context.folder, list(context.trials.values())
    guarded = [GuardedCallback(callback) for callback in callbacks]
    measure_base = not folder.is_finished(BASE_RUN)
    sweep_id = context.plan.sweep_id
    costs = {t.run_id: t.batch_size * t.num_steps for t in left}
    with phase(console, "starting Ray"):
        start_ray(spec.cluster)
    with Slots(
        spec.cluster,
        expected=len(left) + measure_base,
        storage=folder.path.resolve() / "ray",
        early_stopping=_early_stopping(spec, folder, trials),
    ) as slots:
        queue = slots.queue
        nodes = "adding nodes, " if spec.cluster.autoscaling else ""
        with phase(console, f"{nodes}starting the workers, loading the base model, opening the tracking store"):
            slots.share(
                WorkerInputs(
                    spec=spec,
                    task=task,
                    model=sharing.disassemble(models.load_base(spec.model, new_tokens=task.facts().num_new_tokens)),
                    trials=context.trials,
                    sweep_id=sweep_id,
                    folder=folder.path.resolve(),
                    bucket=bucket_of(spec.cluster.exchange, sweep_id),
                    key=folder.key(),
                )
            )
            committer = Committer(context=context, listener=open_listener())
            base = None
            if measure_base:
                queue.enqueue.remote([BASE_RUN])
                base = queue.outcome.remote(BASE_RUN)
            source = _source(committer)
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
            names={BASE_RUN: "the untrained base model", **{t.run_id: run_name(asdict(t)) for t in trials}},
            searched=source is not None,
        ) as progress:
            committer.attach(queue, base, progress)
            tuning = TuneRun(
                queue=queue,
                committer=committer,
                folder=folder,
                num_slots=slots.num_slots,
                trials=context.trials,
                score=spec.select.score,
                shown=shown,
                callbacks=guarded,
            )
            if source is not None:
                beside = int(measure_base)
                tuning.run(source, len(left), close=lambda given: ray.get(queue.close.remote(given + beside)))
            else:
                committer.hand_out(first[out:])
                for run_ids in rounds(first, slots.num_slots):
                    tuning.run(ListSource(run_ids), len(run_ids))
            committer.base()
    for callback in guarded:
        callback.end()
    return committer


def _early_stopping(spec: SweepSpec, folder: SweepFolder, trials: list[TrialPlan]) -> EarlyStopping | None:
    """Which runs end early, with what is known from before a resume; None where none does."""
    if spec.stopping is None:
        return None
    early_stopping = EarlyStopping(
        min_finished=spec.stopping.min_finished,
        slack=spec.stopping.slack,
        min_utility_gain=spec.select.min_utility_gain,
        max_loss=spec.select.max_loss,
    )
    for run_id in [BASE_RUN, *(t.run_id for t in trials)]:
        if (result := folder.result(run_id)) is not None:
            early_stopping.learn(result)
    return early_stopping


def _source(committer: Committer) -> RunSource | None:
    """What a search gives out, None where everything is run or the search has ended."""
    context = committer.context
    spec, folder, trials = context.spec, context.folder, list(context.trials.values())
    if spec.space.search is None or folder.search_end() is not None:
        return None
    return RunSource(spec=spec, folder=folder, trials=trials, search=spec.space.search.params, base_fn=committer.base)

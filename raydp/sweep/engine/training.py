"""Train the runs that have no result: start workers, hand out runs, commit results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import ray
from ray.tune import Callback
from rich.console import Console

from raydp.models import sharing
from raydp.plugins.registries import service
from raydp.search_spaces.settings import NO_SETTINGS, Settings
from raydp.spec.sections import AdaptiveSeeds
from raydp.sweep.engine.adaptive import SearchSource, StepwiseSource
from raydp.sweep.engine.committer import Committer
from raydp.sweep.engine.context import SweepContext, WorkerInputs
from raydp.sweep.engine.further_seeds import BeforeFurtherSeeds, SeedSource
from raydp.sweep.engine.listeners import RunListener
from raydp.sweep.engine.progress import FirstPass, SweepProgress, follow_start
from raydp.sweep.engine.ray_start import ray_phase, start_ray
from raydp.sweep.engine.slots import Slots
from raydp.sweep.engine.stopping import EarlyStopping
from raydp.sweep.engine.tune.callbacks import GuardedCallback, ending
from raydp.sweep.engine.tune.rounds import TuneRun
from raydp.sweep.search import constraints_of
from raydp.sweep.store.folder import BASE_RUN
from raydp.sweep.store.transfer import exchange_at
from raydp.system.output import phase
from raydp.tasks.task import Task
from raydp.training.trial_plan import TrialPlan

if TYPE_CHECKING:
    from ray.actor import ActorProxy

    from raydp.sweep.engine.queue import TrialQueue

OUT_PER_SLOT = 2
"""Number of runs in the queue or running, for each slot.

A slot that ends a run finds the next run at once, also while the driver commits other results, and
while the last runs of a round end.
"""


def train(
    context: SweepContext,
    task: Task,
    left: list[TrialPlan],
    console: Console,
    *,
    open_listener: Callable[[], RunListener],
    before: BeforeFurtherSeeds,
    shown: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Committer:
    """Run what is left.

    The workers start while the base model is loaded and the tracking store is opened.

    Args:
        left: the runs without a result.
        open_listener: opens the listener of committed runs.
        before: the step before further seeds.
        shown: whether step metrics, utility and scores go through Tune.
        callbacks: the user's callbacks of Ray Tune.
    """
    spec, guarded = context.spec, _guarded(context, callbacks)
    measure_base = not context.folder.is_finished(BASE_RUN)
    with phase(console, ray_phase(spec.cluster)):
        start_ray(spec.cluster)
    # The workers start and import torch while this process loads the base model. A logger may have
    # actors of its own, so it hears of the end while Ray runs.
    with _slots(context, len(left) + measure_base) as slots, ending(guarded):
        queue = slots.queue
        # The workers read the base model from Ray's object store: one copy on each node.
        with phase(console, "loading the base model"):
            settings = [*[NO_SETTINGS] * measure_base, *(t.settings for t in left)]
            slots.share(_worker_inputs(context, task, settings, before))
        committer = _open_committer(context, open_listener, console)
        # A source chooses each run from the results so far, so no more runs than slots begin early.
        source = _source(committer, before)
        run_ids = [t.run_id for t in left]
        out = OUT_PER_SLOT * slots.num_slots if source is None else slots.num_slots
        # These runs begin before Tune starts, whose trials then follow them. Of a list, all enter.
        first = [BASE_RUN] * measure_base + (run_ids if source is None else source.upcoming(out))
        queue.enqueue.remote(first, measure_base + out)
        base = queue.outcome.remote(BASE_RUN) if measure_base else None
        if first:
            _wait_for_workers(console, slots, grows=spec.cluster.autoscaling)
        display = _progress(context, left, console, queue, searched=source is not None)
        with _keeping(slots, committer), display as progress:
            # Train: every run is a trial of Tune, from the source or from the list of all runs.
            committer.attach(queue, base, progress)
            tuning = TuneRun(
                queue=queue,
                committer=committer,
                num_slots=slots.num_slots,
                shown=shown,
                callbacks=guarded,
            )
            tuning.train(run_ids, source, measure_base)
            # If no run is left, no commit has waited for the untrained model's measurement.
            committer.base()
    return committer


def _guarded(context: SweepContext, callbacks: Sequence[Callback]) -> list[GuardedCallback]:
    """Guard the user's callbacks, and the callbacks that write the run logs."""
    if context.spec.tracking.loggers:
        run_logs = service("run_logs", needed_by="tracking.loggers")
        callbacks = (*run_logs(context.spec.tracking, context.folder), *callbacks)
    return [GuardedCallback(callback) for callback in callbacks]


def _slots(context: SweepContext, num_runs: int) -> Slots:
    """Return the slots of the workers for a number of runs."""
    cluster, stopping = context.spec.cluster, _early_stopping(context)
    return Slots(cluster, expected=num_runs, storage=context.folder.ray, early_stopping=stopping)


def _open_committer(
    context: SweepContext, open_listener: Callable[[], RunListener], console: Console
) -> Committer:
    """Return a committer whose listener is told that further runs may follow."""
    with phase(console, "opening the tracking store"):
        listener = open_listener()
        listener.reopened()
        return Committer(context=context, listener=listener)


@contextmanager
def _keeping(slots: Slots, committer: Committer) -> Iterator[None]:
    """At an interruption, let runs that train save their state, and commit the ended runs."""
    try:
        yield
    except KeyboardInterrupt:
        committer.keep(slots.pause())
        raise


def _wait_for_workers(console: Console, slots: Slots, *, grows: bool) -> None:
    """Wait until a worker has a run or no slot is left, and say what the workers do."""
    lease = slots.queue.first_lease.remote()
    follow_start(
        console,
        "adding nodes, starting the workers" if grows else "starting the workers",
        poll=lambda: ray.get(slots.queue.status.remote()),
        wait=lambda seconds: bool(ray.wait([lease], timeout=seconds)[0]),
        slots=slots.num_slots,
    )
    ray.get(lease)  # raises what ended the wait, if it failed


def _worker_inputs(
    context: SweepContext, task: Task, settings: Sequence[Settings], before: BeforeFurtherSeeds
) -> WorkerInputs:
    """Load the base model for the runs with these settings, and return what every worker needs."""
    spec = before.in_training(context.spec)
    sweep_id, exchange = context.plan.sweep_id, exchange_at(spec.cluster.exchange)
    return WorkerInputs(
        spec=spec,
        task=task,
        models=sharing.base_models(
            [spec.of_run(own).model for own in dict.fromkeys(settings)],
            new_tokens=task.facts().num_new_tokens,
        ),
        trials=context.trials,
        accounted={
            run_id: context.plan.privacy[run_id].mechanism.event for run_id in context.trials
        },
        first=settings[0],
        sweep_id=sweep_id,
        folder=context.folder.path.resolve(),
        exchange=None if exchange is None else exchange.of_sweep(sweep_id),
        key=context.folder.key(),
    )


def _progress(
    context: SweepContext,
    left: list[TrialPlan],
    console: Console,
    queue: ActorProxy[TrialQueue],
    *,
    searched: bool,
) -> SweepProgress:
    """Return the display of the sweep's progress."""
    names = {trial.run_id: str(trial) for trial in context.trials.values()}
    return SweepProgress(
        console,
        {trial.run_id: trial.batch_size * trial.num_steps for trial in left},
        len(context.trials) - len(left),
        poll=lambda: ray.get(queue.status.remote()),
        names={BASE_RUN: "the untrained base model", **names},
        searched=searched,
        first_pass=_first_pass(context),
        record=context.folder.set_progress,
    )


def _first_pass(context: SweepContext) -> FirstPass | None:
    """Return the first pass and the budget of further runs; None without adaptive seeds."""
    seeds = context.spec.seeds
    if not isinstance(seeds, AdaptiveSeeds):
        return None
    first = [trial for trial in context.trials.values() if trial.seed in seeds.first_labels]
    cost = sum(trial.batch_size * trial.num_steps for trial in first)
    return FirstPass(
        run_ids=frozenset(t.run_id for t in first), further_cost=seeds.max_cost_share * cost
    )


def _early_stopping(context: SweepContext) -> EarlyStopping | None:
    """Return what stops runs early, or None if nothing does."""
    spec = context.spec
    if spec.stopping is None:
        return None
    early_stopping = EarlyStopping(
        min_finished=spec.stopping.min_finished,
        slack=spec.stopping.slack,
        constraints=constraints_of(spec.select),
    )
    # After a resume, the results from before count as well.
    for run_id in [BASE_RUN, *context.trials]:
        if (result := context.folder.result(run_id)) is not None:
            early_stopping.learn(result)
    return early_stopping


def _source(committer: Committer, before: BeforeFurtherSeeds) -> StepwiseSource | None:
    """Return the source that chooses the next run; None if every run is trained.

    A search and adaptive seeds have a source until they have ended.
    """
    context = committer.context
    spec, folder, trials = context.spec, context.folder, list(context.trials.values())
    if isinstance(spec.seeds, AdaptiveSeeds) and folder.seeds_end() is None:
        return SeedSource.of(context, committer.base, before)
    if spec.space.search is None or folder.search_end() is not None:
        return None
    return SearchSource(
        spec=spec,
        folder=folder,
        trials=trials,
        search=spec.space.search.params,
        base_fn=committer.base,
    )

"""Trains the runs that have no result: starts slots and workers, hands out the runs and commits their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import ray
from ray.tune import Callback
from rich.console import Console

from raydp.io.output import phase
from raydp.models import sharing
from raydp.spec.sections import AdaptiveSeeds
from raydp.sweep.engine.adaptive import SearchSource, StepwiseSource
from raydp.sweep.engine.committer import Committer
from raydp.sweep.engine.context import SweepContext, WorkerInputs
from raydp.sweep.engine.further_seeds import SeedSource
from raydp.sweep.engine.listeners import RunListener
from raydp.sweep.engine.measuring.finer import FinerScore
from raydp.sweep.engine.progress import FirstPass, SweepProgress, follow_start
from raydp.sweep.engine.ray_start import ray_phase, start_ray
from raydp.sweep.engine.slots import Slots
from raydp.sweep.engine.stopping import EarlyStopping
from raydp.sweep.engine.tune.callbacks import GuardedCallback, ending
from raydp.sweep.engine.tune.loggers import run_logs
from raydp.sweep.engine.tune.rounds import ListSource, TuneRun, rounds
from raydp.sweep.names import run_name
from raydp.sweep.store.folder import BASE_RUN
from raydp.sweep.store.transfer import bucket_of
from raydp.tasks.base import Task
from raydp.training.trial_plan import TrialPlan

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorProxy

    from raydp.sweep.engine.queue import TrialQueue
    from raydp.sweep.store.results import RunResult

OUT_PER_SLOT = 2
"""Number of runs in the queue or running, for each slot. A slot that ends a run finds the next run at once, also while
the driver commits other results, and while the last runs of a round end."""


def train(
    context: SweepContext,
    task: Task,
    left: list[TrialPlan],
    console: Console,
    *,
    open_listener: Callable[[], RunListener],
    finer: FinerScore | None = None,
    shown: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Committer:
    """Run what is left. The workers start while the base model is loaded and the tracking store is opened.

    Args:
        left: the runs without a result.
        open_listener: opens the listener of committed runs.
        finer: the score with a smaller error, which may be measured before further seeds.
        shown: whether step metrics, utility and scores go through Tune.
        callbacks: the user's callbacks of Ray Tune.
    """
    spec, folder = context.spec, context.folder
    guarded = [GuardedCallback(callback) for callback in (*run_logs(spec.tracking, folder), *callbacks)]
    measure_base = not folder.is_finished(BASE_RUN)
    with phase(console, ray_phase(spec.cluster)):
        start_ray(spec.cluster)
    with (
        Slots(
            spec.cluster,
            expected=len(left) + measure_base,
            storage=folder.ray,
            early_stopping=_early_stopping(context),
        ) as slots,
        ending(guarded),
    ):  # a logger may have actors of its own, so it hears of the end while Ray runs
        queue = slots.queue
        with phase(console, "loading the base model"):
            slots.share(_worker_inputs(context, task, [*[""] * measure_base, *(t.settings for t in left)], finer))
        committer = _open_committer(context, open_listener, console)
        base = _measure_base(queue) if measure_base else None
        source = _source(committer, finer)
        out = OUT_PER_SLOT * slots.num_slots if source is None else slots.num_slots
        first = [t.run_id for t in left] if source is None else source.upcoming(out)
        queue.enqueue.remote(first[:out])  # these runs begin before Tune starts, whose trials then follow them
        if first or measure_base:
            nodes = "adding nodes, " if spec.cluster.autoscaling else ""
            _wait_for_workers(console, f"{nodes}starting the workers", queue, slots.num_slots)
        with _progress(context, left, console, queue, searched=source is not None) as progress:
            committer.attach(queue, base, progress)
            tuning = TuneRun(
                queue=queue, committer=committer, folder=folder, num_slots=slots.num_slots, trials=context.trials,
                score=spec.select.score, shown=shown, callbacks=guarded,
            )  # fmt: skip
            if source is not None:
                tuning.run(source, len(left), close=lambda given: ray.get(queue.close.remote(given + measure_base)))
            else:
                committer.hand_out(first[out:])
                _run_list(tuning, first, slots.num_slots)
            committer.base()
    return committer


def _open_committer(context: SweepContext, open_listener: Callable[[], RunListener], console: Console) -> Committer:
    """Return a committer whose listener is told that further runs may follow."""
    with phase(console, "opening the tracking store"):
        listener = open_listener()
        listener.reopened()
        return Committer(context=context, listener=listener)


def _run_list(tuning: TuneRun, run_ids: list[str], num_slots: int) -> None:
    """Run a list that is known from the start, in rounds of Tune."""
    for of_round in rounds(run_ids, num_slots):
        tuning.run(ListSource(of_round), len(of_round))


def _wait_for_workers(console: Console, what: str, queue: ActorProxy[TrialQueue], num_slots: int) -> None:
    """Wait until a worker has taken a run or no slot is left, and say what the workers do meanwhile."""
    lease = queue.first_lease.remote()
    follow_start(
        console,
        what,
        poll=lambda: ray.get(queue.status.remote()),
        wait=lambda seconds: bool(ray.wait([lease], timeout=seconds)[0]),
        slots=num_slots,
    )
    ray.get(lease)  # raises what ended the wait, if it failed


def _worker_inputs(
    context: SweepContext, task: Task, settings: Sequence[str], finer: FinerScore | None
) -> WorkerInputs:
    """Load the base model for the runs with these settings, and return what every worker needs."""
    spec = context.spec if finer is None else finer.in_training(context.spec)
    sweep_id = context.plan.sweep_id
    return WorkerInputs(
        spec=spec,
        task=task,
        models=sharing.base_models(
            [spec.of_run(own).model for own in dict.fromkeys(settings)], new_tokens=task.facts().num_new_tokens
        ),
        trials=context.trials,
        accounted={run_id: context.plan.privacy[run_id].mechanism.event for run_id in context.trials},
        first=settings[0],
        sweep_id=sweep_id,
        folder=context.folder.path.resolve(),
        bucket=bucket_of(spec.cluster.exchange, sweep_id),
        key=context.folder.key(),
    )


def _measure_base(queue: ActorProxy[TrialQueue]) -> ObjectRef[RunResult]:
    """Let a worker measure the untrained base model, and return the reference to its result."""
    queue.enqueue.remote([BASE_RUN])
    return queue.outcome.remote(BASE_RUN)


def _progress(
    context: SweepContext, left: list[TrialPlan], console: Console, queue: ActorProxy[TrialQueue], *, searched: bool
) -> SweepProgress:
    """Return the display of the sweep's progress."""
    names = {trial.run_id: run_name(asdict(trial)) for trial in context.trials.values()}
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
    """Return the runs of the first pass and the budget of the further runs; None without adaptive seeds."""
    seeds = context.spec.seeds
    if not isinstance(seeds, AdaptiveSeeds):
        return None
    first = [trial for trial in context.trials.values() if trial.seed in seeds.first_labels]
    cost = sum(trial.batch_size * trial.num_steps for trial in first)
    return FirstPass(run_ids=frozenset(t.run_id for t in first), further_cost=seeds.max_cost_share * cost)


def _early_stopping(context: SweepContext) -> EarlyStopping | None:
    """Return what stops runs early, with the results from before a resume; None if no run stops early."""
    spec = context.spec
    if spec.stopping is None:
        return None
    early_stopping = EarlyStopping(
        min_finished=spec.stopping.min_finished,
        slack=spec.stopping.slack,
        min_utility_gain=spec.select.min_utility_gain,
        max_loss=spec.select.max_loss,
    )
    for run_id in [BASE_RUN, *context.trials]:
        if (result := context.folder.result(run_id)) is not None:
            early_stopping.learn(result)
    return early_stopping


def _source(committer: Committer, finer: FinerScore | None) -> StepwiseSource | None:
    """Return the source of a search's runs or of adaptive seeds; None if every run is trained or these have ended."""
    context = committer.context
    spec, folder, trials = context.spec, context.folder, list(context.trials.values())
    if isinstance(spec.seeds, AdaptiveSeeds) and folder.seeds_end() is None:
        return SeedSource.of(context, committer.base, finer)
    if spec.space.search is None or folder.search_end() is not None:
        return None
    return SearchSource(
        spec=spec, folder=folder, trials=trials, search=spec.space.search.params, base_fn=committer.base
    )

"""Train the runs that have no result: start workers, hand out runs, commit results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import ray
from ray.tune import Callback
from rich.console import Console

from raydp.models import sharing
from raydp.models.sharing import Loaded
from raydp.plugins.registries import service
from raydp.search_spaces.settings import NO_SETTINGS, Settings
from raydp.spec.sections import AdaptiveSeeds
from raydp.sweep.engine.adaptive import StepwiseSource
from raydp.sweep.engine.committer import Committer, Committers
from raydp.sweep.engine.context import SweepContext, SweepInputs, WorkerInputs
from raydp.sweep.engine.further_seeds import BeforeFurtherSeeds, SeedSource
from raydp.sweep.engine.leases.keys import split_key
from raydp.sweep.engine.listeners import RunListener
from raydp.sweep.engine.progress import FirstPass, SweepProgress, follow_start
from raydp.sweep.engine.ray_start import ray_phase, start_ray
from raydp.sweep.engine.slots import Slots
from raydp.sweep.engine.stopping import EarlyStopping
from raydp.sweep.engine.tune.callbacks import GuardedCallback, ending
from raydp.sweep.engine.tune.rounds import KnownSource, TuneRun
from raydp.sweep.search import constraints_of
from raydp.sweep.store.folder import BASE_RUN
from raydp.sweep.store.state import DriverProgress
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


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is left to train of one sweep.

    Attributes:
        left: the runs without a result.
        listener_fn: opens the listener of committed runs.
        before: the step before further seeds.
        shown: whether step metrics, utility and scores go through Tune.
    """

    context: SweepContext
    task: Task
    left: list[TrialPlan]
    listener_fn: Callable[[], RunListener]
    before: BeforeFurtherSeeds
    shown: bool = True

    @property
    def measures_base(self) -> bool:
        """Return whether the untrained model is still to be measured."""
        return not self.context.folder.is_finished(BASE_RUN)

    @property
    def is_open(self) -> bool:
        """Return whether a run, or the measurement of the untrained model, is left."""
        return bool(self.left) or (bool(self.context.trials) and self.measures_base)

    def compute(self) -> dict[str, int]:
        """Return key in the queue -> compute C of each run that is left."""
        return {self.context.key(t.run_id): t.batch_size * t.num_steps for t in self.left}


SourceFn = Callable[[Sequence[Training], Sequence[Committer]], KnownSource | None]
"""Returns what chooses the next run; None if every run that is left is trained."""


def train(
    trainings: Sequence[Training],
    console: Console,
    *,
    source_fn: SourceFn,
    callbacks: Sequence[Callback] = (),
) -> list[Committer]:
    """Run what is left of sweeps on one cluster, the largest runs first if there are several.

    The workers start while the base model is loaded and the tracking store is opened.

    Args:
        trainings: at least one; their specs have equal sections `cluster`.
        source_fn: returns the source of the runs; of one sweep it is `own_source`.
        callbacks: the user's callbacks of Ray Tune.

    Returns:
        The committers, in the order of the trainings.
    """
    contexts, compute = [each.context for each in trainings], in_order(trainings)
    cluster, guarded = contexts[0].spec.cluster, _guarded(contexts, callbacks)
    bases = _bases(trainings)
    to_measure = list(dict.fromkeys(bases.values()))
    with phase(console, ray_phase(cluster)):
        start_ray(cluster)
    # The workers start and import torch while this process loads the base model. A logger may have
    # actors of its own, so it hears of the end while Ray runs.
    with _slots(contexts, len(compute) + len(to_measure)) as slots, ending(guarded):
        queue = slots.queue
        # The workers read the base model from Ray's object store: one copy on each node.
        with phase(console, "loading the base model"):
            slots.share(_worker_inputs(trainings))
        committers = [_open_committer(each, console) for each in trainings]
        # A source chooses each run from the results so far, so no more runs than slots begin early.
        source = source_fn(trainings, committers)
        out = OUT_PER_SLOT * slots.num_slots if source is None else slots.num_slots
        # These runs begin before Tune starts, whose trials then follow them. Of a list, all enter.
        known = list(compute) if source is None else source.upcoming(out)
        queue.enqueue.remote([*to_measure, *known], len(to_measure) + out)
        measured = {key: queue.outcome.remote(key) for key in to_measure}
        if to_measure or known:
            _wait_for_workers(console, slots, grows=cluster.autoscaling)
        display = _progress(trainings, console, queue, searched=source is not None)
        joint = Committers(committers)
        with _keeping(slots, joint), display as progress:
            # Train: every run is a trial of Tune, from the source or from the list of all runs.
            for each in committers:
                base = bases.get(each.context.queue_name)
                each.attach(queue, base, None if base is None else measured[base], progress)
            tuning = _tuning(trainings, slots, joint, guarded)
            tuning.train(list(compute), source, len(to_measure))
            # If no run is left, no commit has waited for the untrained model's measurement.
            joint.bases()
    return committers


def _tuning(
    trainings: Sequence[Training],
    slots: Slots,
    committers: Committers,
    callbacks: Sequence[GuardedCallback],
) -> TuneRun:
    """Return what the rounds of Tune share."""
    contexts = [each.context for each in trainings]
    return TuneRun(
        queue=slots.queue,
        committers=committers,
        trials={c.key(run_id): trial for c in contexts for run_id, trial in c.trials.items()},
        score=contexts[0].spec.select.score,
        folder=contexts[0].folder.ray,
        num_slots=slots.num_slots,
        shown=all(each.shown for each in trainings),
        callbacks=callbacks,
    )


def in_order(trainings: Sequence[Training]) -> dict[str, int]:
    """Return key -> compute of all runs that are left, in the order in which they begin.

    Of one sweep it is the plan's. Of several, runs on equal data and models follow each other,
    because others set the model up anew; the largest runs come first.
    """
    compute = {key: cost for each in trainings for key, cost in each.compute().items()}
    if len(trainings) == 1:
        return compute
    group, total = dict[str, object](), Counter[object]()
    for each in trainings:
        kind = (id(each.task), each.context.spec.model.model_dump_json())
        group |= dict.fromkeys(each.compute(), kind)
        total[kind] += sum(each.compute().values())
    place = {kind: number for number, (kind, _) in enumerate(total.most_common())}
    return dict(sorted(compute.items(), key=lambda run: (place[group[run[0]]], -run[1])))


def _bases(trainings: Sequence[Training]) -> dict[str, str]:
    """Return sweep -> key of the run that measures its untrained model, if it is still to be done.

    Sweeps on equal data and models with equal scores share one measurement, unless they stop runs
    early, by what their own queue has learnt.
    """
    keys, bases = dict[object, str](), dict[str, str]()
    for each in trainings:
        if each.measures_base:
            spec = each.context.spec
            what = spec.model_dump_json(include={"model", "scores"})
            name = each.context.queue_name
            alone = "" if spec.stopping is None else name
            same = (id(each.task), what, spec.seed_labels[0], alone)
            bases[name] = keys.setdefault(same, each.context.key(BASE_RUN))
    return bases


def _guarded(
    contexts: Sequence[SweepContext], callbacks: Sequence[Callback]
) -> list[GuardedCallback]:
    """Guard the user's callbacks, and the callbacks that write the run logs."""
    for context in contexts:
        if context.spec.tracking.loggers:
            run_logs = service("run_logs", needed_by="tracking.loggers")
            callbacks = (*run_logs(context.spec.tracking, context.folder), *callbacks)
    return [GuardedCallback(callback) for callback in callbacks]


def _slots(contexts: Sequence[SweepContext], num_runs: int) -> Slots:
    """Return the slots of the workers for a number of runs."""
    stopping = {c.queue_name: found for c in contexts if (found := _early_stopping(c)) is not None}
    first = contexts[0]
    return Slots(
        first.spec.cluster, expected=num_runs, storage=first.folder.ray, early_stopping=stopping
    )


def _open_committer(training: Training, console: Console) -> Committer:
    """Return a committer whose listener is told that further runs may follow."""
    with phase(console, "opening the tracking store"):
        listener = training.listener_fn()
        listener.reopened()
        return Committer(context=training.context, listener=listener)


@contextmanager
def _keeping(slots: Slots, committers: Committers) -> Iterator[None]:
    """At an interruption, let runs that train save their state, and commit the ended runs."""
    try:
        yield
    except KeyboardInterrupt:
        committers.keep(slots.pause())
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


def _worker_inputs(trainings: Sequence[Training]) -> WorkerInputs:
    """Load the base models of the runs that are left, and return what every worker needs."""
    loaded: Loaded = {}
    sweeps, first = dict[str, SweepInputs](), list[tuple[str, Settings]]()
    for each in trainings:
        settings = [*[NO_SETTINGS] * each.measures_base, *(t.settings for t in each.left)]
        first += [(each.context.queue_name, settings[0])] if settings else []
        sweeps[each.context.queue_name] = _sweep_inputs(each, settings, loaded)
    return WorkerInputs(sweeps=sweeps, first=first[0])


def _sweep_inputs(training: Training, settings: Sequence[Settings], loaded: Loaded) -> SweepInputs:
    """Return what every worker needs for the runs of a sweep with these settings."""
    context, task = training.context, training.task
    spec = training.before.in_training(context.spec)
    sweep_id, exchange = context.plan.sweep_id, exchange_at(spec.cluster.exchange)
    return SweepInputs(
        spec=spec,
        task=task,
        models=sharing.base_models(
            [spec.of_run(own).model for own in dict.fromkeys(settings)],
            new_tokens=task.facts().num_new_tokens,
            loaded=loaded,
        ),
        trials=context.trials,
        accounted={
            run_id: context.plan.privacy[run_id].mechanism.event for run_id in context.trials
        },
        sweep_id=sweep_id,
        folder=context.folder.path.resolve(),
        exchange=None if exchange is None else exchange.of_sweep(sweep_id),
        key=context.folder.key(),
    )


def _progress(
    trainings: Sequence[Training],
    console: Console,
    queue: ActorProxy[TrialQueue],
    *,
    searched: bool,
) -> SweepProgress:
    """Return the display of the progress."""
    contexts, names = [each.context for each in trainings], dict[str, str]()
    for context in contexts:
        of = f"{context.queue_name}: " if context.queue_name else ""
        names[context.key(BASE_RUN)] = f"{of}the untrained base model"
        names |= {context.key(t.run_id): f"{of}{t}" for t in context.trials.values()}

    def record(progress: DriverProgress | None) -> None:
        for context in contexts:
            own = None if progress is None else _of_sweep(progress, context.queue_name)
            with suppress(OSError):  # a full disk must not keep the others from being told
                context.folder.set_progress(own)

    return SweepProgress(
        console,
        in_order(trainings),
        sum(len(each.context.trials) - len(each.left) for each in trainings),
        poll=lambda: ray.get(queue.status.remote()),
        names=names,
        searched=searched,
        first_pass=_first_pass(contexts),
        record=record,
    )


def _of_sweep(progress: DriverProgress, name: str) -> DriverProgress:
    """Return the progress with the running runs of one sweep alone."""
    split = {split_key(key): at for key, at in progress.running.items()}
    running = {run_id: at for (sweep, run_id), at in split.items() if sweep == name}
    return replace(progress, running=running)


def _first_pass(contexts: Sequence[SweepContext]) -> FirstPass | None:
    """Return the first pass and the budget of further runs; None without adaptive seeds."""
    run_ids, further = set[str](), 0.0
    for context in contexts:
        seeds = context.spec.seeds
        if not isinstance(seeds, AdaptiveSeeds):
            return None
        first = [trial for trial in context.trials.values() if trial.seed in seeds.first_labels]
        run_ids |= {context.key(t.run_id) for t in first}
        further += seeds.max_cost_share * sum(t.batch_size * t.num_steps for t in first)
    return FirstPass(run_ids=frozenset(run_ids), further_cost=further)


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


def own_source(
    trainings: Sequence[Training], committers: Sequence[Committer]
) -> StepwiseSource | None:
    """Return the source that chooses the next run of one sweep; None if every run is trained.

    A search and adaptive seeds have a source until they have ended.
    """
    (training,), (committer,) = trainings, committers
    context = training.context
    spec, folder = context.spec, context.folder
    if isinstance(spec.seeds, AdaptiveSeeds) and folder.seeds_end() is None:
        return SeedSource.of(context, committer.base, training.before)
    if spec.space.search is None or folder.search_end() is not None:
        return None
    source_fn = service("search_source", needed_by="space.search")
    source: StepwiseSource = source_fn(context, spec.space.search.params, committer.base)
    return source

"""The driver of a sweep: train by Tune, commit and track results, select at the end."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from raydp.plugins.registries import service
from raydp.spec.document import SweepSpec
from raydp.sweep.ending.finish import NOT_FINISHED, Finish, MeasuringEnding
from raydp.sweep.ending.result import SweepResult
from raydp.sweep.engine.adaptive import SharedQuestion
from raydp.sweep.engine.committer import Committer
from raydp.sweep.engine.context import ReleaseBudget, SweepContext
from raydp.sweep.engine.further_seeds import BeforeFurtherSeeds, before_further_seeds
from raydp.sweep.engine.training import SourceFn, Training, own_source, train
from raydp.sweep.engine.trial import prefix_folder
from raydp.sweep.planning.inputs import KnownInputs
from raydp.sweep.planning.plan import SweepPlan, drawn, plan_to_keep
from raydp.sweep.planning.planned import PlannedSweep
from raydp.sweep.planning.resume_check import check_kept
from raydp.sweep.planning.start import check_start
from raydp.sweep.policy import Ending, policy_of
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.measurements import write_counts
from raydp.sweep.store.points import counts
from raydp.system.cache import remove_abandoned
from raydp.system.interruption import Interrupted
from raydp.tasks.task import Task, TaskFacts

if TYPE_CHECKING:
    from raydp.sweep.engine.tune.callbacks import Callback

LOGGER = logging.getLogger(__name__)
UNBOUND = (
    "an earlier version of raydp started this sweep and did not bind its key to it. The present "
    "key is bound from now on. If sweep.key was ever replaced, the records of the runs before it "
    "are wrong: start a new sweep"
)


@dataclass(frozen=True, kw_only=True)
class StartedSweep:
    """A sweep whose folder is open."""

    context: SweepContext
    task: Task
    ending: Ending
    before: BeforeFurtherSeeds
    tell: Callable[[SweepResult | None], object]


def run_sweep(
    spec: SweepSpec, *, resume: bool, console: Console, callbacks: Sequence[Callback] = ()
) -> SweepResult:
    """Run a sweep to its end, or resume it.

    Args:
        spec: the sweep.
        resume: resume a sweep that was started before.
        console: where progress is shown.
        callbacks: the user's callbacks of Ray Tune. They see every run's config, step metrics,
            utility and scores.

    Raises:
        ValueError: spec, model, data or folder is wrong, or callbacks would see runs that
            may not be shown. In this case nothing was trained.
        Interrupted: Ctrl-C or SIGTERM came. The folder is in order, and the sweep can be resumed.
    """
    # Callbacks would carry the runs out of the folder.
    if callbacks:
        spec.privacy.require_ignored_tuning(
            "with callbacks", "Remove the callbacks: they would see the runs that are not released."
        )
    planned = planned_sweep(spec, resume=resume, console=console)
    print_plan(planned.plan, console)
    with running(planned, resume=resume, console=console) as started:
        (end,) = run_together([started], console, callbacks=callbacks)
    if isinstance(end, Exception):
        raise end
    return end


def planned_sweep(
    spec: SweepSpec, *, resume: bool, console: Console, known: KnownInputs | None = None
) -> PlannedSweep:
    """Check and plan a sweep, as `run_sweep` does before it trains.

    Raises:
        ValueError: it cannot be run.
    """
    # Check what can be checked fast, before anything is read or written.
    check_start(spec, resume=resume)
    if resume:
        SweepFolder.resume(spec)  # refuses a changed spec before the data are read
    return PlannedSweep.of(spec, console, known)


@contextmanager
def running(
    planned: PlannedSweep,
    *,
    resume: bool,
    console: Console,
    queue_name: str = "",
    question: SharedQuestion | None = None,
) -> Iterator[StartedSweep]:
    """Open or create the folder of a sweep. The lock keeps every other driver out until the end.

    Args:
        queue_name: its name in a queue that it shares with other sweeps, without a slash.
        question: the question that it shares with them.
    """
    spec, task, weight_hash = planned.spec, planned.task, planned.weight_hash
    with SweepFolder.running(spec):
        folder = _opened(spec, planned.plan, weight_hash, resume=resume)
        try:
            write_counts(folder, task.secrets())
            # Train what the privacy records say, even if a file was changed before a resume.
            check_kept(folder.plan(), drawn(planned.plan, spec, weight_hash, folder.key()), spec)
            if folder.bind_key():
                LOGGER.warning("%s", UNBOUND)
            if loggers := spec.tracking.loggers:
                log_commands = service("log_commands", needed_by="tracking.loggers")
                for command in log_commands(folder, loggers):
                    console.print(f"run logs: {command}", markup=False, soft_wrap=True)
            with _budget_of(spec, folder, task.facts()) as budget:
                context = SweepContext(
                    spec=spec,
                    folder=folder,
                    facts=task.facts(),
                    weight_hash=weight_hash,
                    queue_name=queue_name,
                    question=question,
                    budget=budget,
                )
                tell = _announcer(spec, folder)
                try:
                    ending, before = ending_of(context), before_further_seeds(context, task)
                except Exception:
                    tell(None)
                    raise
                yield StartedSweep(
                    context=context, task=task, ending=ending, before=before, tell=tell
                )
        except Exception:
            # Nothing was trained, so the name can be used again.
            if not resume and folder.is_untouched():
                folder.remove()
            raise


def _budget_of(
    spec: SweepSpec, folder: SweepFolder, facts: TaskFacts
) -> AbstractContextManager[ReleaseBudget | None]:
    """Enter the sweep into the ledger of its store, and in the end what it has released."""
    needed_by = None if spec.privacy.budget is None else "privacy.budget"
    entered = service("release_budget", needed_by=needed_by)
    # A model that is only measured is never released.
    if entered is None or facts.only_measured is not None:
        return nullcontext()
    budget: AbstractContextManager[ReleaseBudget] = entered(spec, folder, facts)
    return budget


def print_plan(plan: SweepPlan, console: Console, said: set[str] | None = None) -> None:
    """Tell the user about the data, the warnings and what was left out, before the training.

    What was `said` before of another sweep is not said again.
    """
    said = set() if said is None else said
    for note in plan.facts.sentences():
        if note not in said:
            console.print(note, markup=False)
    for warning in plan.warnings:
        if str(warning) not in said:
            LOGGER.warning("%s", warning)
    for rejected in plan.rejected:
        console.print(f"left out: {rejected.configuration}: {rejected.reason}", markup=False)
    if plan.note is not None and plan.note not in said:
        console.print(plan.note, markup=False)
    said.update(plan.facts.sentences(), map(str, plan.warnings), [plan.note or ""])


def _opened(spec: SweepSpec, plan: SweepPlan, weight_hash: str, *, resume: bool) -> SweepFolder:
    """Open or create the folder. Some policies draw the runs under the key, which it makes."""
    if not resume:
        sweep_id = secrets.token_hex(8)
        return SweepFolder.create(
            spec, lambda key: plan_to_keep(drawn(plan, spec, weight_hash, key), sweep_id)
        )
    # Open it again, because another refused driver may have removed the folder.
    folder = SweepFolder.resume(spec)
    now = drawn(plan, spec, weight_hash, folder.key())
    folder.continue_with(spec, plan_to_keep(now, folder.plan().sweep_id))
    return folder


def ending_of(context: SweepContext) -> Ending:
    """Return `MeasuringEnding` if models are only measured, else the ending of the policy."""
    # First: a model that is only measured is never released.
    if (reason := context.facts.only_measured) is not None:
        return MeasuringEnding(context, reason)
    return policy_of(context.spec).ending(context)


def run_together(
    sweeps: Sequence[StartedSweep],
    console: Console,
    *,
    callbacks: Sequence[Callback] = (),
    source_fn: SourceFn = own_source,
) -> list[SweepResult | Exception]:
    """Run sweeps that have folders, with one queue on one cluster.

    Args:
        sweeps: at least one. Of several, the sections `cluster` and `select` are equal.
        callbacks: as for `run_sweep`.
        source_fn: see `train`.

    Returns:
        The result of each sweep, or the error that ended it.

    Raises:
        Interrupted: the user interrupted it anywhere. It carries the result of the sweep; of
            several, a list with those that had not ended.
    """
    ends = list[SweepResult | Exception]()
    try:
        try:
            failed = _train(sweeps, console, callbacks, source_fn)
        finally:
            # Hidden states that a stopped worker has not finished. Finished shares stay for a day,
            # for a resume.
            remove_abandoned(prefix_folder())
            if (remove_shares := service("remove_abandoned_shares", needed_by=None)) is not None:
                remove_shares(prefix_folder())
        # Each sweep ends by itself. An error of one does not keep the others from ending.
        for each in sweeps:
            try:
                if (error := failed.get(each.context.queue_name)) is not None:
                    raise error
                ends.append(_result(each, each.ending.finish(), interrupted=False))
            except Exception as error:  # noqa: BLE001 - the caller raises or tells it
                ends.append(error)
            each.tell(None if isinstance(ends[-1], Exception) else ends[-1])
    except KeyboardInterrupt as stop:
        # After the selection of a sweep, an interruption carries it.
        end, left = getattr(stop, "partial", None), sweeps[min(len(ends), len(sweeps) - 1) :]
        stopped = [_result(each, NOT_FINISHED, interrupted=True) for each in left]
        if isinstance(end, Finish):
            stopped[0] = _result(left[0], end, interrupted=True)
        for each, result in zip(left, stopped, strict=True):
            each.tell(result)
        raise Interrupted(stopped[0] if len(sweeps) == 1 else stopped) from None
    except Exception:
        for each in sweeps:
            each.tell(None)
        raise
    return ends


def _result(sweep: StartedSweep, end: Finish, *, interrupted: bool) -> SweepResult:
    """Return the result of a sweep that has ended or was interrupted."""
    folder = sweep.context.folder
    numbers = counts(folder)
    return SweepResult(folder=folder.path, counts=numbers, interrupted=interrupted, **vars(end))


def _announcer(spec: SweepSpec, folder: SweepFolder) -> Callable[[SweepResult | None], object]:
    """Return what tells the webhook, if there is one, how the sweep has ended."""
    if (webhook := spec.tracking.webhook) is None:
        return lambda result: None
    announce = service("announce", needed_by="tracking.webhook")
    return partial(announce, webhook, spec.name, folder.disclosure())


def _train(
    sweeps: Sequence[StartedSweep],
    console: Console,
    callbacks: Sequence[Callback],
    source_fn: SourceFn,
) -> dict[str, Exception]:
    """Train what is left, and deliver what the listeners have missed.

    If the first pass of adaptive seeds leaves the decision open, the step before further seeds
    comes first, and training goes on with the runs that its values ask for.

    Returns:
        Name in the queue -> the error that ended a sweep. The others have gone on.
    """
    failed = dict[str, Exception]()

    def settled(sweep: StartedSweep, committer: Committer | None, *, retry: bool = False) -> bool:
        """Deliver what was trained, if anything, and return whether further runs are asked for."""
        context = sweep.context
        try:
            if committer is not None:
                # No run is in progress: remove what dead workers left, and deliver what was missed.
                committer.clear_store()
                committer.listener.deliver_missing(list(context.trials.values()))
            return sweep.before.settle(context, sweep.task, console, retry=retry)
        except Exception as error:  # noqa: BLE001 - it ends this sweep alone
            failed[context.queue_name] = error
            return False

    # A resume may only have to measure, or to end the seeds.
    for each in sweeps:
        settled(each, None, retry=True)
    # Train, deliver and take the step before further seeds, until no further run is asked for.
    again = [each for each in sweeps if each.context.queue_name not in failed]
    while again:
        trainings = [training for each in again if (training := _left(each)).is_open]
        committers = dict[str, Committer]()
        if trainings:
            trained = train(trainings, console, callbacks=callbacks, source_fn=source_fn)
            committers = {each.context.queue_name: each for each in trained}
        reopened = False
        for each in again:
            committer = committers.get(each.context.queue_name) or Committer(
                context=each.context, listener=each.ending.listener
            )
            reopened |= settled(each, committer)
        # What one sweep has measured may ask for runs of others, with which it shares a question.
        again = [each for each in again if reopened and each.context.queue_name not in failed]
    return failed


def _left(sweep: StartedSweep) -> Training:
    """Return what is left to train of a sweep."""
    context, ending = sweep.context, sweep.ending
    folder = context.folder
    skipped = folder.skipped_runs()
    left = [t for t in context.trials.values() if not folder.has_ended(t.run_id)]
    return Training(
        context=context,
        task=sweep.task,
        left=[] if ending.is_over() else [t for t in left if t.run_id not in skipped],
        listener_fn=lambda: ending.listener,
        before=sweep.before,
        shown=folder.disclosure().shows_runs,
    )

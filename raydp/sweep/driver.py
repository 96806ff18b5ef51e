"""The driver of a sweep: train by Tune, commit and track results, select at the end."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from raydp.plugins.registries import service
from raydp.spec.document import SweepSpec
from raydp.sweep.ending.finish import NOT_FINISHED, Finish, MeasuringEnding
from raydp.sweep.ending.result import SweepResult
from raydp.sweep.engine.committer import Committer
from raydp.sweep.engine.context import SweepContext
from raydp.sweep.engine.further_seeds import before_further_seeds
from raydp.sweep.engine.training import train
from raydp.sweep.engine.trial import prefix_folder
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import SweepPlan, drawn, make_plan, phase_of, plan_to_keep
from raydp.sweep.planning.resume_check import check_kept
from raydp.sweep.planning.start import check_start
from raydp.sweep.policy import Ending, policy_of
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.measurements import write_counts
from raydp.sweep.store.points import counts
from raydp.system.cache import remove_abandoned
from raydp.system.interruption import Interrupted
from raydp.tasks.task import Task

if TYPE_CHECKING:
    from raydp.sweep.engine.tune.callbacks import Callback

LOGGER = logging.getLogger(__name__)
UNBOUND = (
    "an earlier version of raydp started this sweep and did not bind its key to it. The present "
    "key is bound from now on. If sweep.key was ever replaced, the records of the runs before it "
    "are wrong: start a new sweep"
)


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
    # Check what can be checked fast, before anything is read or written.
    check_start(spec, resume=resume)
    if resume:
        SweepFolder.resume(spec)  # refuses a changed spec before the data are read
    # Plan: read the data, calibrate the noise of every configuration, and name every run.
    with console.status("reading data and checking the model"):
        task, weight_hash = build_task(spec)
    with console.status(what := phase_of(spec)) as status:
        plan = make_plan(
            spec,
            task.facts(),
            weight_hash,
            progress=lambda k, n: status.update(f"{what} {k}/{n}"),
        )
    _print_plan(plan, console)
    # Open or create the folder. The lock keeps every other driver out until the end.
    with SweepFolder.running(spec):
        folder = _opened(spec, plan, weight_hash, resume=resume)
        try:
            write_counts(folder, task.secrets())
            # Train what the privacy records say, even if a file was changed before a resume.
            check_kept(folder.plan(), drawn(plan, spec, weight_hash, folder.key()), spec)
            if folder.bind_key():
                LOGGER.warning("%s", UNBOUND)
            if loggers := spec.tracking.loggers:
                log_commands = service("log_commands", needed_by="tracking.loggers")
                for command in log_commands(folder, loggers):
                    console.print(f"run logs: {command}", markup=False, soft_wrap=True)
            context = SweepContext(
                spec=spec, folder=folder, facts=task.facts(), weight_hash=weight_hash
            )
            return _run(context, task, console, callbacks)
        except Exception:
            # Nothing was trained, so the name can be used again.
            if not resume and folder.is_untouched():
                folder.remove()
            raise


def _print_plan(plan: SweepPlan, console: Console) -> None:
    """Tell the user about the data, the warnings and what was left out, before the training."""
    for note in plan.facts.sentences():
        console.print(note, markup=False)
    for warning in plan.warnings:
        LOGGER.warning("%s", warning)
    for rejected in plan.rejected:
        console.print(f"left out: {rejected.configuration}: {rejected.reason}", markup=False)
    if plan.note is not None:
        console.print(plan.note, markup=False)


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


def _run(
    context: SweepContext, task: Task, console: Console, callbacks: Sequence[Callback]
) -> SweepResult:
    """Run a sweep that has a folder.

    Raises:
        Interrupted: the user interrupted it anywhere.
    """
    folder, spec = context.folder, context.spec
    tell = _announcer(spec, folder)

    def result(end: Finish, *, interrupted: bool) -> SweepResult:
        numbers = counts(folder)
        return SweepResult(folder=folder.path, counts=numbers, interrupted=interrupted, **vars(end))

    try:
        finished = _train_and_finish(context, task, console, callbacks)
    except KeyboardInterrupt as stop:
        # After the selection, an interruption carries it.
        end = getattr(stop, "partial", None)
        stopped = result(end if isinstance(end, Finish) else NOT_FINISHED, interrupted=True)
        tell(stopped)
        raise Interrupted(stopped) from None
    except Exception:
        tell(None)
        raise
    finally:
        # Hidden states that a stopped worker has not finished. Finished shares stay for a day, for
        # a resume.
        remove_abandoned(prefix_folder())
        if (remove_shares := service("remove_abandoned_shares", needed_by=None)) is not None:
            remove_shares(prefix_folder())
    tell(ended := result(finished, interrupted=False))
    return ended


def _announcer(spec: SweepSpec, folder: SweepFolder) -> Callable[[SweepResult | None], object]:
    """Return what tells the webhook, if there is one, how the sweep has ended."""
    if (webhook := spec.tracking.webhook) is None:
        return lambda result: None
    announce = service("announce", needed_by="tracking.webhook")
    return partial(announce, webhook, spec.name, folder.disclosure())


def _train_and_finish(
    context: SweepContext, task: Task, console: Console, callbacks: Sequence[Callback]
) -> Finish:
    """Train what is left, deliver what the listener has missed, and end the sweep.

    If the first pass of adaptive seeds leaves the decision open, the step before further seeds
    comes first, and training goes on with the runs that its values ask for.
    """
    folder, trials = context.folder, list(context.trials.values())
    ending = ending_of(context)
    before = before_further_seeds(context, task)
    # A resume may only have to measure, or to end the seeds.
    before.settle(context, task, console, retry=True)
    # Train, deliver and take the step before further seeds, until no further run is asked for.
    while True:
        skipped = folder.skipped_runs()
        left = [t for t in trials if not folder.has_ended(t.run_id) and t.run_id not in skipped]
        if ending.is_over():
            left = []
        # The untrained model is measured even if no run is left.
        if trials and (left or not folder.is_finished(BASE_RUN)):
            committer = train(
                context,
                task,
                left,
                console,
                open_listener=lambda: ending.listener,
                before=before,
                shown=folder.disclosure().shows_runs,
                callbacks=callbacks,
            )
        else:
            committer = Committer(context=context, listener=ending.listener)
        # No run is in progress: remove what dead workers left, and deliver what was missed.
        committer.clear_store()
        committer.listener.deliver_missing(trials)
        if not before.settle(context, task, console):
            return ending.finish()

"""The end of adaptive seeds, after a finer measurement if the decision needs one.

The finer measurement helps where measurements, and not seeds, are what a decision lacks.
"""

from __future__ import annotations

import logging

from rich.console import Console

from raydp.spec.sections import AdaptiveSeeds
from raydp.sweep.engine.context import SweepContext
from raydp.sweep.engine.further_seeds import SeedSource
from raydp.sweep.engine.measuring.finer import FinerScore
from raydp.sweep.engine.measuring.measurement import BegunMeasurement, log_to_mlflow, measure
from raydp.sweep.store.folder import BASE_RUN
from raydp.tasks.base import Task

LOGGER = logging.getLogger(__name__)


def settle_seeds(
    context: SweepContext,
    task: Task,
    finer: FinerScore | None,
    console: Console,
    *,
    retry: bool = False,
) -> bool:
    """End adaptive seeds if the results ask for no further run.

    A finer measurement that has begun is finished before.

    Nothing happens in other sweeps, and before the first pass has ended.

    Args:
        retry: whether models that could not be measured before are tried again.

    Returns:
        Whether models were measured again, so that further runs may be asked for.

    Raises:
        KeyboardInterrupt: the user interrupts. A resume measures the models that are left.
    """
    # Runs or the recorded end rely on finer values that the folder has lost: measure again.
    if finer is not None and finer.is_lost():
        context.folder.seeds_end.remove()
        finer.begin()
    _end_seeds(context, finer)  # nothing happens while a measurement is open
    if finer is None or not finer.is_begun():
        return False
    was_open, begun, failure = finer.is_open(), _begun(context, finer), finer.measurements.failure
    done = begun.finished()
    # Measure models without a value. Models that failed before are tried again only on request.
    if any(name not in done and (retry or failure(name) is None) for name in begun.seeds):
        _measure(context, task, finer, begun, console)
        # they may have ended without the values of models that could not be measured
        context.folder.seeds_end.remove()
    finer.measurements.complete()
    _, note = log_to_mlflow(context.folder, context.spec, begun.trained(), [begun], console)
    if note is not None:
        LOGGER.warning("%s", note)
    _end_seeds(context, finer)
    return was_open


def _end_seeds(context: SweepContext, finer: FinerScore | None) -> None:
    """End the seeds, or begin the finer measurement, if the results ask for no further run."""
    folder = context.folder
    if isinstance(context.spec.seeds, AdaptiveSeeds) and folder.seeds_end() is None:
        SeedSource.of(context, lambda: folder.result(BASE_RUN), finer).next_run()


def _begun(context: SweepContext, finer: FinerScore) -> BegunMeasurement:
    """Return the measurement that the source of the seeds has begun."""
    # The untrained model is measured with the first seed.
    first = context.spec.seed_labels[0]
    seeds = {
        name: first if name == BASE_RUN else context.trials[name].seed for name in finer.models()
    }
    return BegunMeasurement(
        request=finer.request, measurements=finer.measurements, seeds=seeds, runs=seeds
    )


def _measure(
    context: SweepContext, task: Task, finer: FinerScore, begun: BegunMeasurement, console: Console
) -> None:
    """Measure the models that are left.

    One that cannot be measured keeps the value of its training.
    """
    console.print(
        f"the first pass leaves the decision open: measuring {finer.own.name} again with "
        f"{finer.in_words()}",
        markup=False,
    )
    # `measure` catches the interruption to stop Ray. Raise it again.
    if not measure(context.folder, context.spec, task, begun.trained(), [begun], None, console):
        raise KeyboardInterrupt
    if failures := finer.failures():
        LOGGER.warning(
            "%d of %d models keep the value of their training: %s",
            len(failures),
            len(begun.seeds),
            failures[0],
        )

"""Measures the models of a sweep anew where measurements, and not seeds, are what a decision lacks."""

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


def end_seeds(context: SweepContext, finer: FinerScore | None) -> None:
    """End adaptive seeds if the results ask for no further run, or begin a finer measurement.

    Nothing happens in other sweeps, and before the first pass has ended.
    """
    folder = context.folder
    if isinstance(context.spec.seeds, AdaptiveSeeds) and folder.seeds_end() is None:
        SeedSource.of(context, lambda: folder.result(BASE_RUN), finer).next_run()


def measure_again(context: SweepContext, task: Task, finer: FinerScore, console: Console) -> None:
    """Measure the models that are left, log the values to MLflow, and end the seeds if the new values decide.

    A model that cannot be measured keeps the value from its training, and a warning counts such models.

    Raises:
        KeyboardInterrupt: the user interrupts. A resume measures the models that are left.
    """
    folder, spec, measurements = context.folder, context.spec, finer.measurements
    about = measurements.about()
    assert about is not None, "the seed source has begun the measurement"
    first = spec.seed_labels[0]
    seeds = {name: first if name == BASE_RUN else context.trials[name].seed for name in about["models"]}
    runs = {name: seed for name, seed in seeds.items() if name != BASE_RUN}
    begun = BegunMeasurement(request=finer.request, measurements=measurements, seeds=seeds, runs=seeds)
    if finer.left():
        console.print(
            f"the seeds alone do not decide: measuring {finer.own.name} again with {finer.in_words()}", markup=False
        )
        if not measure(folder, spec, task, runs, [begun], None, console):
            raise KeyboardInterrupt
        if failed := [name for name in seeds if measurements.failure(name) is not None]:
            LOGGER.warning(
                "%d of %d models keep the value of their training: %s",
                len(failed), len(seeds), measurements.failure(failed[0]),
            )  # fmt: skip
    _, note = log_to_mlflow(folder, spec, runs, [begun], console)
    if note is not None:
        LOGGER.warning("%s", note)
    end_seeds(context, finer)

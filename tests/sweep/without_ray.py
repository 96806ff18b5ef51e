"""Sweeps that train in this process, one run after another, for tests that Ray is no subject of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from raydp.search_spaces.settings import NO_SETTINGS
from raydp.sweep import driver
from raydp.sweep.engine import committer as committing
from raydp.sweep.engine import training
from raydp.sweep.engine.committer import Committer
from raydp.sweep.engine.context import SweepContext
from raydp.sweep.engine.further_seeds import BeforeFurtherSeeds
from raydp.sweep.engine.listeners import RunListener
from raydp.sweep.engine.tune.rounds import ListSource
from raydp.sweep.engine.worker import Runners
from raydp.sweep.store.folder import BASE_RUN
from raydp.sweep.store.results import RunResult
from raydp.tasks.task import Task
from raydp.training.comm import LocalComm
from raydp.training.trial_plan import TrialPlan


def train_without_ray(patch: pytest.MonkeyPatch) -> None:
    """Let the driver of a sweep train in this process, until the patch is undone."""
    patch.setattr(driver, "train", _on_one_thread)
    patch.setattr(committing, "ray", SimpleNamespace(get=lambda outcome: outcome))


def _on_one_thread(*args: Any, **options: Any) -> Committer:
    """Train on one thread, as a worker with one CPU does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _train(*args, **options)
    finally:
        torch.set_num_threads(threads)


def _train(
    context: SweepContext,
    task: Task,
    left: list[TrialPlan],
    console: Console,
    *,
    open_listener: Callable[[], RunListener],
    before: BeforeFurtherSeeds,
    shown: bool,
    callbacks: Sequence[object],
) -> Committer:
    """Train what is left, as `training.train` does with Ray.

    A failure ends the sweep; nothing is stopped early.
    """
    assert not callbacks, "callbacks are Tune's"
    assert context.spec.stopping is None
    settings = [NO_SETTINGS, *(trial.settings for trial in left)]
    inputs: Any = training._worker_inputs(context, task, settings, before)
    runners = Runners(inputs, LocalComm(), None)
    committer = training._open_committer(context, open_listener, console)
    if not context.folder.is_finished(BASE_RUN):
        context.folder.commit(runners.of(NO_SETTINGS).measure_base(context.spec.seed_labels[0]))
    committer._queue = queue = Outcomes()  # type: ignore[assignment]
    source = training._source(committer, before) or ListSource([t.run_id for t in left])
    while (run_id := source.next_run()) is not None:
        trial = inputs.trials[run_id]
        with closing(inputs.files(run_id)) as files:
            queue.of[run_id] = runners.of(trial.settings).run(
                trial, files, "attempt-1", accounted=inputs.accounted[run_id]
            )
        committer.commit(run_id)
    assert source.finished
    return committer


class Outcomes:
    """What the committer asks the queue for."""

    def __init__(self) -> None:
        self.of: dict[str, RunResult] = {}
        self.outcome = SimpleNamespace(remote=self.of.__getitem__)
        self.committed = SimpleNamespace(remote=lambda run_id: None)

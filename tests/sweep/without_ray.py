"""Sweeps that train in this process, one run after another, for tests that Ray is no subject of."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from raydp.search_spaces.settings import NO_SETTINGS
from raydp.sweep import driver
from raydp.sweep.engine import committer as committing
from raydp.sweep.engine import training
from raydp.sweep.engine.committer import Committer, Committers
from raydp.sweep.engine.training import SourceFn, Training
from raydp.sweep.engine.tune.rounds import ListSource
from raydp.sweep.engine.worker import Runners
from raydp.sweep.store.results import RunResult
from raydp.training.comm import LocalComm


def train_without_ray(patch: pytest.MonkeyPatch) -> None:
    """Let the driver of a sweep train in this process, until the patch is undone."""
    patch.setattr(driver, "train", _on_one_thread)
    patch.setattr(committing, "ray", SimpleNamespace(get=lambda outcome: outcome))


def _on_one_thread(*args: Any, **options: Any) -> list[Committer]:
    """Train on one thread, as a worker with one CPU does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _train(*args, **options)
    finally:
        torch.set_num_threads(threads)


def _train(
    trainings: Sequence[Training],
    console: Console,
    *,
    source_fn: SourceFn,
    callbacks: Sequence[object],
) -> list[Committer]:
    """Train what is left, as `training.train` does with Ray.

    A failure ends the sweep; nothing is stopped early.
    """
    assert not callbacks, "callbacks are Tune's"
    assert all(each.context.spec.stopping is None for each in trainings)
    inputs = training._worker_inputs(trainings)
    runners = Runners(inputs, LocalComm(), None)
    committers = [training._open_committer(each, console) for each in trainings]
    measured = dict[str, RunResult]()
    for name, key in training._bases(trainings).items():
        sweep, _ = inputs.of(key)
        if key not in measured:
            base = runners.of(sweep, NO_SETTINGS).measure_base(sweep.spec.seed_labels[0])
            assert base is not None
            measured[key] = base
        (own,) = [each for each in trainings if each.context.queue_name == name]
        own.context.folder.commit(measured[key])
    queue: Any = Outcomes()
    for committer in committers:
        committer._queue = queue
    source = source_fn(trainings, committers) or ListSource(list(training.in_order(trainings)))
    joint = Committers(committers)
    while (key := source.next_run()) is not None:
        sweep, run_id = inputs.of(key)
        trial = sweep.trials[run_id]
        with closing(sweep.files(run_id)) as files:
            outcome = runners.of(sweep, trial.settings).run(
                trial, files, "attempt-1", accounted=sweep.accounted[run_id]
            )
        assert outcome is not None
        queue.of[key] = replace(outcome, run_id=key)
        joint.commit(key)
    assert source.finished
    return committers


class Outcomes:
    """What the committer asks the queue for."""

    def __init__(self) -> None:
        self.of: dict[str, RunResult] = {}
        self.outcome = SimpleNamespace(remote=self.of.__getitem__)
        self.committed = SimpleNamespace(remote=lambda run_id: None)

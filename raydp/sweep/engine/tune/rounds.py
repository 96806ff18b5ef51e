"""Give the runs of a sweep to Ray Tune: every run is a Tune trial, in rounds."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import ray
from ray import tune
from ray.tune.search import Searcher

from raydp.search_spaces.settings import settings_in_words
from raydp.sweep.engine.committer import Committers
from raydp.sweep.engine.queue import TrialQueue
from raydp.sweep.engine.tune.callbacks import CommitCallback, GuardedCallback
from raydp.sweep.engine.tune.metrics import config_of, final_metrics
from raydp.training.trial_plan import TrialPlan

if TYPE_CHECKING:
    from ray.actor import ActorProxy
    from ray.tune.experiment import Trial

TRIALS_PER_ROUND = 400
"""Number of runs of a round, as long as there are few slots.

Tune keeps every trial of a round in the driver's memory, so a sweep of thousands of runs has
several rounds.
"""
ROUND_PER_SLOT = 4
"""Least number of runs of a round, for each slot.

The start of a round must not take longer than its runs.
"""
REPORT_SECONDS = 2.0
"""Least time between two reports of a running trial, while there are few slots."""
REPORTS_A_SECOND = 10
"""Number of reports that Tune's loop on the driver takes in a second, from all trials together."""


class RunSource(Protocol):
    """Gives out runs one after another, by their keys in the queue.

    Implemented by `ListSource`, by `StepwiseSource` for a search and for adaptive seeds, and by
    `JointSource` for several sweeps.
    """

    @property
    def finished(self) -> bool:
        """Return whether no more runs will be given out."""

    @property
    def handed_out(self) -> int:
        """Return how many runs were given out."""

    def next_run(self) -> str | None:
        """Return the next run. None: there is none now, and never again if `finished` is set."""

    def given(self) -> list[str]:
        """Return every run that was given out."""


class KnownSource(RunSource, Protocol):
    """A source that tells which runs it gives out next."""

    def upcoming(self, count: int) -> list[str]:
        """Return at most `count` of the next runs that are known now."""


class ListSource:
    """Gives out a list of runs in its order."""

    def __init__(self, run_ids: Sequence[str]) -> None:
        self._run_ids, self._left = list(run_ids), deque(run_ids)
        self.finished, self.handed_out = not run_ids, 0

    def next_run(self) -> str | None:
        if not self._left:
            return None
        run_id = self._left.popleft()
        self.handed_out += 1
        self.finished = not self._left
        return run_id

    def given(self) -> list[str]:
        return self._run_ids[: self.handed_out]


class RunSearcher(Searcher):
    """Hands the runs of a source to Tune as trials.

    Args:
        trials: key in the queue -> the planned run, whose parameters become the trial's config.
        close: called with the number of runs that were given out, after the last one.
    """

    def __init__(
        self, source: RunSource, trials: Mapping[str, TrialPlan], close: Callable[[int], object]
    ) -> None:
        super().__init__()
        self.source, self._trials, self._close = source, trials, close

    def __getstate__(self) -> dict[str, object]:
        return {}  # Tune pickles its searcher for a restore that a sweep never uses

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: object, **spec: object
    ) -> bool:
        """Do nothing: the spec has the metric of the search."""
        return True

    def suggest(self, trial_id: str) -> Any:  # Tune's own annotation leaves out FINISHED
        """Return the config of the next run, None if Tune must ask again, or FINISHED."""
        run_id = self.source.next_run()
        if run_id is not None:
            return config_of(self._trials[run_id], run_id)
        if self.source.finished:
            self._close(self.source.handed_out)
            return Searcher.FINISHED
        return None

    def on_trial_complete(self, trial_id: str, result: object = None, error: bool = False) -> None:
        """Do nothing: the source reads results from the sweep's folder."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: the folder has all that a resumed sweep needs."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing; see `save`."""


class SilentReporter(tune.ProgressReporter):
    """Reports nothing: `SweepProgress` does.

    In a notebook, Tune's own reporter would clear the output of the cell.
    """

    def should_report(self, trials: list[Trial], done: bool = False) -> bool:
        return False

    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        """Do nothing."""


def rounds(run_ids: list[str], num_slots: int) -> Iterator[list[str]]:
    """Split the runs into the rounds of Tune, in order."""
    size = max(TRIALS_PER_ROUND, ROUND_PER_SLOT * num_slots)
    for start in range(0, len(run_ids), size):
        yield run_ids[start : start + size]


@dataclass(frozen=True, kw_only=True)
class TuneRun:
    """The objects that all rounds of one sweep share.

    Attributes:
        queue: the actor of the TrialQueue.
        committers: commit the results.
        trials: key in the queue -> the planned run.
        score: the score that selects.
        folder: a folder for Tune's own state.
        shown: whether step metrics, utility and scores go through Tune. Those of a private
            selection do not.
        callbacks: the user's own callbacks of Tune.
    """

    queue: ActorProxy[TrialQueue]
    committers: Committers
    trials: Mapping[str, TrialPlan]
    score: str | None
    folder: Path
    num_slots: int
    shown: bool
    callbacks: Sequence[GuardedCallback]

    def train(self, run_ids: list[str], source: RunSource | None, num_before: int) -> None:
        """Train the runs one by one as the source chooses them, or without one in rounds.

        Args:
            num_before: how many runs are in the queue that the source has not given.
        """
        if source is not None:
            close = self.queue.close.remote
            self.run(source, len(run_ids), lambda given: ray.get(close(given + num_before)))
            return
        for of_round in rounds(run_ids, self.num_slots):
            self.run(ListSource(of_round), len(of_round))

    def run(
        self, source: RunSource, count: int, close: Callable[[int], object] = lambda given: None
    ) -> None:
        """Run at most `count` runs of a source as one round of Tune.

        A trial only follows its run in the queue, and holds no CPU, which the workers need. There
        is one more trial than slots, so that the next run is in the queue before a slot asks.
        """
        num_actors = min(self.num_slots + 1, count)
        score, shown, queue = self.score, self.shown, self.queue
        seconds, name = max(REPORT_SECONDS, self.num_slots / REPORTS_A_SECOND), secrets.token_hex(4)

        # The trial reports the run's progress until its outcome. To follow a run puts it into the
        # queue, if it is not there yet.
        def trial(config: dict[str, object]) -> None:
            run_id, step = str(config["run_id"]), 0
            ray.get(
                queue.gather.remote(str(ray.get_runtime_context().get_actor_id()), num_actors, name)
            )
            while True:
                news = ray.get(queue.follow.remote(run_id, step, seconds))
                if news.outcome is not None:
                    break
                step = news.step
                # If runs may not be shown, Tune and its loggers may know the status alone.
                if shown:
                    tune.report(
                        {"status": "running", **news.row, "step": step, "num_steps": news.num_steps}
                    )
            tune.report(
                final_metrics(news.outcome, score) if shown else {"status": news.outcome.status}
            )

        tune.Tuner(
            tune.with_resources(trial, tune.PlacementGroupFactory([{"memory": 1e6}])),
            tune_config=tune.TuneConfig(
                max_concurrent_trials=num_actors,
                reuse_actors=True,
                search_alg=RunSearcher(source, self.trials, close),
                num_samples=count,
                trial_name_creator=_trial_name,
                trial_dirname_creator=_trial_folder,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(self.folder),
                verbose=0,
                progress_reporter=SilentReporter(),
                callbacks=[CommitCallback(self.committers), *self.callbacks],
                failure_config=tune.FailureConfig(max_failures=3),
            ),
        ).fit()
        # If Tune gave up on a trial, its run has an outcome in the queue nevertheless.
        for run_id in source.given():
            if not self.committers.has(run_id):
                self.committers.commit(run_id)


def _trial_name(trial: Trial) -> str:
    """Name a trial for loggers by its configuration and seed."""
    config = trial.config
    further = settings_in_words(config.get("settings", {}), equals="", between="_")
    name = f"b{config['batch_size']}_T{config['num_steps']}_lr{config['learning_rate']:g}"
    return f"{name}{'_' if further else ''}{further}_seed{config['seed']}"


def _trial_folder(trial: Trial) -> str:
    """Name a trial's folder by its run."""
    return str(trial.config["run_id"]).replace("/", "_")

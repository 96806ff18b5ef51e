"""Gives the runs of a sweep to Ray Tune, in rounds."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import ray
from ray import tune

from raydp.sweep.engine.adaptive import RunSearcher
from raydp.sweep.engine.committer import CommitCallback, Committer
from raydp.sweep.store.folder import SweepFolder

TRIALS_PER_ROUND = 400
"""Tune keeps every trial of a run in the driver's memory; a sweep of thousands runs in rounds."""
ROUND_PER_SLOT = 4
"""A round has at least so many runs a slot, so that starting its trials does not outweigh them."""


def rounds(run_ids: list[str], num_slots: int) -> Iterator[list[str]]:
    """The runs of each round of Tune, in order."""
    size = max(TRIALS_PER_ROUND, ROUND_PER_SLOT * num_slots)
    for start in range(0, len(run_ids), size):
        yield run_ids[start : start + size]


def run_tune(
    runs: list[str] | RunSearcher, count: int, queue: Any, recorder: Committer, folder: SweepFolder, num_slots: int
) -> None:
    """One Tune trial per run, in the given order or as a search gives them out, at most `count`. A trial only waits for
    its run's result, so it holds no CPU: one that did would deadlock a small machine against the workers. One more
    trial than slots keeps the next run at hand. A trial that Tune gave up on is committed all the same."""

    num_actors = min(num_slots + 1, count)
    searcher, name = runs if isinstance(runs, RunSearcher) else None, secrets.token_hex(4)

    def trial(config: dict[str, Any]) -> None:
        ray.get(queue.gather.remote(ray.get_runtime_context().get_actor_id(), num_actors, name))
        outcome = ray.get(queue.submit.remote(config["run_id"]))
        tune.report({"run_id": config["run_id"], "status": outcome["status"]})

    tune.Tuner(
        tune.with_resources(trial, tune.PlacementGroupFactory([{"memory": 1e6}])),
        param_space={"run_id": tune.grid_search(runs)} if isinstance(runs, list) else {},
        tune_config=tune.TuneConfig(
            max_concurrent_trials=num_actors,
            reuse_actors=True,
            search_alg=searcher,
            num_samples=1 if searcher is None else count,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder.path.resolve() / "ray"),
            verbose=0,
            callbacks=[CommitCallback(recorder)],
            failure_config=tune.FailureConfig(max_failures=3),
        ),
    ).fit()
    for run_id in runs if isinstance(runs, list) else runs.source.given():
        if run_id not in recorder.committed and not folder.has_ended(run_id):
            recorder.commit(run_id)

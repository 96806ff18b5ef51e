"""Ray Tune sees every run: its config, its steps while it trains, its results; and so do a user's
callbacks. The driver gives Tune the largest runs first, round after round, and goes on after one
that fails."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from ray.tune import ResultGrid

from raydp import Sweep
from raydp.sweep.engine.tune.metrics import final_metrics
from raydp.sweep.store.folder import SweepFolder
from tests.sweep.explored import LONG, Explored
from tests.sweep.undisturbed import runs_in

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("tune")]

CONFIG = {"run_id", "batch_size", "num_steps", "learning_rate", "noise_multiplier", "seed"}


def test_a_trials_config_is_the_run(explored: Explored) -> None:
    result, seen = explored.result, explored.seen
    plan = {trial.run_id: trial for trial in SweepFolder(path=result.folder).plan().trials}
    assert seen.configs.keys() == plan.keys()
    for run_id, config in seen.configs.items():
        assert config == {name: getattr(plan[run_id], name) for name in CONFIG}


def test_the_driver_runs_the_largest_first_across_rounds_and_goes_on_after_one_that_fails(
    explored: Explored,
) -> None:
    """One slot, so the order in which the ledgers were written is the order in which runs were
    begun."""
    result = explored.result
    assert (result.counts.finished, result.counts.failed) == (4, 1)
    (failure,) = result.counts.failures
    assert "utility_loss is" in failure.reason, "a learning rate that overflows fp32"
    assert result.selected.configuration.learning_rate < 1
    folder = SweepFolder.open(result.folder)
    assert runs_in(folder.spec().tracking.uri) == {"parents": 1, "children": 5, "versions": 4}
    assert folder.result(failure.run_id).status == "failed"
    planned = Sweep(result.folder / "spec.yaml").points()
    computes = planned["batch_size"] * planned["num_steps"]
    assert computes.is_monotonic_decreasing
    written = [
        (result.folder / "trials" / run_id / "ledger.txt").stat().st_mtime_ns
        for run_id in planned["run_id"]
    ]
    assert written == sorted(written)


def test_steps_are_reported_while_a_run_trains(explored: Explored) -> None:
    result, seen = explored.result, explored.seen
    (long,) = (run_id for run_id, config in seen.configs.items() if config["num_steps"] == LONG)
    stored = {row["step"]: row for row in SweepFolder(path=result.folder).result(long).history}
    running = [r for r in seen.results[long] if r["status"] == "running"]
    assert running, "it trained for seconds"
    steps = [r["step"] for r in running]
    assert steps == sorted(set(steps))
    for row in running:
        assert (row["num_steps"], row["loss"]) == (LONG, stored[row["step"] - 1]["loss"])


def test_the_last_report_is_the_result(explored: Explored) -> None:
    result, seen = explored.result, explored.seen
    for run_id, reports in seen.results.items():
        expected = final_metrics(SweepFolder(path=result.folder).result(run_id), "vmr_exact")
        assert {k: reports[-1][k] for k in expected} == expected
        assert expected.get("score") == expected.get("score.vmr_exact")
        assert ("score" in expected) == (expected["status"] == "finished")


def test_a_callback_that_fails_is_left_alone(explored: Explored) -> None:
    assert explored.broken.asked == 1
    assert (
        "the callback Broken failed and is not called again (ConnectionError: the logger's"
        in explored.said
    )
    assert explored.seen.calls == ["setup", "end of 5"], "rounds are one experiment"


def test_tunes_own_json_logger_works(explored: Explored) -> None:
    result, seen = explored.result, explored.seen
    for run_id, config in seen.configs.items():
        (path,) = (result.folder / "ray").rglob(f"{run_id}/result.json")
        status = SweepFolder(path=result.folder).result(run_id).status
        assert json.loads(path.read_text().splitlines()[-1])["status"] == status
        assert json.loads((path.parent / "params.json").read_text()) == config


def test_the_grid_has_every_run_as_tune_gives_it(explored: Explored) -> None:
    result, seen = explored.result, explored.seen
    grid = result.grid
    assert isinstance(grid, ResultGrid)
    assert (len(grid), grid.num_errors, grid.num_terminated) == (5, 1, 4)
    (failure,) = result.counts.failures
    assert [str(error) for error in grid.errors] == [failure.reason]
    assert {r.config["run_id"]: r.config for r in grid} == seen.configs
    table = grid.get_dataframe()
    assert table["config/batch_size"].sort_values().tolist() == [16, 16, 16, 16, 32]
    best = grid.get_best_result()
    assert best.metrics["utility_loss"] == table["utility_loss"].min()
    assert (
        grid.get_best_result("utility_loss", "max").metrics["utility_loss"]
        == table["utility_loss"].max()
    )
    losses = {r.config["run_id"]: r.metrics_dataframe["loss"] for r in grid if r.error is None}
    lowest = grid.get_best_result("loss", "min", scope="all")
    assert losses[lowest.config["run_id"]].min() == min(series.min() for series in losses.values())
    by_loss = grid.get_dataframe("loss", "min").set_index("config/run_id")["loss"]
    assert all(by_loss[run_id] == series.min() for run_id, series in losses.items())
    with best.checkpoint.as_directory() as folder:
        assert (Path(folder) / "adapter_model.safetensors").is_file()
    assert str(result.folder) == grid.experiment_path
    assert "utility_loss" in repr(grid)
    with pytest.raises(RuntimeError, match="no run has reported a value of 'nothing'"):
        grid.get_best_result("nothing", "min")
    with pytest.raises(ValueError, match="mode must be min or max, got 'lowest'"):
        grid.get_best_result("utility_loss", "lowest")
    with pytest.raises(ValueError, match="scope must be last"):
        grid.get_best_result("loss", "min", scope="first")


def test_a_loss_that_is_not_finite_is_not_the_best(explored: Explored) -> None:
    grid = explored.result.grid
    grid[0].metrics["utility_loss"] = -math.inf
    assert grid.get_best_result().metrics["utility_loss"] > 0
    assert grid.get_best_result(filter_nan_and_inf=False).metrics["utility_loss"] == -math.inf

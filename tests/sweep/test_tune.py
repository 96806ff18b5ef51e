"""Ray Tune sees every run: its config, its steps while it trains, its results; and so do a user's callbacks. The driver
gives Tune the largest runs first, round after round, and goes on after one that fails."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from ray.tune import Callback, ResultGrid
from ray.tune.logger import JsonLoggerCallback

from raydp import Sweep
from raydp.sweep.driver import SweepResult
from raydp.sweep.engine.tune import rounds as tune_rounds
from raydp.sweep.engine.tune.metrics import final_metrics
from raydp.sweep.store.folder import SweepFolder
from tests.builders.specs import small_spec
from tests.sweep.undisturbed import runs_in

pytestmark = pytest.mark.slow

LONG = 400
"""Steps of a run that takes some seconds."""
CONFIG = {"run_id", "batch_size", "num_steps", "learning_rate", "noise_multiplier", "seed"}


class Seen(Callback):
    """Keeps what a logger would send."""

    def __init__(self) -> None:
        self.configs: dict[str, dict[str, Any]] = {}
        self.results: dict[str, list[dict[str, Any]]] = {}
        self.calls: list[str] = []

    def setup(self, *args: Any, **info: Any) -> None:
        self.calls.append("setup")

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.configs[trial.config["run_id"]] = dict(trial.config)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self.results.setdefault(trial.config["run_id"], []).append(dict(result))

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        self.calls.append(f"end of {len(trials)}")


class Broken(Callback):
    """Fails as a logger does whose server is away."""

    def __init__(self) -> None:
        self.asked = 0

    def on_trial_start(self, **info: Any) -> None:
        self.asked += 1
        raise ConnectionError("the logger's server is away")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepResult, Seen, Broken, str]:
    """A sweep of five runs in three rounds: one is long enough to be seen in its course, and one fails, because its
    learning rate overflows fp32."""
    folder = tmp_path_factory.mktemp("tune")
    space = {"points": [[16, 2, 0.01], [16, 4, 0.01], [16, LONG, 0.001], [32, 3, 1e38], [16, 3, 0.01]]}
    method, cluster = {"name": "dp_sgd", "max_grad_norm": 0.1}, {"max_concurrent_trials": 1, "max_retries": 0}
    spec = small_spec(folder, space=space, method=method, cluster=cluster)
    seen, broken = Seen(), Broken()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune_rounds, "TRIALS_PER_ROUND", 2)
        patch.setattr(tune_rounds, "ROUND_PER_SLOT", 1)
        patch.setattr(tune_rounds, "REPORT_SECONDS", 0.2)
        said: list[str] = []
        told = "raydp.sweep.engine.tune.callbacks.LOGGER.warning"
        patch.setattr(told, lambda text, *words: said.append(text % words))
        result = Sweep(spec).run(callbacks=[broken, seen, JsonLoggerCallback()])
    return result, seen, broken, "\n".join(said)


def test_a_trials_config_is_the_run(ran: tuple[SweepResult, Seen, Broken, str]) -> None:
    result, seen, _, _ = ran
    plan = {trial.run_id: trial for trial in SweepFolder(path=result.folder).plan().trials}
    assert seen.configs.keys() == plan.keys()
    for run_id, config in seen.configs.items():
        assert config == {name: getattr(plan[run_id], name) for name in CONFIG}


def test_the_driver_runs_the_largest_first_across_rounds_and_goes_on_after_one_that_fails(
    ran: tuple[SweepResult, Seen, Broken, str],
) -> None:
    """One slot, so the order in which the ledgers were written is the order in which runs were begun."""
    result = ran[0]
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
    written = [(result.folder / "trials" / run_id / "ledger.txt").stat().st_mtime_ns for run_id in planned["run_id"]]
    assert written == sorted(written)


def test_steps_are_reported_while_a_run_trains(ran: tuple[SweepResult, Seen, Broken, str]) -> None:
    result, seen, _, _ = ran
    (long,) = (run_id for run_id, config in seen.configs.items() if config["num_steps"] == LONG)
    stored = {row["step"]: row for row in SweepFolder(path=result.folder).result(long).history}
    running = [r for r in seen.results[long] if r["status"] == "running"]
    assert running, "it trained for seconds"
    steps = [r["step"] for r in running]
    assert steps == sorted(set(steps))
    for row in running:
        assert (row["num_steps"], row["loss"]) == (LONG, stored[row["step"] - 1]["loss"])


def test_the_last_report_is_the_result(ran: tuple[SweepResult, Seen, Broken, str]) -> None:
    result, seen, _, _ = ran
    for run_id, reports in seen.results.items():
        expected = final_metrics(SweepFolder(path=result.folder).result(run_id), "vmr_exact")
        assert {k: reports[-1][k] for k in expected} == expected
        assert expected.get("score") == expected.get("score.vmr_exact")
        assert ("score" in expected) == (expected["status"] == "finished")


def test_a_callback_that_fails_is_left_alone(ran: tuple[SweepResult, Seen, Broken, str]) -> None:
    _, seen, broken, said = ran
    assert broken.asked == 1
    assert "the callback Broken failed and is not called again (ConnectionError: the logger's" in said
    assert seen.calls == ["setup", "end of 5"], "rounds are one experiment"


def test_tunes_own_json_logger_works(ran: tuple[SweepResult, Seen, Broken, str]) -> None:
    result, seen, _, _ = ran
    for run_id, config in seen.configs.items():
        (path,) = (result.folder / "ray").rglob(f"{run_id}/result.json")
        status = SweepFolder(path=result.folder).result(run_id).status
        assert json.loads(path.read_text().splitlines()[-1])["status"] == status
        assert json.loads((path.parent / "params.json").read_text()) == config


def test_the_grid_has_every_run_as_tune_gives_it(ran: tuple[SweepResult, Seen, Broken, str]) -> None:
    result, seen, _, _ = ran
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
    assert grid.get_best_result("utility_loss", "max").metrics["utility_loss"] == table["utility_loss"].max()
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


def test_what_is_not_finite_is_not_the_best(ran: tuple[SweepResult, Seen, Broken, str]) -> None:
    grid = ran[0].grid
    grid[0].metrics["utility_loss"] = -math.inf
    assert grid.get_best_result().metrics["utility_loss"] > 0
    assert grid.get_best_result(filter_nan_and_inf=False).metrics["utility_loss"] == -math.inf

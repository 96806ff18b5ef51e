"""Sweeps that run a part of their space: what a strategy is told, what it gives out, and a real
one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from raydp.extensions.searches.source import SearchSource
from raydp.scores.score import Measurement
from raydp.search_spaces import Configuration, grid
from raydp.spec.reading import load_spec
from raydp.sweep.api import Sweep
from raydp.sweep.engine.tune.metrics import config_of
from raydp.sweep.engine.tune.rounds import RunSearcher
from raydp.sweep.search import Goal, Proposal, Search, SearchState
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.points import counts, points_table
from raydp.sweep.store.results import RunResult
from raydp.training.trial_plan import TrialPlan
from tests.builders.plans import plan_of_runs
from tests.builders.specs import small_spec
from tests.sweep.without_ray import train_without_ray

SPACE = {"batch_size": [32], "num_steps": [3, 4, 5, 6], "learning_rate": [0.01]}
CANDIDATES = tuple(grid([32], [3, 4, 5, 6], ["0.01"]))


class Scripted:
    """Gives configurations in a fixed order, one a time, and ends after them; remembers what it was
    told."""

    def __init__(self, order: list[Configuration], *, wait_for: int = 0) -> None:
        self.order, self.wait_for = order, wait_for
        self.told: list[tuple[SearchState, Goal]] = []

    def propose(self, state: SearchState, goal: Goal, count: int) -> Proposal:
        self.told.append((state, goal))
        done = 0 if state.points is None else state.points["num_steps"].nunique()
        taken = done + len(state.running) + len(state.failed)
        if done < self.wait_for <= taken:
            return Proposal()
        if taken < len(self.order):
            return Proposal(configurations=(self.order[taken],))
        left = [c for c in state.candidates if c not in self.order]
        return Proposal(
            finished=True,
            reason="the script is over",
            skipped=dict.fromkeys(left, "not in the script"),
        )


class World:
    """A sweep's folder with two seeds of four configurations, and results written into it."""

    def __init__(self, tmp_path: Path, **select: Any) -> None:
        data = small_spec(
            tmp_path, space=SPACE, seeds=[0, 1], select={"score": "vmr_exact", **select}
        )
        self.spec = load_spec(data)
        self.trials = [
            TrialPlan(
                run_id=f"{c.num_steps}-{seed}", batch_size=32, num_steps=c.num_steps, learning_rate=0.01, seed=seed,
                num_examples=2000, noise_multiplier=1.0,
            )
            for c in CANDIDATES
            for seed in (0, 1)
        ]  # fmt: skip
        self.folder = SweepFolder.create(self.spec, lambda key: plan_of_runs(self.trials))

    def finish(self, *run_ids: str, status: str = "finished") -> None:
        for run_id in run_ids:
            scores = {"vmr_exact": Measurement(value=0.1, std_error=0.0, num_samples=1)}
            self.folder.commit(
                RunResult(
                    run_id=run_id, status=status, utility_loss=2.0, scores=scores, reason="broken"
                )
            )

    def source(self, search: Search) -> SearchSource:
        return SearchSource(
            spec=self.spec,
            folder=self.folder,
            trials=self.trials,
            search=search,
            base_fn=lambda: self.folder.result(BASE_RUN),
        )


def test_all_seeds_of_a_configuration_are_given_before_the_next_is_asked_for(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, min_gain_share=None)
    world.finish(BASE_RUN)
    search = Scripted([CANDIDATES[2], CANDIDATES[0]])
    source = world.source(search)
    assert source.upcoming(3) == ["5-0", "5-1", "3-0"], "looking ahead takes nothing away"
    assert source.handed_out == 0
    assert [source.next_run() for _ in range(4)] == ["5-0", "5-1", "3-0", "3-1"]
    first, second = (state for state, _ in search.told[:2])
    assert first.candidates == CANDIDATES
    assert (first.running, second.running) == ((), (CANDIDATES[2],))
    world.finish("5-0", "5-1")
    world.finish("3-0", "3-1", status="failed")
    assert source.next_run() is None
    assert source.finished
    state, goal = search.told[-1]
    assert state.points["run_id"].tolist() == ["5-0", "5-1"]
    assert (state.running, state.failed) == ((), (CANDIDATES[0],))
    assert (goal.rule, goal.base_utility_loss) == ("informed", 2.0)


def test_the_end_is_written_and_unstarted_runs_are_skipped(tmp_path: Path) -> None:
    world = World(tmp_path, max_loss=9.0)
    search = Scripted([CANDIDATES[1]])
    closed: list[int] = []
    trials = {trial.run_id: trial for trial in world.folder.plan().trials}
    searcher = RunSearcher(world.source(search), trials, closed.append)
    configs = [searcher.suggest(str(k)) for k in range(2)]
    assert configs == [config_of(trials["4-0"]), config_of(trials["4-1"])]
    assert configs[0] == {
        "run_id": "4-0", **CANDIDATES[1].to_json(), "noise_multiplier": trials["4-0"].noise_multiplier, "seed": 0,
    }  # fmt: skip
    world.finish("4-0", "4-1")
    assert searcher.suggest("2") == RunSearcher.FINISHED
    assert closed == [2]
    counted = counts(world.folder)
    assert (counted.finished, counted.pending, counted.skipped) == (2, 0, 6)
    assert counted.search.reason == "the script is over"
    assert [configuration.num_steps for configuration in counted.search.skipped] == [3, 5, 6]
    assert points_table(world.folder)["status"].tolist().count("skipped") == 6


def test_a_strategy_that_waits_is_asked_again_only_when_a_result_has_come(tmp_path: Path) -> None:
    world = World(tmp_path, max_loss=9.0)
    search = Scripted(list(CANDIDATES[:2]), wait_for=1)
    source = world.source(search)
    assert [source.next_run() for _ in range(5)] == ["3-0", "3-1", None, None, None]
    assert len(search.told) == 2
    world.finish("3-0")
    assert source.next_run() is None, "its second seed is still running"
    world.finish("3-1")
    assert source.next_run() == "4-0"


def test_a_resumed_search_begins_with_the_missing_seeds(tmp_path: Path) -> None:
    world = World(tmp_path, max_loss=9.0)
    world.finish("4-0", "6-0", "6-1")
    world.finish("4-1", status="failed")
    source = world.source(Scripted([CANDIDATES[1], CANDIDATES[3], CANDIDATES[0]]))
    assert [source.next_run() for _ in range(3)] == ["4-1", "3-0", "3-1"]


def test_a_resumed_search_goes_on_with_begun_runs(tmp_path: Path) -> None:
    """A run without a result that has a folder was being trained when the driver was killed."""
    world = World(tmp_path, max_loss=9.0)
    world.folder.trial("6-0").mkdir()
    source = world.source(Scripted([CANDIDATES[3], CANDIDATES[0]]))
    assert [source.next_run() for _ in range(3)] == ["6-0", "6-1", "3-0"]


def test_runs_in_progress_at_the_end_of_a_search_are_not_skipped(tmp_path: Path) -> None:
    """A kill between the end of the search and that of its last run leaves the run to a resume."""
    world = World(tmp_path, max_loss=9.0)
    source = world.source(Scripted([CANDIDATES[1]]))
    assert [source.next_run() for _ in range(3)] == ["4-0", "4-1", None]
    assert source.finished
    world.finish("4-0")
    counted = counts(world.folder)
    assert (counted.finished, counted.pending, counted.skipped) == (1, 1, 6)
    assert world.folder.skipped_runs() == {
        f"{c.num_steps}-{seed}" for c in (CANDIDATES[0], *CANDIDATES[2:]) for seed in (0, 1)
    }
    by_run = points_table(world.folder).set_index("run_id")["status"]
    assert (by_run["4-1"], by_run["3-0"]) == ("pending", "skipped")


def test_a_configuration_that_a_bound_rules_out_is_no_candidate(tmp_path: Path) -> None:
    world = World(
        tmp_path, max_loss=9.0, max_score=0.5, at_most={"compute": 130, "score.vmr_exact": 1.0}
    )
    world.finish("6-0")
    search = Scripted([])
    source = world.source(search)
    assert [source.next_run() for _ in range(2)] == ["6-1", None]
    state, goal = search.told[0]
    assert state.candidates == (CANDIDATES[0], CANDIDATES[1], CANDIDATES[3]), "what was begun stays"
    assert (goal.max_score, dict(goal.at_most)) == (0.5, {"compute": 130, "score.vmr_exact": 1.0})
    reasons = {c.num_steps: reason for c, reason in counts(world.folder).search.skipped.items()}
    assert reasons[5] == "its compute of 160 exceeds select.at_most 130"
    assert reasons[3] == "not in the script"


def test_bounds_that_rule_out_everything_are_refused(tmp_path: Path) -> None:
    world = World(tmp_path, max_loss=9.0, at_most={"noise_multiplier": 0.5})
    with pytest.raises(
        ValueError, match=r"select.at_most must leave a configuration of the space, got .* all 4"
    ):
        world.source(Scripted([]))


def test_a_search_that_gives_no_reason_is_said_to(tmp_path: Path) -> None:
    class Silent:
        def propose(self, state: SearchState, goal: Goal, count: int) -> Proposal:
            return Proposal(finished=True)

    world = World(tmp_path, max_loss=9.0)
    assert world.source(Silent()).next_run() is None
    skipped = counts(world.folder).search.skipped
    assert list(skipped.values()) == ["the search gives no reason"] * 4


def test_a_threshold_by_gain_waits_for_the_untrained_model(tmp_path: Path) -> None:
    world = World(tmp_path, min_gain_share=0.9)
    source = world.source(Scripted([CANDIDATES[0]]))
    assert source.upcoming(2) == []
    world.finish(BASE_RUN)
    assert source.upcoming(2) == ["3-0", "3-1"]


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("randm", "Did you mean 'random'"),
        ({"name": "random", "num_configurations": 0}, "space.search.num_configurations must"),
        ("random", "space.search.num_configurations must be given"),
        ({"num_configurations": 3}, "space.search must be a mapping with a name"),
    ],
)
def test_a_search_that_is_none_is_refused(tmp_path: Path, search: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_spec(small_spec(tmp_path, space={**SPACE, "search": search}))


def test_a_search_is_written_with_its_parameters(tmp_path: Path) -> None:
    def search(given: Any) -> Any:
        return load_spec(small_spec(tmp_path, space={**SPACE, "search": given})).space.search

    assert search({"name": "random", "num_configurations": 3}).params.num_configurations == 3
    assert search("grid") is search(None) is None
    random = {"name": "random", "num_configurations": 3}
    spec = load_spec(small_spec(tmp_path, space={**SPACE, "search": random}))
    assert load_spec(spec.model_dump(mode="json")) == spec, "as the sweep's folder keeps it"


def test_undrawn_configurations_are_skipped_with_a_reason(raydp, tmp_path: Path) -> None:
    """A random search to its end, with results that are written instead of trained."""
    world = World(tmp_path, max_loss=9.0)
    space = {**SPACE, "search": {"name": "random", "num_configurations": 1}}
    source = world.source(load_spec(small_spec(tmp_path, space=space)).space.search.params)
    drawn = [str(source.next_run()) for _ in range(2)]
    world.finish(*drawn)
    assert source.next_run() is None
    assert source.finished
    ended = counts(world.folder)
    assert (ended.finished, ended.skipped, ended.pending) == (2, 6, 0)
    assert set(ended.search.skipped.values()) == {"it was not drawn"}
    status = raydp("status", world.folder.path)
    assert "2 finished" in status.out
    assert "1 configurations were drawn; 3 configurations skipped" in status.out


@pytest.mark.slow
def test_a_sweep_by_optuna_keeps_its_study_in_the_sweeps_folder(
    raydp, write_spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep of two of four configurations, two seeds each; the third exceeds a bound before it
    runs. A resume runs nothing more. It trains without Ray: `test_further_seeds` has Ray and a
    source of runs."""
    space = {**SPACE, "search": {"name": "optuna", "num_configurations": 2, "initial": 2}}
    select = {"score": "vmr_exact", "min_gain_share": 0, "at_most": {"compute": 160}}
    path = write_spec(space=space, seeds=[0, 1], select=select)
    train_without_ray(monkeypatch)
    answer = raydp("sweep", path, "--json", "--quiet")
    assert answer.code == 0, answer.err
    found = answer.json()
    assert (found["counts"]["finished"], found["counts"]["skipped"], found["counts"]["failed"]) == (
        4,
        4,
        0,
    )
    skipped = {row["num_steps"]: row["reason"] for row in found["counts"]["search"]["skipped"]}
    assert len(skipped) == 2
    assert skipped[6] == "its compute of 192 exceeds select.at_most 160"
    assert found["selected"]["num_steps"] in {3, 4, 5} - skipped.keys()
    table = Sweep(path).points()
    assert table["status"].tolist().count("skipped") == 4
    means = table.groupby("num_steps")[["utility_loss", "score"]].mean().dropna()
    study = optuna.load_study(study_name="small", storage=f"sqlite:///{found['folder']}/optuna.db")
    told = {trial.params["num_steps"]: trial.values for trial in study.trials}
    assert told == {steps: pytest.approx(list(row)) for steps, row in means.iterrows()}
    assert all(set(trial.constraints) == {"utility_loss", "compute"} for trial in study.trials)
    assert raydp("sweep", path, "--resume", "--json").json()["counts"] == found["counts"]

"""The search by Optuna: what its study is told, what it asks for, and how it goes on after a
kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState
from replay import replay

from raydp.analysis import configuration_means
from raydp.analysis.tables.columns import KEY
from raydp.analysis.tables.points import configurations
from raydp.extensions.searches.observations import observations_of
from raydp.extensions.searches.optuna_search import OptunaSearch
from raydp.extensions.searches.optuna_study import FILE, SearchStudy, _Nearest, opened
from raydp.extensions.searches.random_order import RandomSearch
from raydp.search_spaces import Configuration, grid
from raydp.sweep.search import Goal, SearchState
from raydp.testing.surface import SPACE, median_loss, surface
from tests.marks import slow_unless

CANDIDATES = tuple(sorted(SPACE, key=lambda c: c.key))


def trials(folder: Path) -> list[FrozenTrial]:
    """The record as any other program reads it."""
    study = optuna.load_study(study_name=folder.name, storage=f"sqlite:///{folder / FILE}")
    assert study.metric_names == ["utility_loss", "score"]
    return study.trials


def ran(trial: FrozenTrial) -> Configuration:
    return Configuration(**trial.params)


def rows(table: pd.DataFrame, *some: Configuration) -> pd.DataFrame:
    return table[[configuration in some for configuration in configurations(table)]]


def state(table: pd.DataFrame, folder: Path, *finished: Configuration, **more: Any) -> SearchState:
    points = rows(table, *finished) if finished else None
    return SearchState(candidates=CANDIDATES, points=points, folder=folder, **more)


@pytest.mark.daily
def test_the_study_holds_each_run_configuration_with_means_and_constraints(tmp_path: Path) -> None:
    table = surface(np.random.default_rng(0))
    limit = median_loss(table)
    search, goal = OptunaSearch(num_configurations=12), Goal(max_loss=limit, max_score=2.0)
    order = replay(table, search, goal, folder=tmp_path).order
    assert order == replay(table, search, goal).order, "where it keeps its study changes nothing"
    means = configuration_means(table).set_index(KEY)
    found = trials(tmp_path)
    assert tuple(ran(trial) for trial in found) == order
    for trial in found:
        mean = means.loc[tuple(ran(trial).to_row()[name] for name in KEY)]
        assert trial.state == TrialState.COMPLETE
        assert trial.values == [mean["utility_loss"], mean["score"]]
        assert trial.constraints["utility_loss"] == pytest.approx(mean["utility_loss"] - limit)
        assert trial.constraints["score"] >= mean["score"] - 2.0, (
            "the upper limit is what the selection compares"
        )
        assert set(trial.params) == {"batch_size", "num_steps", "learning_rate"}, (
            "σ is never sampled"
        )


@pytest.mark.daily
def test_constraints_turn_the_search_to_configurations_that_keep_to_them() -> None:
    """After the random start, more of what it runs keeps to a threshold that a quarter of the space
    keeps to than without one (three surfaces, 15 configurations each; 23 and 10 of 45 were
    measured)."""
    kept = {"with": 0, "without": 0}
    for seed in range(3):
        table = surface(np.random.default_rng(seed))
        loss = configuration_means(table).set_index(KEY)["utility_loss"]
        limit = float(loss.quantile(0.25))
        for name, goal in (("with", Goal(max_loss=limit)), ("without", Goal())):
            order = replay(table, OptunaSearch(num_configurations=20), goal).order
            kept[name] += sum(
                loss.loc[tuple(c.to_row()[name] for name in KEY)] <= limit for c in order[5:]
            )
    assert kept["with"] > 1.5 * kept["without"]


@pytest.mark.parametrize("sampler", slow_unless(["nsga2"], ["gp", "nsga2"]))
def test_every_sampler_keeps_to_constraints_and_its_study_can_be_resumed(
    tmp_path: Path, sampler: str
) -> None:
    """What a sampler asks for depends on the seed and the study alone, whether a process was killed
    in between."""
    table = surface(np.random.default_rng(5))
    goal = Goal(max_loss=median_loss(table), max_score=2.0)
    search = OptunaSearch(sampler=sampler, num_configurations=6, initial=4)
    order = replay(table, search, goal, folder=tmp_path).order
    assert len(set(order)) == 6
    if sampler == "gp":  # nsga2 keeps its generations in the folder's study
        assert order == replay(table, search, goal).order
    assert [ran(trial) for trial in trials(tmp_path)] == list(order)
    started = state(table, tmp_path / "again", *order[:4])
    (tmp_path / "again").mkdir()
    first = search.propose(started, goal, 2).configurations
    assert search.propose(started, goal, 2).configurations == first, "asked for before a kill"


@pytest.mark.daily
def test_it_finds_more_than_random_search_does_with_as_many_configurations() -> None:
    """Three surfaces, 20 of 64 configurations, median excess over the grid's choice: 0 and 30 %
    were measured."""
    found: dict[str, list[float]] = {"optuna": [], "random": []}
    for seed in range(3):
        table = surface(np.random.default_rng(seed))
        goal = Goal(max_loss=median_loss(table))
        for name, kind in (("optuna", OptunaSearch), ("random", RandomSearch)):
            for repetition in range(2):
                one = replay(table, kind(num_configurations=20, seed=repetition), goal)
                found[name].append(
                    one.relative_excess if one.relative_excess is not None else np.inf
                )
    assert np.median(found["optuna"]) <= 0.05
    assert np.median(found["optuna"]) < np.median(found["random"])


def test_a_share_of_the_gain_is_judged_anew_with_every_result(tmp_path: Path) -> None:
    """Kept to when it was told, not any more when a better one has come: the sampler sees what
    holds now."""
    table = surface(np.random.default_rng(1))
    by_loss = configuration_means(table).sort_values("utility_loss")
    best, worst = (configurations(by_loss)[at] for at in (0, -1))
    goal = Goal(min_gain_share=0.9, base_utility_loss=float(by_loss["utility_loss"].max()) + 0.2)
    search = OptunaSearch()
    search.propose(state(table, tmp_path, worst), goal, 1)
    assert trials(tmp_path)[0].constraints["utility_loss"] <= 0
    now = state(table, tmp_path, worst, best)
    with opened(tmp_path) as record:
        study = SearchStudy.of(record, now, observations_of(now.points, goal))
        seen = {
            ran(trial): trial.constraints["utility_loss"]
            for trial in study.copy.trials
            if trial.constraints
        }
    assert seen[worst] > 0 >= seen[best]


def test_configurations_asked_for_before_a_kill_come_first(tmp_path: Path) -> None:
    """Nothing of it was begun: the same trials go on, none is asked for twice."""
    table, search, goal = surface(np.random.default_rng(2)), OptunaSearch(), Goal()
    asked = search.propose(state(table, tmp_path), goal, 3).configurations
    again = search.propose(state(table, tmp_path), goal, 2).configurations
    assert again == asked[:2]
    more = search.propose(state(table, tmp_path, running=asked[:2]), goal, 2).configurations
    assert more[0] == asked[2]
    assert more[1] not in asked
    assert [ran(trial) for trial in trials(tmp_path)] == [*asked, more[1]]
    assert {trial.state for trial in trials(tmp_path)} == {TrialState.RUNNING}


def test_results_of_a_closed_study_are_recorded_at_its_reopening(tmp_path: Path) -> None:
    table, search, goal = surface(np.random.default_rng(3)), OptunaSearch(), Goal(max_loss=9.0)
    first, second, third = search.propose(state(table, tmp_path), goal, 3).configurations
    search.propose(state(table, tmp_path, first, failed=(second,), running=(third,)), goal, 1)
    found = trials(tmp_path)
    states = [TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING, TrialState.RUNNING]
    assert [trial.state for trial in found] == states
    assert found[0].constraints == {"utility_loss": pytest.approx(found[0].values[0] - 9.0)}
    search.propose(state(table, tmp_path, first, second, running=(third,)), goal, 1)
    retried = [trial.state for trial in trials(tmp_path) if ran(trial) == second]
    assert retried == [TrialState.FAIL, TrialState.COMPLETE], "a resume runs a failed run again"


def test_the_search_ends_with_the_last_recorded_result(tmp_path: Path) -> None:
    table, search, goal = (
        surface(np.random.default_rng(8)),
        OptunaSearch(num_configurations=2),
        Goal(),
    )
    asked = search.propose(state(table, tmp_path), goal, 4).configurations
    waits = search.propose(state(table, tmp_path, asked[0], running=asked[1:]), goal, 1)
    assert (len(asked), waits.configurations, waits.finished) == (2, (), False)
    assert search.propose(state(table, tmp_path, *asked), goal, 1).finished
    assert [trial.state for trial in trials(tmp_path)] == [TrialState.COMPLETE] * 2


def test_a_lost_study_is_rebuilt_from_all_results(tmp_path: Path) -> None:
    table, search, goal = surface(np.random.default_rng(4)), OptunaSearch(), Goal()
    some = CANDIDATES[:3]
    search.propose(
        state(table, tmp_path, *some, running=CANDIDATES[3:4], failed=CANDIDATES[4:5]), goal, 1
    )
    before = [(ran(trial), trial.state, trial.values) for trial in trials(tmp_path)]
    (tmp_path / FILE).unlink()
    search.propose(
        state(table, tmp_path, *some, running=CANDIDATES[3:4], failed=CANDIDATES[4:5]), goal, 1
    )
    after = [(ran(trial), trial.state, trial.values) for trial in trials(tmp_path)]
    assert after == before
    assert len(after) == 6


def test_a_file_that_is_no_study_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("something else, long enough to be no database at all" * 20)
    table = surface(np.random.default_rng(5))
    with pytest.raises(
        ValueError, match=rf"SWEEP must have an {FILE} that can be read.* delete it and go on"
    ):
        OptunaSearch().propose(state(table, tmp_path), Goal(), 1)


@pytest.mark.slow
def test_another_seed_draws_other_configurations() -> None:
    table, goal = surface(np.random.default_rng(6)), Goal()
    orders = {
        replay(table, OptunaSearch(num_configurations=8, seed=seed), goal).order
        for seed in (0, 0, 1)
    }
    assert len(orders) == 2


@pytest.mark.daily
def test_budgets(tmp_path: Path) -> None:
    table, goal = surface(np.random.default_rng(7)), Goal()
    plain = replay(table, OptunaSearch(), goal)
    assert 0.45 < plain.cost_share <= 0.5
    assert plain.reason == "the budget of compute is used up"
    few = replay(table, OptunaSearch(num_configurations=6), goal)
    assert (len(few.order), few.reason) == (6, "the budget of 6 configurations is used up")
    both = replay(table, OptunaSearch(num_configurations=60, max_cost_share=0.1), goal)
    assert both.cost_share <= 0.1
    every = replay(table, OptunaSearch(max_cost_share=1.0), goal)
    assert (len(every.order), every.reason) == (64, "every configuration has run")


class Suggests:
    """A sampler that always suggests the same."""

    def __init__(self, **values: float) -> None:
        self.values = values

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return {}

    def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> float:
        return self.values[name]


def test_a_suggestion_is_moved_to_the_nearest_in_logarithms() -> None:
    distributions = {
        "batch_size": IntDistribution(64, 512, log=True),
        "num_steps": IntDistribution(30, 30, log=True),
        "learning_rate": FloatDistribution(1e-3, 1e-1, log=True),
    }
    sampler = Suggests(batch_size=100, learning_rate=1.2e-2)
    space = grid([64, 512], [30], ["1e-3", "3e-2", "1e-1"])
    nearest = _Nearest(sampler, distributions, space)  # type: ignore[arg-type]
    assert nearest.sample_relative(None, None, distributions) == {  # type: ignore[arg-type]
        "batch_size": 64,
        "num_steps": 30,
        "learning_rate": 3e-2,
    }


def test_one_configuration_is_run_whatever_it_costs(tmp_path: Path) -> None:
    """A search that runs nothing selects nothing."""
    table, one = surface(np.random.default_rng(8)), CANDIDATES[:1]
    only = SearchState(candidates=one, points=None, folder=tmp_path)
    assert OptunaSearch().propose(only, Goal(), 2).configurations == one
    poor = OptunaSearch(max_cost_share=1e-9).propose(state(table, tmp_path / "."), Goal(), 2)
    assert len(poor.configurations) == 1


def test_a_folder_of_any_name_holds_its_own_study(tmp_path: Path) -> None:
    folder = tmp_path / "weird {x} %20 ?a=1#b"
    folder.mkdir()
    with opened(folder):
        pass
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [FILE]
    assert (folder / FILE).is_file()

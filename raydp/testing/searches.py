"""The suite of searches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from raydp.analysis.tables.points import configurations
from raydp.plugins import registries
from raydp.plugins.described import resolve_plugin
from raydp.search_spaces import Configuration, grid
from raydp.search_spaces.settings import Settings
from raydp.sweep.search import Goal, Proposal, SearchState
from raydp.testing.surface import COLUMNS, SPACE, median_loss, surface

FIELDS: list[dict[str, object]] = [
    {"method.max_grad_norm": 0.5, "model.adapter.r": 2},
    {"method.max_grad_norm": 1.0, "model.adapter.r": 16},
    {"method.second_moment": "corrected", "method.max_grad_norm": 1.0, "model.adapter.r": 2},
]
WITH_FIELDS = [
    Configuration(batch_size=b, num_steps=20, learning_rate=0.01, settings=Settings(fields))
    for b in (32, 64)
    for fields in FIELDS
]
CANDIDATES = tuple(sorted(SPACE, key=lambda c: c.key))


class SearchConformance:
    """Inherit, and say by `name` and `written` how a spec writes the search; every registered one
    runs this.

    Attributes:
        written: parameters with which the search stops before it has run the 64 configurations.
    """

    name: str
    written: dict[str, Any]

    def search(self) -> Any:
        problems: list[str] = []
        found = resolve_plugin(
            "searches", "space.search", {"name": self.name, **self.written}, problems
        )
        assert found is not None, problems
        return found.params

    def test_it_is_registered(self) -> None:
        assert isinstance(self.search(), registries.resolve("searches", self.name))

    def test_it_runs_nothing_twice_and_says_why_it_skips_what_it_does(self, tmp_path: Path) -> None:
        table = surface(np.random.default_rng(2))
        goal = Goal(max_loss=median_loss(table))
        for folder in (None, tmp_path):
            order, end = run(self.search(), table, goal, batch=3, folder=folder)
            assert len(set(order)) == len(order)
            assert set(order) < set(SPACE)
            assert end.reason
            assert set(end.skipped) == set(SPACE) - set(order)
            assert all(end.skipped.values())

    def test_the_same_state_gets_the_same_answer(self, tmp_path: Path) -> None:
        table = surface(np.random.default_rng(3))
        goal, part = Goal(max_loss=median_loss(table)), table[table["num_steps"] == 30]
        for folder in (None, tmp_path):
            state = SearchState(candidates=CANDIDATES, points=part, folder=folder)
            answers = [self.search().propose(state, goal, 2) for _ in range(2)]
            assert answers[0] == answers[1]

    def test_it_proposes_at_most_as_many_as_asked_and_only_what_is_new(self) -> None:
        table = surface(np.random.default_rng(4))
        goal, part = Goal(max_loss=median_loss(table)), table[table["num_steps"] == 30]
        ran = {c for c in CANDIDATES if c.num_steps == 30}
        running, failed = CANDIDATES[20:22], CANDIDATES[30:32]
        state = SearchState(candidates=CANDIDATES, points=part, running=running, failed=failed)
        for count in (1, 4):
            chosen = self.search().propose(state, goal, count).configurations
            assert len(set(chosen)) == len(chosen) <= count
            assert set(chosen) <= set(CANDIDATES) - ran - set(running) - set(failed)

    def test_it_ends_where_everything_fails(self, tmp_path: Path) -> None:
        failed: list[Configuration] = []
        for _ in range(len(CANDIDATES) + 1):
            state = SearchState(
                candidates=CANDIDATES, points=None, failed=tuple(failed), folder=tmp_path
            )
            proposal = self.search().propose(state, Goal(), 1)
            if proposal.finished:
                break
            failed += proposal.configurations
        assert proposal.finished
        assert set(proposal.skipped) == set(CANDIDATES) - set(failed)

    @pytest.mark.parametrize(
        "space",
        [
            pytest.param([CANDIDATES[7]], id="one configuration"),
            pytest.param(grid([64], [30, 60, 90], ["1e-2"]), id="one hyperparameter"),
            pytest.param([CANDIDATES[k] for k in (0, 9, 22, 47, 63)], id="a list"),
            pytest.param(
                WITH_FIELDS, id="further fields, some of which only some configurations set"
            ),
        ],
    )
    def test_it_ends_on_a_small_space(self, space: list[Configuration]) -> None:
        rows = [
            (
                c.batch_size,
                c.num_steps,
                c.learning_rate,
                0,
                3 - 0.1 * np.log(c.compute),
                float(c.updates),
            )
            for c in space
        ]
        own = pd.DataFrame(rows, columns=COLUMNS).assign(settings=[c.settings.text for c in space])
        order, _ = run(self.search(), own, Goal())
        assert len(set(order)) == len(order)
        assert set(order) <= set(space)

    def test_every_bound_of_the_selection_is_taken(self) -> None:
        table = surface(np.random.default_rng(5)).assign(epsilon=8.0)
        goal = Goal(
            min_gain_share=0.9,
            base_utility_loss=9.0,
            max_score=1.5,
            at_most={"epsilon": 8, "compute": 20000},
        )
        order, _ = run(self.search(), table, goal)
        assert order


def run(
    search: Any, table: pd.DataFrame, goal: Goal, *, batch: int = 1, folder: Path | None = None
) -> tuple[list[Configuration], Proposal]:
    """Let a search run to its end; what it ran, in order, and its last answer."""
    candidates = tuple(sorted(set(configurations(table)), key=lambda c: c.key))
    order: list[Configuration] = []
    while True:
        mask = [configuration in order for configuration in configurations(table)]
        points = table[mask] if order else None
        proposal = search.propose(
            SearchState(candidates=candidates, points=points, folder=folder), goal, batch
        )
        assert len(order) <= len(candidates)
        if proposal.finished:
            return order, proposal
        assert proposal.configurations, "nothing is running that it could wait for"
        order += proposal.configurations

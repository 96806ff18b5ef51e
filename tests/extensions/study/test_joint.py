"""Runs of several sweeps in one queue: their keys, their order, and their adaptive seeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml

from raydp.extensions.study.joint import JointSource
from raydp.sweep.engine.leases.keys import key_of, split_key
from raydp.sweep.engine.training import in_order
from raydp.sweep.engine.tune.rounds import ListSource
from tests.builders.specs import small_spec
from tests.conftest import Answer
from tests.sweep.without_ray import train_without_ray


@pytest.mark.parametrize(("sweep", "run_id"), [("", "base"), ("epsilon-0.5", "a1b2")])
def test_a_key_names_the_sweep_and_the_run(sweep: str, run_id: str) -> None:
    assert split_key(key_of(sweep, run_id)) == (sweep, run_id)


def test_the_largest_of_the_next_runs_is_given_first_and_each_once() -> None:
    compute = {"a/1": 9, "a/2": 4, "b/3": 8, "b/4": 7, "b/5": 1}
    order = sorted(compute, key=lambda key: -compute[key])
    source = JointSource({"a": ListSource(["1", "2"]), "b": ListSource(["3", "4", "5"])}, order)
    assert source.upcoming(2) == ["a/1", "b/3"]
    assert source.handed_out == 0
    assert source.given() == []
    given = [source.next_run() for _ in range(5)]
    assert given == order
    assert source.finished
    assert source.next_run() is None
    assert sorted(source.given()) == sorted(compute)
    assert source.handed_out == 5


def test_runs_on_equal_data_follow_each_other_even_if_all_data_cost_the_same() -> None:
    def training(name: str, data: object, computes: list[int]) -> Any:
        left = {key_of(name, str(number)): cost for number, cost in enumerate(computes)}
        spec = SimpleNamespace(model=SimpleNamespace(model_dump_json=lambda: "tiny"))
        return SimpleNamespace(task=data, context=SimpleNamespace(spec=spec), compute=lambda: left)

    mails, chats = object(), object()
    order = in_order(
        [training("a", mails, [8, 2]), training("b", chats, [8, 3]), training("c", mails, [1])]
    )
    assert list(order) == ["a/0", "a/1", "c/0", "b/0", "b/1"]
    assert order["b/1"] == 3


class Waiting:
    """A source that has no run now."""

    finished, handed_out = False, 0

    def next_run(self) -> None:
        return None

    def given(self) -> list[str]:
        return []


def test_a_source_that_waits_does_not_end_the_others() -> None:
    source = JointSource({"a": Waiting(), "b": ListSource(["1"])}, ["b/1"])
    assert source.next_run() == "b/1"
    assert source.next_run() is None
    assert not source.finished


@pytest.mark.daily("raydp/sweep/engine")
def test_adaptive_seeds_of_each_sweep_go_through_one_queue_and_a_resume_goes_on(
    raydp: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_without_ray(monkeypatch)
    seeds = {"first": 2, "at_most": 4, "max_cost_share": 0.5}
    changes: dict[str, Any] = {
        "scores": [{"name": "logprob"}],
        "select": {"score": "logprob", "min_gain_share": None},
    }
    study = tmp_path / "study.yaml"
    content = {**small_spec(tmp_path, **changes), "axes": {"privacy.target_epsilon": [1, 64]}}

    def told(*options: str, **changes: Any) -> dict[str, Any]:
        study.write_text(yaml.safe_dump({**content, **changes}))
        answer = raydp("study", study, "--json", *options)
        assert answer.code == 0, answer.err
        document: dict[str, Any] = json.loads(answer.out)
        return document

    first = told(seeds=seeds)
    assert not isinstance(first["epsilon"], str), first["epsilon"]
    (answer,) = first["epsilon"]
    assert (answer["epsilon"], answer["gold"], answer["max_leak"]) == (None, None, None)
    page = Path(first["envelope"])
    assert "At ε = 64 the useful configurations leak" in page.read_text()
    assert page.stat().st_mode & 0o777 == 0o600
    points = finished(first)
    of_cell = points.groupby("cell").size()
    assert of_cell.between(4, 6).all()
    again = finished(told("--resume", seeds=seeds))
    assert list(again["run_id"]) == list(points["run_id"])
    # Another decision is asked for: the sweeps go on, and no run is repeated.
    asked = {**seeds, "max_cost_share": 3.0, "tolerance": 0, "confidence": 0.99999}
    more = finished(told("--resume", seeds=asked))
    assert len(more) > len(points)
    assert set(points["run_id"]) <= set(more["run_id"])


def finished(document: dict[str, Any]) -> pd.DataFrame:
    points = pd.read_csv(document["points"])
    return points[points["status"] == "finished"]

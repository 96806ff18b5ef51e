"""Further seeds go where the answer to "which ε?" is in doubt, and end with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from raydp.analysis.seeds.allocation import NextSeed
from raydp.extensions.study.safe_epsilon import SafeEpsilon, StudyScores
from raydp.extensions.study.seeds import seed_of_doubt
from raydp.search_spaces import Configuration
from tests.builders.specs import small_spec
from tests.conftest import Answer
from tests.extensions.finer_measurement.test_measured_again import SPEC as FINER
from tests.extensions.study.test_safe_epsilon import EPSILONS, epsilon_of, generated
from tests.sweep.without_ray import train_without_ray

FIRST, AT_MOST = 2, 10


class Generated:
    """A study whose runs are revealed one after another."""

    def __init__(self, seed: int, share: float, *, spread: float = 0.25) -> None:
        self.points, self.truth = generated(seed, num_seeds=AT_MOST, spread=spread)
        self.limit = float(np.quantile(list(self.truth.values()), share))
        self.begun = dict.fromkeys(self.truth, FIRST)
        self.first = sum(FIRST * c.compute for c in self.truth)

    def known(self, begun: dict[Configuration, int]) -> tuple[StudyScores, SafeEpsilon]:
        seeds = {str(c): number for c, number in begun.items()}
        names = self.points["run_id"].str.rsplit("-", n=1).str[0]
        scores = StudyScores.of(self.points[self.points["seed"] < names.map(seeds)])
        (answer,) = scores.answers(max_leak=self.limit)
        return scores, answer

    def step(self, *, budget: float = 1.0) -> NextSeed:
        spent = sum(c.compute * (n - FIRST) for c, n in self.begun.items())
        return seed_of_doubt(
            [self.known(self.begun)],
            self.begun,
            at_most=AT_MOST,
            compute_left=budget * self.first - spent,
        )

    def ended(self) -> NextSeed:
        while (step := self.step()).configuration is not None:
            self.begun[step.configuration] += 1
        return step

    def right(self, answer: SafeEpsilon) -> int:
        """Return how many of ε and ε^gold are those of the truth."""
        keeping = {e: [v <= self.limit for c, v in self.truth.items() if epsilon_of(c) == e] for e in EPSILONS}  # fmt: skip
        best = max((e for e in EPSILONS if any(keeping[e])), default=None)
        golden = [e for k, e in enumerate(EPSILONS) if all(map(all, list(keeping.values())[: k + 1]))]  # fmt: skip
        return (answer.epsilon == best) + (answer.gold == max(golden, default=None))


@pytest.mark.daily("analysis/surface", "analysis/seeds")
def test_the_answer_is_right_as_often_as_with_equal_seeds_at_a_part_of_the_runs() -> None:
    own, equal, runs, of_equal = 0, 0, 0, 0
    for seed in (0, 2, 3, 4, 5, 6, 9):
        study = Generated(seed, np.random.default_rng([seed, 1]).uniform(0.2, 0.9))
        assert study.ended().state in ("answered", "budget used up")
        own += study.right(study.known(study.begun)[1])
        runs += sum(study.begun.values()) - FIRST * len(study.truth)
        four = dict.fromkeys(study.truth, 4)
        equal += study.right(study.known(four)[1])
        of_equal += 2 * len(study.truth)
    assert runs <= of_equal / 4
    assert own >= equal


def test_without_doubt_no_seed_is_asked_for_and_the_reason_is_the_answer() -> None:
    """Every leak is far below the limit, or far above it."""
    for limit, words in ((1e9, "Up to ε = 16 every"), (1e-12, "No measured ε has")):
        study = Generated(0, 0.5)
        study.limit = limit
        end = study.step()
        assert (end.state, end.configuration) == ("answered", None)
        assert end.reason is not None
        assert words in end.reason


def test_the_next_seed_goes_where_the_answer_is_in_doubt() -> None:
    """That is an ε above the answer, or the first one below which not all keep to the limit."""
    for seed in range(6):
        study = Generated(seed, 0.6)
        scores, answer = study.known(study.begun)
        doubts = scores.doubts(answer)
        open_gold = next(
            (e["epsilon"] for e in answer.levels if (e["probability_all"] or 0) < 0.95), None
        )
        for m in np.flatnonzero(doubts):
            at = scores.epsilons[m]
            assert at > (answer.epsilon or 0) or at == open_gold
            p = scores.keeps(int(m), study.limit)
            assert doubts[m] == pytest.approx(p * (1 - p))
        if (chosen := study.step().configuration) is not None:
            assert doubts[scores.listed.index(chosen)] > 0


def test_a_study_without_further_seeds_names_its_limit() -> None:
    study = Generated(8, 0.5)
    assert study.step().configuration is not None, "this study is in doubt"
    assert (study.step(budget=0).state, study.step(budget=0).limit) == (
        "budget used up",
        "max_cost_share",
    )
    study.begun = dict.fromkeys(study.truth, AT_MOST)
    parts = [study.known(dict.fromkeys(study.truth, FIRST))]
    end = seed_of_doubt(parts, study.begun, at_most=AT_MOST, compute_left=1e9)
    assert (end.state, end.limit) == ("budget used up", "at_most")
    # Sweeps that have ended get no more.
    end = seed_of_doubt(parts, {}, at_most=AT_MOST, compute_left=1e9)
    assert end.configuration is None


def test_errors_that_no_seed_shrinks_end_the_seeds() -> None:
    study = Generated(8, 0.5, spread=0.01)
    scores, answer = study.known(study.begun)
    # There are two secrets, which differ by far more than the runs.
    of_secrets = np.column_stack([scores.means["score"] * k for k in (0.1, 1.9)])
    measured = replace(scores.measured, of_secrets=of_secrets)
    scores = replace(scores, measured=measured, posterior=measured.posterior())
    (answer,) = scores.answers(max_leak=study.limit)
    assert scores.doubts(answer).any()
    end = seed_of_doubt([(scores, answer)], study.begun, at_most=AT_MOST, compute_left=1e9)
    assert end.state == "secrets are short"


@pytest.mark.daily("raydp/sweep/engine")
def test_all_sweeps_measure_more_finely_before_further_seeds_or_none_does(
    raydp: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_without_ray(monkeypatch)
    file = tmp_path / "study.yaml"
    for name, limit, again in (("clear", 1e6, False), ("doubt", 0.2, True)):
        content = small_spec(
            tmp_path, **{**FINER, "seeds": {"first": 2, "at_most": 3, "max_cost_share": 0.5}}
        )
        axes, limits = {"privacy.target_epsilon": [1, 64]}, {"max_leak": limit}
        file.write_text(yaml.safe_dump({**content, "name": name, "axes": axes, "limits": limits}))
        assert raydp("study", file, "--json").code == 0
        ends = [json.loads(p.read_text()) for p in tmp_path.glob(f"runs/{name}/*/seeds.json")]
        assert len(ends) == 2
        assert [end["measured_again"] is not None for end in ends] == [again, again]


@pytest.mark.daily("raydp/sweep/engine")
def test_seeds_of_all_sweeps_follow_one_question_and_a_resume_goes_on(
    raydp: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the limit amid the scores the answer is in doubt, and each run is made once."""
    train_without_ray(monkeypatch)
    file = tmp_path / "study.yaml"
    seeds = {"first": 2, "at_most": 6, "max_cost_share": 0.5}
    content = small_spec(
        tmp_path,
        scores=[{"name": "logprob"}],
        select={"score": "logprob", "min_gain_share": None},
        seeds=seeds,
    )
    content["axes"] = {"privacy.target_epsilon": [1, 64]}

    def told(*options: str, **changes: Any) -> tuple[pd.DataFrame, dict[str, Any], list[Any]]:
        file.write_text(yaml.safe_dump({**content, **changes}))
        answer = raydp("study", file, "--json", *options)
        assert answer.code == 0, answer.err
        document = json.loads(answer.out)
        points = pd.read_csv(document["points"])
        folder = Path(document["points"]).parent
        ends = [json.loads(path.read_text()) for path in sorted(folder.glob("*/seeds.json"))]
        return points[points["status"] == "finished"], document["epsilon"][0], ends

    points, _, ends = told(limits={"max_leak": 1e6})
    assert len(points) == 8, "without a doubt no further run is made"
    assert [end["state"] for end in ends] == ["answered", "answered"]
    assert all("ε = 64 is the largest that keeps to a leak" in end["reason"] for end in ends)
    # Another name, and a limit that leaves a doubt.
    content["name"] = "doubt"
    limits = {"max_leak": float(points["score"].median())}
    first = cost(points)
    points, answer, ends = told(limits=limits)
    assert first < cost(points) <= 1.5 * first, "at most half a first pass more"
    assert points["run_id"].is_unique
    (state,) = {end["state"] for end in ends}
    assert state in ("answered", "budget used up")
    again, same, _ = told("--resume", limits=limits)
    assert list(again["run_id"]) == list(points["run_id"])
    assert same == answer
    remedy = "ε or ε^gold is in doubt. To go on, raise seeds."
    assert (remedy in raydp("study", file, "--resume").out) is (state == "budget used up")
    # Another confidence and budget are asked for: the sweeps go on, and no run is repeated.
    raised = {**seeds, "max_cost_share": 3.0}
    more, _, _ = told("--resume", limits={**limits, "confidence": 0.9999}, seeds=raised)
    assert set(points["run_id"]) < set(more["run_id"])


def cost(points: pd.DataFrame) -> int:
    return int((points["batch_size"] * points["num_steps"]).sum())

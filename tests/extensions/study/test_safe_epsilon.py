"""Which ε: on generated studies whose true leaks are known."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from raydp.extensions.study.answers import answered
from raydp.extensions.study.page import envelope, study_page
from raydp.extensions.study.safe_epsilon import EPSILON, SafeEpsilon, StudyScores, sentences
from raydp.search_spaces import Configuration
from raydp.search_spaces.settings import Settings
from raydp.sweep.store.source import PointsSource

EPSILONS = (1, 2, 4, 8, 16)
Truth = dict[Configuration, float]


def generated(seed: int, *, num_seeds: int = 2, spread: float = 0.25) -> tuple[pd.DataFrame, Truth]:
    """A points table of 5 ε × 8 configurations, and the true score of each.

    The logarithm of a score is linear in ln ε, ln b, ln T and ln η, with an effect of each
    configuration beside it.
    """
    rng = np.random.default_rng(seed)
    level, slopes = rng.normal(-3, 0.5), rng.normal([0.6, -0.2, 0.3, 0.5], 0.2)
    rows, truth = list[dict[str, Any]](), Truth()
    for epsilon in EPSILONS:
        for b in (64, 128):
            for t in (60, 120):
                for rate in (0.005, 0.02):
                    at = np.log([epsilon, b / 64, t / 60, rate / 0.01])
                    true = math.exp(level + slopes @ at + 0.3 * rng.normal())
                    settings = Settings({EPSILON: epsilon})
                    one = Configuration(
                        batch_size=b, num_steps=t, learning_rate=rate, settings=settings
                    )
                    truth[one] = true
                    loss = 2 - 0.1 * math.log(epsilon) - 0.1 * math.log(t / 60)
                    rows += [
                        {
                            **one.to_json(), "settings": settings.text, "seed": k, "status": "finished",
                            "run_id": f"{one}-{k}", "utility_loss": loss + 0.01 * rng.normal(),
                            "score": true * math.exp(spread * rng.normal()),
                        }
                        for k in range(num_seeds)
                    ]  # fmt: skip
    return pd.DataFrame(rows), truth


def epsilon_of(configuration: Configuration) -> float:
    return float(str(configuration.settings[EPSILON]))


def answer_of(points: pd.DataFrame, *, max_leak: float | None, **bounds: Any) -> SafeEpsilon:
    (answer,) = StudyScores.of(points, **bounds).answers(max_leak=max_leak)
    return answer


def test_nearly_exact_scores_give_the_answer_that_the_truth_gives() -> None:
    points, truth = generated(0, spread=1e-4)
    limit = sorted(truth.values())[14]
    answer = answer_of(points, max_leak=limit * 1.01)
    keeping = {e: [truth[c] <= limit * 1.01 for c in truth if epsilon_of(c) == e] for e in EPSILONS}
    assert answer.epsilon == max(e for e in EPSILONS if any(keeping[e]))
    golden = [e for k, e in enumerate(EPSILONS) if all(all(keeping[d]) for d in EPSILONS[: k + 1])]
    assert answer.gold == max(golden, default=None)
    for level in answer.levels:
        highest = max(truth[c] for c in truth if epsilon_of(c) == level["epsilon"])
        assert level["highest"] == pytest.approx(highest, rel=0.02)
        assert level["configurations"] == level["admissible"] == 8


def test_only_useful_configurations_count() -> None:
    """The loss falls with ε: at ε = 1 none is useful, and that breaks no promise."""
    points, _ = generated(1)
    bound = float(points.loc[points["settings"].str.contains(":2}"), "utility_loss"].max())
    answer = answer_of(points, max_leak=math.inf, max_loss=bound)
    assert answer.levels[0]["admissible"] < 8
    assert answer.gold == answer.epsilon == 16
    nothing = answer_of(points, max_leak=1e-9)
    assert (nothing.epsilon, nothing.configuration, nothing.gold) == (None, None, None)


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (0.5, "Not even at the smallest ε do all"),
        (1.0, r"even at the smallest ε is in doubt \(\d+ %\)"),
    ],
)
def test_a_doubt_of_the_smallest_epsilon_is_no_denial(factor: float, words: str) -> None:
    """The limit is below the highest leak there, or equal to it."""
    points, truth = generated(3, spread=0.1)
    highest = max(value for c, value in truth.items() if epsilon_of(c) == EPSILONS[0])
    answer = answer_of(points, max_leak=highest * factor)
    assert answer.gold is None
    assert re.search(words, sentences(answer)[1])


@pytest.mark.daily("analysis/surface")
def test_claims_are_wrong_no_more_often_than_they_say() -> None:
    """Of 100 studies with limits anywhere among the scores: at most 5 % and the error of counting."""
    wrong, claimed, false_gold, golden, covered, envelopes = 0, 0, 0, 0, 0, 0
    for seed in range(100):
        points, truth = generated(seed)
        share = np.random.default_rng([seed, 1]).uniform(0.2, 0.9)
        limit = float(np.quantile(list(truth.values()), share))
        answer = answer_of(points, max_leak=limit)
        if answer.configuration is not None:
            claimed += 1
            wrong += truth[Configuration.from_json(answer.configuration)] > limit
        if answer.gold is not None:
            golden += 1
            below = [v for c, v in truth.items() if epsilon_of(c) <= answer.gold]
            false_gold += max(below) > limit
        for level in answer.levels:
            highest = max(v for c, v in truth.items() if epsilon_of(c) == level["epsilon"])
            low, high = level["highest_interval"] or (math.inf, -math.inf)
            covered, envelopes = covered + (low <= highest <= high), envelopes + 1
    assert claimed > 80
    assert golden > 30
    assert wrong <= 0.05 * claimed + 2 * math.sqrt(0.05 * claimed)
    assert false_gold <= 0.05 * golden + 2 * math.sqrt(0.05 * golden)
    assert covered / envelopes > 0.88


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda points: points[points["settings"].str.contains(":4}")], "two values of ε or more"),
        (
            lambda points: points.assign(settings=points["settings"].str.replace("target_", "")),
            "must have privacy.target_epsilon in the",
        ),
        (lambda points: points[points["seed"] == 0], "must tell the errors of the scores"),
    ],
)
def test_a_table_that_cannot_tell_is_refused(change: Any, words: str) -> None:
    points, _ = generated(2)
    with pytest.raises(ValueError, match=words):
        answer_of(change(points), max_leak=0.1)


def test_models_are_asked_apart_and_data_are_fitted_apart(tmp_path: Path) -> None:
    """A model that gains nothing has no useful configuration, and does not end the others."""
    tables = []
    for seed, (task, model) in enumerate(
        [("mails", "small"), ("mails", "poor"), ("chats", "small")]
    ):
        points, _ = generated(seed)
        base = 0.1 if model == "poor" else 5.0
        text = points["settings"].str.replace("{", f'{{"model":"{model}",', regex=False)
        text = text.str.replace("}", f',"task":"{task}"}}', regex=False)
        tables.append(points.assign(settings=text, base_utility_loss=base))
    pd.concat(tables).assign(run_id=range(240)).to_csv(file := tmp_path / "points.csv", index=False)
    found = answered(
        PointsSource(file=file), max_leak=math.inf, confidence=0.95, min_gain_share=0.5
    )
    told = {(a.on["task"], a.on["model"]): a for _, a in found.parts}
    assert set(told) == {("mails", "small"), ("mails", "poor"), ("chats", "small")}
    assert [told["mails", "small"].gold, told["chats", "small"].gold] == [16, 16]
    assert sentences(told["mails", "poor"]) == ["No configuration is useful enough."]
    assert len({id(scores) for scores, _ in found.parts}) == 2
    page = study_page("models", found.parts)
    assert page.count("Up to ε = 16 every useful configuration keeps to it (ε^gold).") == 2
    assert "model = poor, task = mails" in page
    for scores, answer in found.parts:
        if answer.gold is not None:
            assert envelope(scores, answer).layout.height is None, "its box cuts a taller figure"


def test_runs_without_a_guarantee_do_not_count_at_the_epsilon_that_was_asked_for() -> None:
    points, _ = generated(4)
    without = points.assign(epsilon=math.inf, score=9.0, run_id=points["run_id"] + "-plain")
    limit = float(points["score"].max()) * 2
    with_both = pd.concat([points.assign(epsilon=1.0), without])
    assert answer_of(with_both, max_leak=limit).gold == answer_of(points, max_leak=limit).gold == 16

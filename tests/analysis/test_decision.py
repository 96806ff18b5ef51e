"""The rule "informed" and the decision: probabilities, regret, alternatives, and the edges of
both."""

from __future__ import annotations

import json
import math
from itertools import product

import numpy as np
import pandas as pd
import pytest

from raydp.analysis import select, selections_by_threshold
from raydp.analysis.selection.decision import chance, decide
from raydp.analysis.selection.equivalents import Precision
from raydp.analysis.selection.selected import Selection
from raydp.analysis.selection.wording import in_words
from raydp.analysis.surface.hierarchy import score_posterior
from raydp.analysis.tables.points import configuration_means, configurations
from raydp.search_spaces import Configuration

GRID = list(product([32, 64, 128], [10, 20], [0.005, 0.01, 0.02]))


def table(score, loss, *, seeds=2, noise=0.002, loss_noise=0.001, grid=GRID, seed=0):
    """Runs whose scores and losses are given functions of (b, T, η), with Gaussian noise."""
    rng = np.random.default_rng(seed)
    rows = [
        [b, t, rate, s, loss(b, t, rate) + loss_noise * rng.standard_normal(),
         score(b, t, rate) + noise * rng.standard_normal()]
        for b, t, rate in grid
        for s in range(seeds)
    ]  # fmt: skip
    columns = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
    return pd.DataFrame(rows, columns=columns).assign(base_utility_loss=3.0)


def falling_loss(b, t, rate):
    return 2.5 - 0.1 * np.log(b * t * rate)


def rising(b, t, rate):
    return 0.1 + 0.02 * np.log(b * t * rate)


def falling_in_batch_size(b, t, rate):
    """The contrary of the individual heuristic."""
    return 0.3 - 0.05 * np.log(b) + 0.01 * np.log(t)


def test_the_lowest_score_is_decided_even_against_the_heuristics():
    points = table(falling_in_batch_size, falling_loss)
    selected = select(points, min_gain_share=0.5)
    assert (selected.rule, selected.configuration.batch_size) == ("informed", 128)
    assert selected.explanation.startswith(
        "The scores contradict the rule procedure, which would select (b="
    )
    assert select(points, rule="procedure", min_gain_share=0.5).configuration.batch_size < 128


def test_probabilities_and_regret_are_those_of_the_draws():
    points = table(rising, falling_loss, noise=0.02)
    means = configuration_means(points)
    scores = score_posterior(means)
    pool = np.arange(len(means)) % 2 == 0
    decision = decide(means, pool, 4, scores, log_base=None, certainty=None, precision=Precision())
    drawn = scores.draws[:, pool]
    assert decision.probability == pytest.approx((drawn.argmin(axis=1) == 2).mean())
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    limited = drawn.clip(low, high)
    assert decision.expected_regret == pytest.approx((limited[:, 2] - limited.min(axis=1)).mean())
    assert decision.relative_regret == pytest.approx(
        decision.expected_regret / limited.min(axis=1).mean()
    )
    assert decision.probability_within == pytest.approx(
        (drawn[:, 2] <= 1.1 * drawn.min(axis=1)).mean()
    )
    assert decision.pool_size == 9
    probabilities = [other["probability"] for other in decision.alternatives]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) + decision.probability <= 1 + 1e-9


def test_the_selected_configuration_has_the_least_expected_regret():
    for seed in range(5):
        points = table(rising, falling_loss, noise=0.03, seed=seed)
        selected = select(points)
        means = configuration_means(points)
        scores = score_posterior(means)
        at = [Configuration.from_json(row) for row in means.to_dict("records")].index(
            selected.configuration
        )
        regrets = [
            decide(
                means,
                np.ones(len(means), bool),
                k,
                scores,
                log_base=None,
                certainty=None,
                precision=Precision(),
            ).expected_regret
            for k in range(len(means))
        ]
        assert regrets[at] <= min(regrets) + 0.05 * np.std(scores.draws[:, at])


def test_states():
    apart = select(
        table(lambda b, t, rate: 0.1 if (b, t, rate) == (64, 10, 0.01) else 0.5, falling_loss)
    )
    assert (apart.decision.state, str(apart.configuration)) == ("decided", "(b=64, T=10, η=0.01)")
    equal = select(table(lambda *_: 0.5, falling_loss, noise=0.005))
    assert equal.decision.state == "equivalent"
    assert equal.decision.probability < 0.95 <= equal.decision.probability_within
    noisy = select(table(rising, falling_loss, noise=0.05))
    assert noisy.decision.state == "undecided"
    assert any("do not decide" in warning for warning in noisy.warnings)
    for state, words in (
        (apart, "Decided: "),
        (equal, "Equivalent to the best: "),
        (noisy, "Undecided: "),
    ):
        first = in_words(state)[0]
        assert first.startswith(words)
        assert (" more than the lowest on average" in first) == (state is not apart), (
            "an expected excess beside a decided choice reads as a contradiction"
        )


@pytest.mark.parametrize("base", [math.e, 2.0])
def test_a_logarithm_is_compared_by_differences(base):
    means = configuration_means(table(lambda *_: -5.0, falling_loss, noise=0.001))
    scores = score_posterior(means, log_base=base)
    pool = np.ones(len(means), dtype=bool)
    decision = decide(means, pool, 0, scores, log_base=base, certainty=None, precision=Precision())
    assert decision.state == "equivalent", "differences of 0.001 are far below ln 1.1"
    assert decision.relative_regret == pytest.approx(base**decision.expected_regret - 1)


def test_a_loss_near_the_threshold_is_not_trusted():
    """Half of the configurations with b = 32 have measured losses below the threshold, which is
    their true loss."""
    points = table(
        lambda b, t, rate: 0.1 * b / 32,
        lambda b, t, rate: 2.0 if b == 32 else 1.5,
        loss_noise=0.02,
        seed=3,
    )
    careful = select(points, max_loss=2.0)
    assert any(c.batch_size == 32 for c in careful.steps[0].survivors)
    assert careful.configuration.batch_size == 64
    assert [step.name for step in careful.steps][:3] == [
        "utility threshold",
        "leakage check",
        "utility check",
    ]
    assert careful.decision.utility_probability > 0.99
    clear = select(points, max_loss=2.1)
    assert clear.configuration.batch_size == 32


def test_no_configuration_keeps_to_the_threshold_with_the_confidence():
    points = table(rising, lambda *_: 2.0, loss_noise=0.1)
    lowest = configuration_means(points)["utility_loss"].min()
    selected = select(points, max_loss=lowest + 1e-6)
    assert selected.decision.utility_probability < 0.95
    assert any(
        "keeps to the utility threshold with a probability of" in warning
        for warning in selected.warnings
    )
    assert (selected.decision.state, selected.decision.pool_size) == ("undecided", 1)
    assert (
        selected.decision.reason
        == "no configuration keeps to the utility threshold with a probability of 95 %"
    )
    (first, *further) = in_words(selected)
    assert first == (
        "Undecided: no configuration keeps to the utility threshold with a probability of 95 %. "
        "This one is the most likely to."
    )
    assert not any("no configuration" in sentence.lower() for sentence in further), (
        "it is said once"
    )


@pytest.mark.parametrize("rule", ["informed", "oracle", "best-utility"])
def test_sole_passing_mean_names_others_that_may_pass(rule):
    """The threshold lies between the two lowest mean losses, whose true losses differ by less than
    their errors."""
    points = table(rising, lambda b, t, rate: 2.0 - rate - 0.001 * b, loss_noise=0.01)
    lowest, second = np.sort(configuration_means(points)["utility_loss"])[:2]
    selected = select(points, rule=rule, max_loss=(lowest + second) / 2)
    assert len(selected.steps[0].survivors) == 1
    assert selected.decision.state == ("undecided" if rule == "informed" else "only one")
    (warning,) = [each for each in selected.warnings if "keeps to the utility threshold" in each]
    others = warning.partition("Others may keep to it too: ")[2]
    assert 1 <= others.count("(b=") <= 3, warning
    assert str(selected.configuration) not in others
    assert not any("sure to pass" in each for each in (*selected.warnings, *in_words(selected)))


def test_the_only_one_that_is_certain_of_its_utility_is_not_called_the_only_one_that_passes():
    grid = [(32, 10, 0.01), (64, 10, 0.01)]
    points = table(
        rising, lambda b, t, rate: 1.0 if b == 64 else 1.98, grid=grid, seeds=6, loss_noise=0.05
    )
    selected = select(points, max_loss=2.0)
    assert (selected.configuration.batch_size, selected.decision.pool_size) == (64, 1)
    assert len(selected.steps[0].survivors) == 2, "both pass by their means"
    assert in_words(selected)[0].startswith(
        "Only one configuration is sure to pass the threshold, with"
    )


@pytest.mark.parametrize(("best", "ends"), [((64, 0.1), 2), ((32, 0.1), 2), ((64, 0.03), 1)])
def test_one_that_passes_is_no_choice(best, ends):
    """It says at which ends of the grid the configuration lies, so that the grid can be extended
    there."""
    grid = [(b, 10, rate) for b in (32, 64) for rate in (0.01, 0.03, 0.1)]
    points = table(
        rising,
        lambda b, t, rate: 1.0 if (b, rate) == best else 3.0,
        grid=grid,
        seeds=4,
        loss_noise=0.01,
    )
    selected = select(points, max_loss=2.0)
    assert (selected.decision.state, selected.decision.probability) == ("only one", None)
    first = selected.warnings[0]
    assert first.startswith(
        "Only 1 of 6 configurations is sure to pass, so the scores had next to nothing to choose"
    )
    assert (first.count("largest") + first.count("smallest"), "learning_rate 0.1 is the largest" in first) == (
        ends, best[1] == 0.1,
    )  # fmt: skip
    assert not any("sure to pass" in warning for warning in select(points, max_loss=4.0).warnings)


def test_scores_that_never_differ_between_seeds_decide_nothing():
    """Scores of 0 and of 1 may be the ends of a scale: their errors are not known."""
    points = table(lambda b, t, rate: float(b == 64), lambda *_: 2.0, noise=0.0)
    decision = select(points).decision
    assert (decision.state, decision.reason) == (
        "undecided", "no score differs between two seeds, so the errors of the scores are not known",
    )  # fmt: skip


def test_a_threshold_of_the_best_gain_moves_with_the_best_loss():
    """With gains of 1.00 and 0.91, a share of 0.9 is kept or not depending on errors of both
    losses."""
    grid = [(32, 10, 0.01), (64, 10, 0.01)]

    def loss(b, t, rate):
        return 2.0 if b == 64 else 2.09

    points = table(lambda b, t, rate: 0.1 * b, loss, grid=grid, seeds=8, loss_noise=0.03)
    by_gain = select(points, rule="oracle", min_gain_share=0.9)
    assert by_gain.configuration.batch_size == 32
    fixed = select(points, rule="oracle", max_loss=by_gain.max_loss)
    assert 0.5 < by_gain.decision.utility_probability < fixed.decision.utility_probability - 0.01


def test_one_configuration():
    selected = select(table(rising, falling_loss, grid=GRID[:1]))
    found = selected.decision.to_dict()
    assert found["state"] == "only one"
    compared = {"probability", "probability_within", "expected_regret"}
    assert {name for name, value in found.items() if value is None} == compared, (
        "there was nothing to compare"
    )
    assert found["interval"][0] < found["estimate"] < found["interval"][1]
    assert (
        in_words(selected)[0]
        == "Only one configuration passes the constraints: no scores were compared."
    )


def test_one_seed_decides_nothing():
    """The scores are smooth, so the model believes in small errors; but nothing was measured
    twice."""
    selected = select(table(rising, falling_loss, seeds=1, noise=0))
    assert selected.decision.state == "undecided"
    assert "No configuration has two seeds" in " ".join(in_words(selected))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_scores_that_saturate(value):
    selected = select(table(lambda *_: value, falling_loss, noise=0))
    assert selected.decision.state == "undecided", (
        "two seeds alike do not tell how far others may be off"
    )
    assert selected.decision.reason.startswith("no score differs between two seeds")
    assert selected.decision.expected_regret is None
    losses = configuration_means(table(lambda *_: value, falling_loss, noise=0))["utility_loss"]
    assert selected.utility_loss == losses.min()
    assert json.loads(json.dumps(selected.to_dict()["decision"]))["interval"] is None


def test_some_scores_saturate_at_zero():
    def score(b, t, rate):
        return 0.0 if rate == 0.005 else rate * 10

    selected = select(table(score, falling_loss, noise=0))
    assert selected.configuration.learning_rate == 0.005


def test_the_document_keeps_its_fields_and_carries_the_decision():
    selected = select(table(rising, falling_loss), min_gain_share=0.5)
    document = json.loads(json.dumps(selected.to_dict()))
    old = {"batch_size", "num_steps", "learning_rate", "utility_loss", "score", "rule", "max_loss", "explanation",
           "steps", "model_uri", "warnings", "uncertainty", "sweep", "epsilon", "delta", "score_name",
           "scores"}  # fmt: skip
    assert old | {"decision", "threshold_changes"} == set(document)
    assert set(document["decision"]) >= {
        "state", "probability", "expected_regret", "relative_regret", "estimate", "interval", "alternatives",
        "utility_probability", "confidence", "tolerance", "probability_within", "pool_size",
    }  # fmt: skip
    assert isinstance(selected, Selection)


@pytest.mark.parametrize(
    ("probability", "text"),
    [(1.0, "more than 99.9 %"), (0.5, "50 %"), (0.0, "less than 0.1 %"), (0.12345, "12.3 %")],
)
def test_chances(probability, text):
    assert chance(probability) == text


@pytest.mark.slow
def test_more_configurations_than_are_modelled():
    grid = list(product(range(1, 11), range(1, 11), np.arange(1, 8) / 100))
    rng = np.random.default_rng(0)
    scores = {c: 0.2 + rng.random() for c in grid} | {grid[600]: 0.01}
    selected = select(table(lambda *c: scores[c], falling_loss, grid=grid))
    assert str(selected.configuration) == str(
        Configuration(batch_size=9, num_steps=6, learning_rate=0.06)
    )
    assert selected.decision.state == "decided"


def test_order_of_rows_does_not_matter():
    points = table(rising, falling_loss, noise=0.02)
    shuffled = points.sample(frac=1, random_state=1)
    assert select(points).to_dict() == select(shuffled).to_dict()


@pytest.mark.slow
def test_more_configurations_than_are_modelled_below_a_threshold():
    """The pool has the highest scores: they are the ones that are modelled, with errors, and
    nothing is decided."""
    rng = np.random.default_rng(0)
    grid = list(
        product(
            [2**k for k in range(10)], [2**k for k in range(10)], [0.001 * 2**k for k in range(7)]
        )
    )
    rows = [
        [b, t, rate, seed, 3 - 0.1 * np.log(b * t * rate) + 0.01 * rng.standard_normal(),
         0.3 + 0.02 * np.log(b * t * rate) + 0.03 * rng.standard_normal()]
        for b, t, rate in grid
        for seed in range(2)
    ]  # fmt: skip
    points = pd.DataFrame(
        rows, columns=["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
    )
    threshold = float(configuration_means(points)["utility_loss"].quantile(0.1))
    decision = select(points, max_loss=threshold).decision
    assert decision.state != "decided"
    assert decision.probability < 0.9
    assert decision.interval[1] - decision.interval[0] > 0.01
    certainty = [
        select(points, rule="worst-utility", max_loss=threshold).decision.utility_probability
    ]
    assert 0.2 < certainty[0] < 0.98, "a loss at the threshold is not certain to keep to it"


@pytest.mark.slow
def test_the_estimate_stays_within_its_interval_if_one_configuration_alone_was_repeated():
    """One degree of freedom for the variance, and scores far apart: the mean of the lognormal is
    infinite."""
    outside = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        some = [
            list(product([32, 64, 128], [10, 20, 40], [0.005, 0.01, 0.02]))[k]
            for k in sorted(rng.permutation(27)[:6])
        ]
        rows = [
            [*c, s, 2.0, 0.1 * np.exp(0.8 * rng.standard_normal())]
            for k, c in enumerate(some)
            for s in range(2 - (k > 0))
        ]
        columns = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
        decision = select(pd.DataFrame(rows, columns=columns)).decision
        outside += not decision.interval[0] <= decision.estimate <= decision.interval[1]
        assert decision.expected_regret < 10
    assert outside == 0


@pytest.mark.parametrize("apart", [0.0, 1e-9, 1e-3, 1e-2])
def test_means_that_are_close_by_chance_are_not_known_to_be_close(apart):
    rows = [[32, 10, 0.01, 0, 2.0, 0.15], [32, 10, 0.01, 1, 2.01, 0.25],
            [64, 10, 0.01, 0, 2.0, 0.14 + apart], [64, 10, 0.01, 1, 2.01, 0.26 + apart]]  # fmt: skip
    columns = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
    decision = select(pd.DataFrame(rows, columns=columns)).decision
    assert decision.state == "undecided"
    assert decision.interval[1] - decision.interval[0] > 0.1


def test_equal_zeros_tie_and_the_loss_decides():
    points = table(lambda b, t, rate: 0.0 if b != 64 else 0.3, falling_loss, noise=0, seeds=2)
    selected = select(points)
    zeros = configuration_means(points).query("score == 0")
    assert selected.utility_loss == zeros["utility_loss"].min()
    points.loc[points["score"] > 0, "score"] += 0.01 * points["seed"]
    assert select(points).decision.interval[0] >= 0, "a rate is never negative"


def test_a_score_that_can_be_negative_has_no_tolerance():
    for offset in (-5, -100):
        decision = select(
            table(lambda b, t, rate, by=offset: by + 0.01 * np.log(b), falling_loss, noise=0.05)
        ).decision
        assert decision.state == "undecided"
        assert decision.relative_regret is None
        assert decision.probability_within == decision.probability


def test_a_choice_without_the_lowest_score_is_called_not_the_lowest():
    selected = select(table(rising, falling_loss), rule="best-utility")
    assert in_words(selected)[0].startswith(
        "Not the lowest: it has the lowest score of the 18 that may be selected with"
    )
    assert "corrected" not in " ".join(in_words(selected))


def test_a_lower_score_that_was_left_out_for_its_utility_is_named():
    points = table(
        lambda b, t, rate: 0.1 * b / 32,
        lambda b, t, rate: 2.0 if b == 32 else 1.5,
        loss_noise=0.02,
        seed=3,
    )
    (warning,) = [w for w in select(points, max_loss=2.0).warnings if "was left out" in w]
    assert warning.startswith(
        "The lowest measured score of those within the utility threshold, 0.09"
    )
    assert "keeps to the threshold with a probability of" in warning


def test_without_a_threshold_the_last_stop_of_the_slider_is_the_selection():
    points = table(rising, falling_loss, loss_noise=0.01)
    along = selections_by_threshold(points)
    assert along.selected["informed"][-1] == along.start["informed"]
    assert str(configurations(along.means)[along.start["informed"]]) == str(
        select(points).configuration
    )

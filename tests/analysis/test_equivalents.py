"""The choice between configurations whose scores are equivalent: most useful, then cheapest, and
never less sure."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import raydp
from raydp.analysis import select, selections_by_threshold
from raydp.analysis.selection.constraints import Constraints
from raydp.analysis.selection.equivalents import Precision, cheapest_of_the_most_useful, equivalents
from raydp.analysis.selection.rules import Layout, choose
from raydp.analysis.selection.wording import in_words
from raydp.analysis.surface.posterior import Posterior
from raydp.analysis.surface.what_if import MeasuredScores
from raydp.analysis.tables.points import configuration_means, configurations

GRID = [(b, t, 0.01) for b in (32, 64, 128) for t in (10, 20)]
COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
NO_ERRORS = np.zeros(6)


def table(scores, losses, *, seeds=6, noise=0.02, loss_noise=0.001):
    """Runs of the grid's first configurations, whose means over an even number of seeds are the
    given ones."""
    rows = [
        [*GRID[k], s, losses[k] + (-1) ** s * loss_noise, scores[k] + (-1) ** s * noise]
        for k in range(len(scores))
        for s in range(seeds)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def posterior(draws, *, ratio=True):
    """A posterior with given draws, [num_draws, m], of which only the draws are read."""
    return Posterior(
        draws=draws,
        common=np.ones((len(draws), 1)),
        shares=np.ones(draws.shape[1]),
        ratio=ratio,
        own_mean=draws.mean(axis=0),
    )


def seeded(size):
    """Configuration means of which only the numbers of seeds and the standard deviations are
    read."""
    return pd.DataFrame({"num_seeds": [2] * size, "score_std": [0.1] * size})


def test_the_most_useful_of_the_equivalent_ones_is_selected():
    points = table([0.500, 0.501, 0.502, 0.9], [2.0, 1.5, 1.8, 1.0])
    selected = select(points)
    assert selected.configuration.key[:3] == (20, 32, 0.01)
    decision = selected.decision
    assert (decision.state, len(decision.equivalents)) == ("equivalent", 2)
    assert decision.probability_within >= 0.95 > decision.probability
    assert in_words(selected)[1] == (
        "Of 3 that are within 10 % of the lowest with a probability of at least 95 %, it has the "
        "lowest utility loss."
    )
    (step,) = [step for step in selected.steps if step.name == "equivalent scores"]
    assert [c.key[:3] for c in step.survivors] == [(20, 32, 0.01)]
    first = json.loads(json.dumps(selected.to_dict()))["decision"]["equivalents"][0]
    assert (first["batch_size"], first["num_steps"], first["compute"]) == (64, 10, 640)
    assert first["probability_within"] >= 0.95
    assert first["loss_difference"] == pytest.approx(0.3)
    exact = select(points, tolerance=0.0)
    assert (exact.decision.state, exact.decision.equivalents) == ("undecided", ())


def test_of_equally_useful_ones_the_cheapest_is_selected():
    points = table([0.5, 0.5, 0.5], [1.52, 1.5, 1.51], loss_noise=0.1)
    selected = select(points)
    assert (selected.configuration.key[:3], selected.decision.state) == (
        (10, 32, 0.01),
        "equivalent",
    )
    assert (
        "it costs the least to train of those whose utility loss is within one standard error"
        in (in_words(selected)[1])
    )
    assert in_words(selected)[1].endswith("which is 0.02 less, of (b=32, T=20, η=0.01).")
    clear = select(table([0.5, 0.5, 0.5], [1.52, 1.5, 1.51], loss_noise=0.001))
    assert clear.utility_loss == pytest.approx(1.5)


def test_a_score_that_is_known_to_be_the_lowest_is_selected_whatever_is_within_the_tolerance():
    selected = select(table([0.5, 0.51, 0.9], [2.0, 1.5, 1.0], noise=0.001))
    assert (selected.score, selected.decision.state) == (pytest.approx(0.5), "decided")
    assert in_words(selected)[1].startswith(
        "Also within 10 % of the lowest with a probability of at least 95 %: (b=32"
    )


@pytest.mark.parametrize(("seeds", "noise"), [(2, 0.2), (1, 0.0), (2, 0.0)])
def test_without_a_known_equivalent_the_lowest_expected_score_is_selected(seeds, noise):
    """The errors are too large; nothing was measured twice; no score differs between two seeds."""
    points = table([0.500, 0.501, 0.502, 0.9], [2.0, 1.5, 1.8, 1.0], seeds=seeds, noise=noise)
    if not noise:
        points["score"] = 0.5
    selected = select(points)
    assert selected.decision.state == "undecided"
    assert selected.decision.equivalents == ()
    layout = Layout.of(configuration_means(points))
    assert layout.precision is None
    position = int(choose("informed", layout, np.ones(4, dtype=bool)))
    assert selected.configuration == configurations(configuration_means(points))[position]


def test_one_configuration_is_selected_as_before():
    selected = select(table([0.5], [1.0]))
    assert (selected.decision.state, selected.decision.equivalents) == ("only one", ())
    assert [len(step.dropped) for step in selected.steps] == [0] * len(selected.steps)


def test_only_those_that_keep_to_the_utility_threshold_are_equivalent():
    selected = select(
        table([0.5, 0.5, 0.5, 0.9], [1.9, 1.5, 1.8, 1.0]), at_most={"compute": 32 * 10 + 64 * 5}
    )
    assert [(e["batch_size"], e["num_steps"]) for e in selected.decision.equivalents] == [
        (64, 10),
        (32, 10),
    ]
    fewer = select(table([0.5, 0.5, 0.5, 0.9], [1.9, 1.5, 1.8, 1.0]), max_loss=1.85)
    assert [(e["batch_size"], e["num_steps"]) for e in fewer.decision.equivalents] == [(64, 10)]


def test_the_slider_agrees_with_select_at_every_threshold_and_precision():
    points = table([0.500, 0.501, 0.502, 0.9, 0.503, 0.504], [2.0, 1.5, 1.8, 1.2, 1.7, 1.9])
    for tolerance in (0.0, 0.1):
        along = selections_by_threshold(points, precision=Precision(tolerance=tolerance))
        assert (
            configurations(along.means)[along.start["informed"]]
            == select(points, tolerance=tolerance).configuration
        )
        for threshold, position in list(
            zip(along.thresholds, along.selected["informed"], strict=True)
        )[:-1]:
            chosen = select(points, max_loss=float(threshold), tolerance=tolerance).configuration
            assert chosen == configurations(along.means)[position]


def test_shared_pools_keep_the_configurations_of_separate_pools():
    rng = np.random.default_rng(0)
    for number in range(30):
        draws = rng.lognormal(rng.normal(0, 0.05, 8), 0.02, (300, 8))
        nested = np.tril(np.ones((8, 8), dtype=bool))[:, rng.permutation(8)]
        pools = np.concatenate([nested, (rng.random((8, 8)) < 0.4) | np.eye(8, dtype=bool)])[
            rng.permutation(16)
        ]
        scores, precision = (
            posterior(draws, ratio=bool(number % 3)),
            Precision(tolerance=0.08, confidence=0.9),
        )
        base = 2.0 if number % 3 == 2 else None
        kept = equivalents(seeded(8), scores, pools, precision, log_base=base)
        for pool, own in zip(pools, kept, strict=True):
            lowest, within = scores.chances(pool, 0.08, log_base=base)
            none = pool.sum() < 2 or (lowest[pool] >= 0.9).any()
            np.testing.assert_array_equal(
                own, np.zeros(8, dtype=bool) if none else pool & (within >= 0.9)
            )


@pytest.mark.slow
def test_the_choice_by_utility_is_within_the_tolerance_as_often_as_it_says():
    """A Gaussian model with a known posterior: truth N(1, 0.06²), measured with a standard error of
    0.03."""
    rng, precision = np.random.default_rng(0), Precision(confidence=0.9)
    kept, careless, stated = [], [], []
    for _ in range(1500):
        truth = rng.normal(1, 0.06, 6)
        measured = truth + rng.normal(0, 0.03, 6)
        shrunk, std = 1 + (measured - 1) * 0.8, 0.03 * np.sqrt(0.8)
        scores, loss = posterior(rng.normal(shrunk, std, (400, 6))), rng.random(6)
        within, close = truth <= 1.1 * truth.min(), measured <= 1.1 * measured.min()
        careless.append(within[cheapest_of_the_most_useful(close, loss, NO_ERRORS, NO_ERRORS)][0])
        (members,) = equivalents(
            seeded(6), scores, np.ones((1, 6), dtype=bool), precision, log_base=None
        )
        if not members.any():
            continue
        chosen = cheapest_of_the_most_useful(members, loss, NO_ERRORS, NO_ERRORS)
        kept.append(within[chosen][0])
        stated.append(scores.chances(np.ones(6, dtype=bool), 0.1, log_base=None)[1][chosen][0])
    error = 0.3 / np.sqrt(len(kept))  # the standard error of a share of 0.9
    assert len(kept) > 1000
    assert np.mean(kept) >= np.mean(stated) - 3 * error >= 0.9 - 3 * error
    assert np.mean(careless) < np.mean(stated) - 3 * error, (
        "means within the tolerance are not true scores within it"
    )


def test_the_cheapest_of_the_most_useful():
    members = np.array([True, True, True, True, False, True])
    loss, error = np.array([1.00, 1.02, 1.04, 1.02, 0.5, 1.02]), np.array([0.03, 9, 9, 9, 9, 9.0])
    compute = np.array([8.0, 4.0, 1.0, 2.0, 0.0, 2.0])
    assert cheapest_of_the_most_useful(members, loss, error, compute).argmax() == 3, (
        "the first of two alike"
    )
    assert cheapest_of_the_most_useful(members, loss, NO_ERRORS, compute).argmax() == 0
    loss[5] = 1.01
    assert cheapest_of_the_most_useful(members, loss, error, compute).argmax() == 5, (
        "of equal compute, the lower loss"
    )


@pytest.mark.parametrize("means", [(0.506, 0.512, 0.526), (0.5003, 0.504, 0.506)])
def test_a_tolerance_counts_from_no_leak(means):
    points = table([*means, 0.6], [1.9, 1.8, 1.7, 3.0], noise=0.002)
    asked = {"max_loss": 2.0, "no_leak": 0.5}
    assert select(points, **asked).score == pytest.approx(means[0])
    useful = select(points, rule="best-utility", **asked).decision
    assert useful.probability_within < 0.05
    # From 0, the excess would be a few percent.
    assert useful.relative_regret is None or useful.relative_regret > 2
    along = selections_by_threshold(points, Constraints(max_loss=2.0), no_leak=0.5)
    assert along.means["score"].iloc[along.start["informed"]] == pytest.approx(means[0])
    measured = replace(MeasuredScores.of(points, None, log_base=None), no_leak=0.5)
    _, within = measured.posterior().chances(along.passed, 0.1, log_base=None)
    assert (within[1:3] < 0.05).all()


def test_a_file_of_points_counts_tolerances_as_its_score_declares(tmp_path):
    points = table([0.506, 0.512, 0.526], [1.9, 1.8, 1.7], noise=0.002)
    path = tmp_path / "mia.csv"
    points.rename(columns={"score": "score.mia"}).to_csv(path, index=False)
    useful = raydp.select(path, score="mia", rule="best-utility").decision
    assert useful.probability_within < 0.05

"""Errors over seeds that two equal runs hide, that one run does not show, and the confidence that a
user asked for."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pandas as pd
import pytest

from raydp.analysis import configuration_means, select
from raydp.analysis.report.card import card
from raydp.analysis.seeds.allocation import _Race
from raydp.analysis.selection.equivalents import Precision
from raydp.analysis.selection.rules import Layout, likely_useful
from raydp.analysis.selection.wording import in_words
from raydp.analysis.statistics.noise import SeedNoise
from raydp.analysis.surface.hierarchy import score_posterior
from raydp.analysis.surface.what_if import MeasuredScores
from raydp.analysis.tables.points import configurations

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]


def table(*scores, losses=None):
    """One configuration for each tuple of its runs' scores."""
    rows = [
        [
            64,
            60,
            0.001 * 2**k,
            seed,
            (2.0 - 0.1 * k if losses is None else losses[k]) + 0.001 * seed,
            score,
        ]
        for k, runs in enumerate(scores)
        for seed, score in enumerate(runs)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def noise_of(points):
    means = configuration_means(points)
    return SeedNoise.of(means["score_std"].to_numpy(), means["num_seeds"].to_numpy())


SPREAD = ((0.2, 0.25), (0.35, 0.3), (0.4, 0.5), (0.45, 0.4))


@pytest.mark.parametrize("value", [0.3, 1e-9, 7e12, -0.1])
def test_the_rounding_of_a_mean_is_no_spread(value):
    """The same hits, added in another order, differ in the last bits."""
    scale = abs(value)
    others = [(a * scale, b * scale) for a, b in SPREAD]
    equal = table((value, value), *others)
    found = select(equal).decision
    for ulps in (1, -1, 5):
        near = table((value, value + ulps * np.spacing(value)), *others)
        np.testing.assert_allclose(noise_of(near).std, noise_of(equal).std, rtol=1e-9)
        decision = select(near).decision
        assert decision.state == found.state
        assert decision.interval == pytest.approx(found.interval, rel=1e-6, abs=1e-9 * scale)


@pytest.mark.parametrize("difference", [1e-12, 1e-9, 1e-6, 1e-4])
def test_seeds_that_agree_by_chance_are_as_good_as_equal_ones(difference):
    """However closely two seeds agree, the spread of the other configurations counts."""
    equal, near = (
        noise_of(table((0.0, 0.0), (0.01, 0.01 + by), (0.2, 0.3), (0.41, 0.41 + by), (0.6, 0.5)))
        for by in (0.0, difference)
    )
    np.testing.assert_allclose(near.std, equal.std, rtol=0.02)
    assert near.std.min() > 0.02, "the others spread by 0.07"
    assert (
        select(
            table((0.0, 0.0), (0.01, 0.0101), (0.2, 0.3), (0.41, 0.4101), (0.6, 0.5))
        ).decision.state
        == "undecided"
    )


def test_no_configuration_is_left_alone_with_its_own_two_seeds():
    """Spreads over four orders of magnitude: the prior keeps the degrees of freedom that its mean
    needs."""
    std = 10.0 ** np.linspace(-4, 0, 40)
    noise = SeedNoise.of(std, np.full(40, 2))
    assert noise.degrees.min() >= 1 + 2


def one_run_each(with_secrets, count):
    points = table(*[(0.08 + 0.02 * k,) for k in range(count)]).assign(
        run_id=[f"r{k}" for k in range(count)]
    )
    if not with_secrets:
        return points, None
    rng = np.random.default_rng(0)
    rows = [
        (run, "vmr", f"s{i:02}", score * factor)
        for run, score in zip(points["run_id"], points["score"], strict=True)
        for i, factor in enumerate(1 + 0.01 * rng.standard_normal(12))
    ]
    return points, (pd.DataFrame(rows, columns=["run_id", "score", "secret_id", "value"]), "vmr")


@pytest.mark.parametrize("count", [1, 2, 6])
@pytest.mark.parametrize("with_secrets", [False, True], ids=["alone", "with secrets"])
@pytest.mark.parametrize("rule", ["informed", "procedure", "oracle"])
def test_one_run_each_gives_no_probability_and_no_interval(rule, with_secrets, count):
    """Values by secret are of the same runs: they do not show what another run would give."""
    points, by_secret = one_run_each(with_secrets, count)
    selected = select(points, rule=rule, by_secret=by_secret)
    made, document = selected.decision, selected.to_dict()
    assert (made.state, made.alternatives, made.equivalents) == ("undecided", (), ())
    unknown = {
        "probability",
        "probability_within",
        "expected_regret",
        "relative_regret",
        "estimate",
        "interval",
    }
    assert unknown <= {field.name for field in fields(made)}
    assert {name: getattr(made, name) for name in unknown} == dict.fromkeys(unknown)
    assert all(document["decision"][name] is None for name in unknown - {"relative_regret"})
    assert "no configuration has two seeds" in document["decision"]["reason"]
    assert document["uncertainty"]["verdict"] == "unknown"
    assert {row["probability"] for row in document["uncertainty"]["configurations"]} == {None}
    words = " ".join(in_words(selected))
    assert "No configuration has two seeds" in words
    assert not any(word in words for word in ("%", "interval", "Decided", "expected"))
    assert "interval" not in card(points, selected, {}, None)


def test_equal_seeds_everywhere_give_no_interval_of_width_0():
    for points in (table((0.2, 0.2)), table((0.2, 0.2), (0.5, 0.5))):
        made = select(points).decision
        assert (made.state, made.probability, made.interval) == ("undecided", None, None)
        assert made.reason.startswith("no score differs between two seeds")


@pytest.mark.parametrize("confidence", [0.6, 0.95, 0.995])
def test_the_utility_check_uses_the_confidence_that_was_asked(confidence):
    means = configuration_means(table((0.1, 0.11), (0.2, 0.21), (0.3, 0.31)))
    certainty = np.array([confidence - 1e-3, confidence + 1e-3, 1.0])
    layout = Layout.of(means, precision=Precision(confidence=confidence)).with_certainty(certainty)
    assert likely_useful(layout, np.ones(3, dtype=bool)).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("useful", "confidence", "over"), [(0.97, 0.95, True), (0.97, 0.99, False), (0.9, 0.8, True)]
)
def test_further_seeds_end_at_the_confidence_that_was_asked(useful, confidence, over):
    """The selected one has by far the lowest score, and is useful in a share of the draws."""
    points = table((0.01, 0.011), (0.5, 0.51))
    means = configuration_means(points)
    measured = MeasuredScores(
        means=means, of_secrets=np.ones((2, 4)), over_seeds=np.full(2, np.nan), log_base=None
    )
    scores = score_posterior(means)
    drawn = np.ones_like(scores.draws, dtype=bool)
    drawn[int(useful * len(drawn)) :, 0] = False
    race = _Race(
        measured=measured,
        listed=configurations(means),
        selected=0,
        scores=scores,
        useful=drawn,
        noise=noise_of(points),
    )
    assert race.is_over(confidence=confidence, tolerance=0.1) == over
    if not over:
        assert not race.seeds_are_spent(12, confidence=confidence), (
            "seeds may tell whether it is useful"
        )


def test_the_set_of_contenders_has_the_confidence_that_was_asked():
    points = table((0.10, 0.12), (0.16, 0.19), (0.3, 0.33))
    sizes = []
    for confidence in (0.5, 0.95, 0.999):
        found = select(points, rule="oracle", confidence=confidence)
        assert found.to_dict()["uncertainty"]["confidence"] == confidence
        sizes.append(sum(row["indistinguishable"] for row in found.contenders.rows))
        assert found.undecided is None or f"at {100 * confidence:g} %" in found.undecided
    assert sizes[0] < sizes[-1]

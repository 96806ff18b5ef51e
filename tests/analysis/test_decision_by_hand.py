"""Decisions from a few configurations whose right answers can be computed by hand."""

from __future__ import annotations

import re
from math import e

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from raydp.analysis import select, selections_by_threshold
from raydp.analysis.seeds.allocation import _Race
from raydp.analysis.selection.constraints import Constraints
from raydp.analysis.selection.decision import decide
from raydp.analysis.selection.equivalents import Precision, equivalents
from raydp.analysis.selection.wording import in_words
from raydp.analysis.surface.hierarchical_model import HierarchicalModel
from raydp.analysis.surface.hierarchy import score_posterior
from raydp.analysis.surface.scale import LOGARITHM
from raydp.analysis.tables.points import configuration_means
from tests.analysis.test_equivalents import posterior

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score", "run_id"]
EASE = np.array([-2.0, -1.0, -1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 2.0])
"""How much easier each of nine secrets is than the mean secret: symmetric, so without skewness."""


def table(*runs):
    """One configuration for each tuple of its runs' scores; of more utility where the score is
    higher."""
    rows = [
        (64, 10 * (k + 1), 0.01, seed, 2 - 0.1 * k + 0.001 * seed, score, f"{k}-{seed}")
        for k, scores in enumerate(runs)
        for seed, score in enumerate(scores)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def values_by_secret(points, value_fn):
    """The value of each secret in each run, as a function of the run's score."""
    rows = [
        (run, "x", f"s{at:02}", value)
        for run, score in zip(points["run_id"], points["score"], strict=True)
        for at, value in enumerate(value_fn(score))
    ]
    return pd.DataFrame(rows, columns=["run_id", "score", "secret_id", "value"]), "x"


def decided(draws, *, common=None, precision, log_base=None):
    """The decision for the first of some configurations, from draws of the true scores alone."""
    means = configuration_means(table(*[(value, value + 0.1) for value in draws.mean(axis=0)]))
    scores = posterior(draws, ratio=log_base is None)
    scores = (
        scores if common is None else type(scores)(**{**vars(scores), "common": common[:, None]})
    )
    pool = np.ones(draws.shape[1], dtype=bool)
    return decide(means, pool, 0, scores, log_base=log_base, certainty=None, precision=precision)


def test_the_estimate_is_corrected_for_the_selection_by_the_score():
    """Eight means spread by less than their standard errors of 0.1: what differs is chance, so half
    of it is undone."""
    means = np.linspace(0.45, 0.55, 8)
    points = table(
        *[(mean - 0.1, mean + 0.1) for mean in np.random.default_rng(0).permutation(means)]
    )
    lowest = select(points, rule="oracle")
    assert lowest.score == pytest.approx(0.45)
    assert lowest.decision.estimate == pytest.approx(0.5, abs=0.025)
    assert select(points).decision.estimate == pytest.approx(0.5, abs=0.025)


@pytest.mark.parametrize(
    ("probability", "confidence", "state"),
    [
        (0.90, 0.85, "decided"),
        (0.90, 0.95, "undecided"),
        (0.97, 0.95, "decided"),
        (0.97, 0.99, "undecided"),
    ],
)
@pytest.mark.parametrize("close", [False, True], ids=["apart", "within the tolerance"])
def test_the_state_needs_the_confidence_that_was_asked(probability, confidence, state, close):
    """In that share of the draws the first score is the lowest.

    Else the second is, by 5 or by 50 %.
    """
    draws = np.full((1000, 2), 0.2)
    draws[: round(1000 * probability), 1] = 0.3
    draws[round(1000 * probability) :, 1] = 0.2 / (1.05 if close else 1.5)
    found = decided(draws, precision=Precision(confidence=confidence))
    assert found.probability == probability
    assert found.state == ("equivalent" if close and state == "undecided" else state)


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.99])
def test_the_interval_has_the_confidence_that_was_asked_and_the_error_that_all_share(confidence):
    """Two scores, 0.2 and 0.4, times a factor between 0.5 and 1.5 that is the same for both."""
    draws, common = np.tile([0.2, 0.4], (10_001, 1)), np.linspace(0.5, 1.5, 10_001)
    draws[9500:9700, 1] = 0.199  # so that the other one is an alternative
    found = decided(draws, common=common, precision=Precision(confidence=confidence))
    ends = np.array([1 - confidence / 2, 1 + confidence / 2])
    np.testing.assert_allclose(found.interval, 0.2 * ends, rtol=1e-3)
    np.testing.assert_allclose(found.alternatives[0]["score_interval"], 0.4 * ends, rtol=0.04)


@pytest.mark.parametrize(
    ("base", "difference", "within"),
    [(e, 0.094, True), (e, 0.097, False), (e, 0.101, False), (2, 0.13, True), (2, 0.14, False)],
)
def test_a_tolerance_of_a_tenth_is_a_difference_of_the_logarithms_of_1_1(base, difference, within):
    """exp(0.094) = 1.0986 and exp(0.097) = 1.1019, though 0.097 is below 0.1; 2^0.13 = 1.0943."""
    assert (base**difference < 1.1) == within
    draws = np.tile([-5.0 + difference, -5.0], (100, 1))
    precision = Precision(tolerance=0.1)
    found = decided(draws, precision=precision, log_base=base)
    assert (found.state, found.probability_within) == (
        ("equivalent", 1.0) if within else ("undecided", 0.0)
    )
    even = draws.copy()
    even[:50] = even[:50, ::-1]  # neither is known to be the lowest
    means, scores = configuration_means(table((0.1, 0.2), (0.1, 0.2))), posterior(even, ratio=False)
    (close,) = equivalents(means, scores, np.ones((1, 2), dtype=bool), precision, log_base=base)
    assert close.tolist() == [within, within]


def by_factor(score):
    return score * (1 + EASE / 4)


def by_factor_up_to_one(score):
    return score * (1 + (1 - score) * EASE / 2)


def by_difference(score):
    return score + EASE / 2


@pytest.mark.parametrize(
    ("value", "log_base", "levels"),
    [
        (by_factor, None, (0.2, 0.3, 0.4, 0.35)),
        (by_factor_up_to_one, None, (0.2, 0.6, 0.9, 0.5)),
        (by_difference, e, (-5.0, -4.0, -3.0, -3.5)),
    ],
)
def test_a_shared_error_of_all_secrets_widens_the_interval_once(value, log_base, levels):
    """Every configuration finds the same secrets easier, and seeds hardly differ.

    So the error is that of a mean of nine secrets: Student's t with 8 degrees of freedom, times
    s/3. A rate differs by a factor, a rate near 1 by less of it, a logarithm by a difference.
    """
    points = table(*[(level - 1e-5, level + 1e-5) for level in levels])
    found = select(
        points, by_secret=values_by_secret(points, value), log_base=log_base, rule="oracle"
    ).decision
    half = stats.t.ppf(0.975, 8) * value(levels[0]).std(ddof=1) / 3
    assert found.interval == pytest.approx((levels[0] - half, levels[0] + half), abs=0.1 * half)
    assert found.state == "decided", (
        "the secrets are easier for all, so they do not blur the comparison"
    )


def test_a_bound_on_the_score_counts_the_error_over_secrets_wherever_it_is_applied():
    """0.30 of secrets that differ much against 0.31 of secrets that hardly do, and a bound of 0.35.

    Student's t with 8 degrees of freedom at 95 % is 1.8595; s/3 is 0.1 × 0.4082, so the first limit
    is 0.376.
    """
    points = table((0.30, 0.30001), (0.31, 0.31001), (0.2, 0.20001))

    def value(score):
        return score + EASE * (0.1 if score < 0.305 else 0.001)

    by_secret = values_by_secret(points, value)
    bound = {"max_score": 0.35, "at_most": {"compute": 64 * 20}}
    found = select(points, rule="oracle", by_secret=by_secret, **bound)
    assert found.configuration.num_steps == 20
    assert select(points, rule="oracle", **bound).configuration.num_steps == 10
    along = selections_by_threshold(points, Constraints(**bound), by_secret=by_secret)
    assert along.means["num_steps"][along.start["oracle"]] == 20
    race = _Race.of(points, Constraints(**bound), found, by_secret, False)
    assert race.useful.all(axis=0).tolist() == [False, True, False]


@pytest.mark.parametrize("modelled", [slice(None), slice(0, 3)], ids=["all", "with the rest"])
def test_the_spread_over_seeds_of_a_logarithm_is_the_relative_one(modelled):
    """Scores whose standard deviations are a tenth of them: their logarithms have one of 0.1."""
    values = np.array([0.1, 0.2, 0.4, 0.8, 0.05])
    means = configuration_means(
        table(*[(v * (1 - 0.1 / 2**0.5), v * (1 + 0.1 / 2**0.5)) for v in values])
    )
    model = HierarchicalModel.of(
        means, np.arange(5)[modelled], means["score"].to_numpy(), means["score_std"].to_numpy(), None,
        ratio=True, scale=LOGARITHM,
    )  # fmt: skip
    for noise in (model.noise, model.remaining.noise):
        np.testing.assert_allclose(noise.std * model.unit, 0.1, rtol=1e-9)


def test_the_relative_spread_over_seeds_reaches_the_draws():
    """Ten small rates with relative errors of 20 %: the draws spread by about that, whatever the
    size of the rate."""
    rng = np.random.default_rng(0)
    values = 0.001 * 4.0 ** rng.permutation(10)
    means = configuration_means(
        table(*[(v * (1 - 0.2 / 2**0.5), v * (1 + 0.2 / 2**0.5)) for v in values])
    )
    spread = np.log(score_posterior(means).draws).std(axis=0)
    assert 0.08 < spread.min() < spread.max() < 0.3, "0.2 / √2 = 0.14 by the seeds alone"


@pytest.mark.parametrize("name", ["vmr", "acr"])
def test_the_interval_of_a_rate_ends_at_1(name):
    """Two seeds near 1 that differ. A compression ratio has no largest value."""
    points = table((0.99, 0.90), (0.93, 0.99), (0.98, 0.92))
    points[f"score.{name}"] = points["score"]
    found = select(points)
    assert found.score_name == name
    ends = [
        found.decision.interval[1],
        *(other["score_interval"][1] for other in found.decision.alternatives),
    ]
    assert len(ends) > 1
    assert all(end <= 1 for end in ends) == (name == "vmr")


@pytest.mark.parametrize("middle", [0.12345, 0.30004, 7.9996])
def test_a_reader_sees_the_estimate_within_its_interval(middle):
    """However narrow the interval is: 0.1235 is not within "0.123 to 0.123"."""
    for error in (1e-3, 1e-4, 1e-5, 1e-6):
        points = table(
            (middle * (1 - error), middle * (1 + error)), (1.1 * middle, 1.1 * middle + error)
        )
        (sentence,) = [
            each
            for each in in_words(select(points))
            if "expected score" in each and "interval" in each
        ]
        estimate, low, high = map(
            float,
            re.search(
                r"score is (\S+?)[,;].* interval (\S+) to (\S+?)(?:\.$| over)", sentence
            ).groups(),
        )
        assert low <= estimate <= high


COPIED = ((0.3141592653589793, 0.2718281828459045), (0.4, 0.5), (0.6, 0.7))


def with_copies(*, loss, runs=COPIED):
    """The first configuration's run is there three times, under the seeds 0, 2 and 3."""
    points = table(*runs)
    points.loc[0, "utility_loss"] = loss
    copies = [points.iloc[[0]].assign(seed=seed, run_id=f"copy-{seed}") for seed in (2, 3)]
    return pd.concat([points, *copies], ignore_index=True)


@pytest.mark.parametrize("loss", [2.0 + 1e-11 / 3, 1.75])
def test_runs_that_were_entered_twice_are_noticed(loss):
    """A figure with all digits of a double is not had twice by chance; one such figure is
    enough."""
    points = with_copies(loss=loss)
    for rule, given in (
        ("informed", points),
        ("procedure", points),
        ("procedure", points.drop(columns="score")),
    ):
        said = [
            warning
            for warning in select(given, rule=rule).warnings
            if "identical in every figure" in warning
        ]
        assert bool(said) == ("score" in given or loss != 1.75)
        for warning in said:
            assert warning.startswith(
                "2 of 8 runs are identical in every figure to a run with another seed, such as"
            )
            assert "seeds 0 and 2 of (b=64, T=10, η=0.01)" in warning


@pytest.mark.parametrize("loss", [2.0, 1 / 3, 2.345678, 417 / 1200])
@pytest.mark.parametrize("score", [0.0, 1.0, 5 / 12, 7 / 300, 0.0123])
def test_coarse_figures_that_agree_by_chance_are_no_copies(loss, score):
    points = with_copies(loss=loss, runs=((score, 0.9), (0.4, 0.5)))
    assert not any("identical" in warning for warning in select(points, rule="procedure").warnings)


def test_equal_scores_of_runs_with_other_losses_are_no_copies():
    points = table((0.0, 0.0), (0.3141592653589793, 0.3141592653589793), (0.6, 0.7))
    assert not any("identical" in warning for warning in select(points).warnings)

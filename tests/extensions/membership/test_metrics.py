"""Areas, rates and their intervals: against scikit-learn, by hand, and on data whose answer is
known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm
from sklearn.metrics import roc_auc_score, roc_curve

from raydp.extensions.membership.metrics import (
    accuracy,
    accuracy_at,
    auc,
    best_accuracy,
    best_threshold,
    clopper_pearson,
    curve_figures,
    tpr_at_fpr,
)

TIED = arrays(np.float64, st.integers(2, 40), elements=st.sampled_from([-1.0, 0.0, 0.25, 0.5, 2.0]))
"""Scores with many ties."""


def with_labels(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat([1, 0], [len(x), len(y)]), np.concatenate([x, y])


@given(x=TIED, y=TIED)
def test_the_area_is_that_of_sklearn_and_of_all_pairs(x: np.ndarray, y: np.ndarray) -> None:
    area = auc(x, y)
    assert area.value == pytest.approx(roc_auc_score(*with_labels(x, y)), abs=1e-12)
    assert area.value == pytest.approx(
        np.mean((x[:, None] > y) + 0.5 * (x[:, None] == y)), abs=1e-12
    )
    assert 0 <= area.low <= area.value <= area.high <= 1


@given(x=TIED, y=TIED, max_fpr=st.sampled_from([0.001, 0.01, 0.1, 0.5, 1.0]))
def test_a_rate_is_a_point_of_the_roc_curve_and_none_better_has_so_few_false_positives(
    x, y, max_fpr
) -> None:
    fpr, tpr, _ = roc_curve(*with_labels(x, y), drop_intermediate=False)
    assert tpr_at_fpr(x, y, max_fpr).value == pytest.approx(tpr[fpr <= max_fpr].max(), abs=1e-12)


@given(x=TIED, y=TIED)
def test_the_best_threshold_has_the_best_accuracy_of_the_curve(
    x: np.ndarray, y: np.ndarray
) -> None:
    fpr, tpr, _ = roc_curve(*with_labels(x, y), drop_intermediate=False)
    threshold, best = best_threshold(x, y)
    assert best == pytest.approx((1 + tpr - fpr).max() / 2, abs=1e-12)
    assert accuracy_at(x, y, threshold).value == pytest.approx(best, abs=1e-12)
    assert best_accuracy(x, y).value == best


def test_of_equally_good_thresholds_it_is_the_first() -> None:
    """2 and 4 both have an accuracy of 3/4."""
    assert best_threshold([4, 2], [3, 1]) == (4, 0.75)
    assert best_threshold([2, 4], [3, 1]) == (2, 0.75)


def test_delong_s_variance_by_hand() -> None:
    """Members 2, 4, 6 and non-members 1, 3: placements 1/2, 1, 1 and 1, 2/3, of variance 1/12 and
    1/18."""
    area = auc([2, 4, 6], [1, 3])
    assert area.value == pytest.approx(5 / 6)
    assert area.std_error == pytest.approx(math.sqrt(1 / 36 + 1 / 36))


def test_the_exact_interval_of_a_rate() -> None:
    """Clopper and Pearson 1934: with no success in 10, 1 - 0.025^(1/10) = 0.3085; with 5 of 10,
    tables give these."""
    assert clopper_pearson(0, 10) == (0, pytest.approx(1 - 0.025**0.1))
    assert clopper_pearson(5, 10) == (
        pytest.approx(0.1871, abs=1e-4),
        pytest.approx(0.8129, abs=1e-4),
    )


def test_scores_that_do_not_overlap_or_are_all_tied_are_not_said_to_be_certain() -> None:
    """DeLong's error is 0 there; 20 disjoint pairs, all right, leave (1/40)^(1/20) = 0.8316."""
    area = auc(np.arange(20) + 100, np.arange(30))
    assert (area.value, area.high) == (1, 1)
    assert area.low == pytest.approx(0.025 ** (1 / 20))
    tied = auc(np.ones(20), np.ones(30))
    assert (tied.value, tied.low, tied.high) == (0.5, *clopper_pearson(10, 20))


def test_a_shift_has_the_area_that_theory_gives() -> None:
    """Normals one standard deviation apart: Phi(1/sqrt 2) = 0.7602; within four standard errors."""
    rng = np.random.default_rng(0)
    area = auc(rng.normal(1, 1, 4000), rng.normal(0, 1, 3000))
    assert area.std_error is not None
    assert abs(area.value - norm.cdf(1 / math.sqrt(2))) < 4 * area.std_error


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_interval_of_the_area_holds_the_truth_as_often_as_it_says(shift: float) -> None:
    """95 % of 400 draws of 80 and 60: 380, with a standard deviation of 4.4; four of them, and 1 %
    for the normal approximation at these sizes."""
    rng = np.random.default_rng(1)
    truth = norm.cdf(shift / math.sqrt(2))
    areas = [auc(rng.normal(shift, 1, 80), rng.normal(0, 1, 60)) for _ in range(400)]
    assert 380 - 22 <= sum(a.low <= truth <= a.high for a in areas) <= 380 + 20


def test_the_interval_of_an_accuracy_holds_the_truth_at_least_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    found = [accuracy(rng.random(50) < 0.7, rng.random(200) < 0.9) for _ in range(400)]
    assert (
        sum(f.low <= 0.8 <= f.high for f in found) >= 380 - 18
    )  # four standard deviations of a binomial


def test_the_best_accuracy_on_data_without_a_signal_is_not_taken_for_one() -> None:
    """At the best threshold it is above 1/2 in every draw; its interval holds 1/2 in at least 95
    %."""
    rng = np.random.default_rng(3)
    found = [best_accuracy(rng.normal(size=200), rng.normal(size=200)) for _ in range(200)]
    assert all(f.value > 0.5 for f in found)
    assert sum(f.low <= 0.5 for f in found) >= 190


def test_members_and_nonmembers_weigh_half_each_whatever_their_numbers() -> None:
    x, y = np.array([1.0, 1, 0]), np.array([0.0, 1])
    assert accuracy_at(x, y, 1).value == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert accuracy_at(np.tile(x, 7), y, 1).value == accuracy_at(x, y, 1).value


def test_unmeasurable_figures_are_null_with_a_reason() -> None:
    few = curve_figures(np.arange(50.0), np.arange(99.0))
    assert few["tpr_at_01pct_fpr"] is None
    assert few["tpr_at_1pct_fpr"] == tpr_at_fpr(np.arange(50.0), np.arange(99.0), 0).value
    assert "1,000 non-members, got 99" in few["reason"]
    assert "100 non-members, got 99" in few["reason"]
    many = curve_figures(np.arange(50.0), np.arange(1000.0))
    assert many["tpr_at_01pct_fpr"] is not None
    assert "reason" not in many


def test_a_score_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="members must be a list of numbers without NaN"):
        auc([0.0, float("nan")], [1.0])

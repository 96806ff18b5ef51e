"""Scores against audited bounds: which configurations count, the correlation, its p-value, and what
is undefined."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from raydp.analysis import audit_correlations

LISTED = [(b, t, 0.1) for b in (64, 128, 256) for t in (10, 20, 40)]


def table_of(scores, *, seeds=2, **columns):
    """The first configurations, with scores whose mean over seeds is as given."""
    rows = [
        (*LISTED[k], seed, 2.0 - 0.1 * k, score + (seed - (seeds - 1) / 2) * 0.1)
        for k, score in enumerate(scores)
        for seed in range(seeds)
    ]
    names = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
    table = pd.DataFrame(rows, columns=names)
    return table.assign(**{"score.vmr": table["score"], **columns})


def bounds_of(values, listed=LISTED):
    rows = [(*key, value) for key, value in zip(listed, values, strict=False)]
    return pd.DataFrame(rows, columns=["batch_size", "num_steps", "learning_rate", "epsilon_hat"])


def test_the_correlation_is_scipys_over_the_configurations_that_both_have():
    scores, bounds = [0.3, 0.1, 0.5, 0.2, 0.9, 0.4], [0.0, 0.2, 0.4, 0.0, 0.7, 0.1, 0.6]
    answer = audit_correlations(
        table_of(scores), bounds_of(bounds[1:], LISTED[1:]), num_resamples=500
    )
    assert {k: answer[k] for k in ("configurations", "only_points", "only_audit", "zeros")} == {
        "configurations": 5,
        "only_points": 1,
        "only_audit": 1,
        "zeros": 1,
    }
    assert [(pair["a"], pair["b"]) for pair in answer["pairs"]] == [
        ("vmr", "epsilon_hat"),
        ("utility_loss", "epsilon_hat"),
    ]
    assert answer["pairs"][0]["spearman"] == pytest.approx(
        stats.spearmanr(scores[1:], bounds[1:6]).statistic
    )
    assert answer["pairs"][0]["pearson"] == pytest.approx(
        stats.pearsonr(scores[1:], bounds[1:6]).statistic
    )


@pytest.mark.parametrize("bounds", [[0.1, 0.5, 0.2, 0.9, 0.4, 0.6], [0.0, 0.0, 0.3, 0.7, 0.0, 0.7]])
def test_the_p_value_is_that_of_all_permutations(bounds):
    """720 permutations by hand against 5,000 drawn: 4 standard errors of a share, at most 0.029."""
    scores = [0.3, 0.1, 0.5, 0.7, 0.2, 0.6]
    (pair, _) = audit_correlations(table_of(scores), bounds_of(bounds), num_resamples=100)["pairs"]
    every = [stats.spearmanr(scores, order).statistic for order in permutations(bounds)]
    assert pair["p"] == pytest.approx(
        np.mean(np.abs(every) >= abs(pair["spearman"]) - 1e-9), abs=0.029
    )


def test_undefined_figures_have_a_reason():
    table = table_of([0.3, 0.1, 0.5, 0.2]).assign(
        **{"score.flat": 1.0, "score.air": [0.1, 0.2] + [np.nan] * 6}
    )
    nothing = audit_correlations(table, bounds_of([0.0] * 4), num_resamples=100)
    assert nothing["zeros"] == 4
    assert all(pair["spearman"] is pair["p"] is None for pair in nothing["pairs"])
    assert (
        nothing["pairs"][0]["reason"]
        == "epsilon_hat is 0 in every configuration: the audit proves nothing there"
    )
    found = {
        p["a"]: p
        for p in audit_correlations(table, bounds_of([0.1, 0.2, 0.3, 0.0]), num_resamples=100)[
            "pairs"
        ]
    }
    assert found["flat"]["reason"] == "one of the two is the same in every configuration"
    assert (found["air"]["configurations"], found["air"]["reason"]) == (
        1,
        "fewer than 3 configurations have both",
    )
    assert found["vmr"]["p"] is not None


def test_a_score_that_is_none_of_the_tables_is_there_too():
    """As the worst case over secrets is, which takes the place of `score`."""
    table = table_of([0.3, 0.1, 0.5, 0.2])
    worst = audit_correlations(table.assign(score=-table["score"]), bounds_of([0.1, 0.2, 0.3, 0.0]))
    found = {pair["a"]: pair["spearman"] for pair in worst["pairs"]}
    assert list(found) == ["score", "vmr", "utility_loss"]
    assert found["score"] == pytest.approx(-found["vmr"])


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (
            bounds_of([0.1]).drop(columns="epsilon_hat"),
            "audit must have the columns .* without epsilon_hat",
        ),
        (
            bounds_of([0.1], [(1, 1, 0.3)]),
            r"share a configuration \(b, T, η\) with the points, got none of its 1",
        ),
        (bounds_of([-0.1]), "epsilon_hat must be >= 0, got another number in row 1"),
        (bounds_of(["much"]), "epsilon_hat must be a number, got text in row 1"),
        (bounds_of([np.nan]), "epsilon_hat must be a finite number .* got another value in row 1"),
        (bounds_of([0.1, 0.2], [LISTED[0]] * 2), "one row per configuration, got one twice"),
        (bounds_of([0.1], [(None, 1, 0.1)]), "got 1 without"),
    ],
)
def test_bounds_that_cannot_be_joined_are_refused(bounds, message):
    with pytest.raises(ValueError, match=message):
        audit_correlations(table_of([0.3, 0.1, 0.5]), bounds)


def test_learning_rates_as_text_are_the_same_configurations():
    bounds = (
        bounds_of([0.1, 0.2, 0.3, 0.4]).assign(learning_rate="1e-1").astype({"batch_size": str})
    )
    assert (
        audit_correlations(table_of([0.3, 0.1, 0.5]), bounds, num_resamples=100)["configurations"]
        == 3
    )

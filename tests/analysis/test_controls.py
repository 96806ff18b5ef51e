"""A score that subtracts the mean of controls has errors over the secrets and over the controls."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from raydp.analysis import select
from raydp.analysis.statistics.noise import mean_over_seeds, measured_values, secret_covariance
from raydp.analysis.tables.per_secret import controls_of

Array = np.ndarray


def tables(gains: Array, of_controls: Array | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A points table of two configurations with one run for each row, and its values by secret.

    Args:
        gains: [run, k] gains of the secrets.
        of_controls: [run, j] gains of the controls, which the score subtracts; None leaves their
            rows out.
    """
    subtracted = 0.0 if of_controls is None else of_controls.mean(axis=1, keepdims=True)
    values = gains - subtracted
    runs = [f"run-{i}" for i in range(len(gains))]
    points = pd.DataFrame({
        "batch_size": [64 if i % 2 else 128 for i in range(len(gains))],
        "num_steps": 100,
        "learning_rate": 0.01,
        "seed": [i // 2 for i in range(len(gains))],
        "utility_loss": 1.0,
        "score": values.mean(axis=1),
        "score.logprob": values.mean(axis=1),
        "run_id": runs,
        "status": "finished",
    })  # fmt: skip
    parts = (
        {"logprob": values}
        if of_controls is None
        else {"logprob": values, controls_of("logprob"): of_controls}
    )
    rows = [
        {
            "run_id": run,
            "score": score,
            "secret_id": f"{score}-{j:02d}",
            "value": value,
            "num_samples": 1,
        }
        for score, table in parts.items()
        for run, row in zip(runs, table, strict=True)
        for j, value in enumerate(row)
    ]
    return points, pd.DataFrame(rows)


@pytest.mark.parametrize(("k", "j"), [(5, 12), (12, 5), (2, 2)])
def test_the_mean_is_the_score_and_its_errors_are_those_of_both_samples(k: int, j: int) -> None:
    rng = np.random.default_rng(0)
    gains, controls = rng.normal(3, 2, (4, k)), rng.normal(1, 5, (4, j))
    points, secrets = tables(gains, controls)
    values = measured_values(points, secrets, "logprob")
    assert values.shape == (4, k + j)
    np.testing.assert_allclose(values.mean(axis=1), gains.mean(axis=1) - controls.mean(axis=1))
    expected = np.cov(gains) / k + np.cov(controls) / j
    np.testing.assert_allclose(np.cov(values) / (k + j), expected)


def test_without_controls_the_values_are_those_of_the_secrets() -> None:
    gains = np.random.default_rng(0).normal(size=(2, 6))
    np.testing.assert_allclose(measured_values(*tables(gains, None), "logprob"), gains)


def test_controls_that_not_every_run_has_are_left_out() -> None:
    """A sweep that an earlier version has begun and this one has ended."""
    gains = np.random.default_rng(0).normal(size=(2, 6))
    points, secrets = tables(gains, np.ones((2, 3)))
    secrets = secrets[(secrets["run_id"] != "run-1") | (secrets["score"] == "logprob")]
    np.testing.assert_allclose(measured_values(points, secrets, "logprob"), gains - 1)


@pytest.mark.slow
def test_the_stated_error_of_a_difference_is_the_one_that_other_controls_would_give() -> None:
    """Both configurations have the same true score.

    Secrets and controls react to each by themselves.
    """
    rng = np.random.default_rng(1)
    found, stated = [], []
    for _ in range(300):
        common = rng.normal(0, 3, 16)
        controls = np.concatenate([common + rng.normal(0, 1, 16) for _ in range(2)]).reshape(2, 16)
        points, secrets = tables(rng.normal(5, 0.5, (2, 24)), controls)
        values = mean_over_seeds(points, measured_values(points, secrets, "logprob"))
        covariance = secret_covariance(values - values.mean(axis=0))
        found.append(float(values.mean(axis=1) @ [1, -1]))
        stated.append(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    assert np.mean(stated) == pytest.approx(
        np.var(found), rel=0.15
    )  # the standard error of a variance of 300 is 8 %


def test_differing_controls_leave_the_decision_open() -> None:
    """The scores differ by 0.5 nats, and the controls of one configuration are spread by 2."""
    rng = np.random.default_rng(2)
    run = rng.normal(0, 0.01, (8, 1))
    gains = 5 + run + np.where(np.arange(8) % 2, 0.5, 0.0)[:, None] + rng.normal(0, 0.05, (8, 24))
    spread = rng.normal(0, 2, 8)
    controls = np.where(np.arange(8) % 2, 1.0, 0.0)[:, None] * (spread - spread.mean()) + np.zeros(
        (8, 8)
    )
    points, secrets = tables(gains, controls)
    known = secrets[secrets["score"] == "logprob"]
    sure, unsure = (
        select(points, by_secret=(table, "logprob"), log_base=math.e) for table in (known, secrets)
    )
    assert sure.decision.state == "decided"
    assert (unsure.decision.state, unsure.decision.probability < 0.9) == ("undecided", True)

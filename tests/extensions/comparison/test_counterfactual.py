"""With minus without: by hand on small tables."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from raydp.analysis import counterfactual

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "secret_id", "value"]


def table(*rows: tuple[float, ...]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=COLUMNS)


WITH = table(
    (8, 4, 0.1, 0, "secret-001", 5.0), (8, 4, 0.1, 1, "secret-001", 7.0),
    (8, 4, 0.1, 0, "secret-002", 1.0), (8, 4, 0.1, 1, "secret-002", 3.0),
    (8, 2, 0.1, 0, "secret-001", 4.0), (8, 2, 0.1, 0, "secret-002", 1.0),
    (64, 2, 0.1, 0, "secret-001", 9.0),
)  # fmt: skip
WITHOUT = table(
    (8, 4, 0.1, 0, "secret-001", 1.0), (8, 4, 0.1, 1, "secret-001", 2.0), (8, 4, 0.1, 2, "secret-001", 3.0),
    (8, 4, 0.1, 0, "secret-002", 2.0), (8, 4, 0.1, 1, "secret-002", 2.0), (8, 4, 0.1, 2, "secret-002", 2.0),
    (8, 2, 0.1, 0, "secret-001", 1.0), (8, 2, 0.1, 0, "secret-002", 2.0),
    (16, 2, 0.1, 0, "secret-001", 0.0),
)  # fmt: skip


def test_each_configuration_and_secret_by_hand():
    answer = counterfactual(WITH, WITHOUT, left_out=["secret-001"])
    rows = {(r["num_steps"], r["secret_id"]): r for r in answer["rows"]}
    assert {key: r["difference"] for key, r in rows.items()} == {
        (2, "secret-001"): 3.0, (2, "secret-002"): -1.0, (4, "secret-001"): 4.0, (4, "secret-002"): 0.0,
    }  # fmt: skip
    # Two seeds of variance 2 with the examples, three of variance 1 without.
    assert rows[4, "secret-001"]["std_error"] == pytest.approx(math.sqrt(2 / 2 + 1 / 3))
    assert rows[2, "secret-001"]["std_error"] is None
    assert [(r["num_steps"], r["secret_id"]) for r in answer["rows"]] == sorted(rows)
    assert (answer["configurations"], answer["unmatched"]) == (2, 2)
    assert answer["left_out"] == {
        "secrets": 1, "difference": 3.5, "std_error": None, "reason": "std_error needs two secrets",
    }  # fmt: skip
    assert answer["others"]["difference"] == -0.5


def test_the_error_of_the_mean_is_over_secrets():
    both = counterfactual(WITH, WITHOUT, left_out=["secret-001", "secret-002"])
    assert both["left_out"]["difference"] == pytest.approx((3.5 - 0.5) / 2)
    assert both["left_out"]["std_error"] == pytest.approx(
        4 / math.sqrt(2) / math.sqrt(2)
    )  # of 3.5 and -0.5
    assert both["others"]["reason"] == "there are no such secrets"


def test_a_sweep_minus_itself_is_0():
    answer = counterfactual(WITH, WITH, left_out=["secret-002"])
    assert {row["difference"] for row in answer["rows"]} == {0.0}
    assert answer["unmatched"] == 0


@pytest.mark.parametrize(
    ("other", "left_out", "message"),
    [
        (
            WITHOUT.assign(learning_rate=0.2),
            ["secret-001"],
            "must share a configuration and a secret",
        ),
        (WITHOUT, ["secret-009"], "must score what SWEEP_WITHOUT leaves out, got no secret-009"),
        (
            WITHOUT.assign(num_steps=None),
            ["secret-001"],
            "must have batch_size, num_steps and learning_rate",
        ),
    ],
)
def test_tables_that_cannot_be_compared_are_refused(other, left_out, message):
    with pytest.raises(ValueError, match=message):
        counterfactual(WITH, other, left_out=left_out)

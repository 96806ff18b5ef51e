"""The three settings of training and reference data as rules."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from raydp.analysis import select
from raydp.analysis.selection.rules import constrained_rule, rule_names
from raydp.extensions.reference_data.settings import (
    EQUAL_PRIVACY,
    PRIVATE_REFERENCE,
    PUBLIC_REFERENCE,
)

RULES = {
    "public-reference": PUBLIC_REFERENCE,
    "equal-privacy": EQUAL_PRIVACY,
    "private-reference": PRIVATE_REFERENCE,
}
TRAINING, REFERENCE = "score.mia_outputs", "score.mia_outputs_of_reference"
ROWS = [  # η, loss, training, reference; two seeds each, whose means are these
    (0.1, 0.40, 0.505, 0.62),
    (0.2, 0.20, 0.51, 0.66),
    (0.3, 0.30, 0.55, 0.55),
    (0.4, 0.10, 0.60, 0.5601),
    (0.5, 0.15, 0.66, 0.52),
    (0.6, 0.35, 0.64, 0.51),
]


def table(rows=ROWS) -> pd.DataFrame:
    return pd.DataFrame([
        {"batch_size": 8, "num_steps": 10, "learning_rate": lr, "seed": seed, "utility_loss": loss + shift,
         "score": training, TRAINING: training + shift / 2, REFERENCE: reference - shift / 2}
        for lr, loss, training, reference in rows
        for seed, shift in ((0, 2.0**-7), (1, -(2.0**-7)))
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "chosen"),
    [("public-reference", 0.2), ("equal-privacy", 0.4), ("private-reference", 0.6)],
)
def test_each_setting_keeps_its_bound_and_the_best_utility(rule: str, chosen: float) -> None:
    """The bounds are the paper's: at most 51 % of one set, at most 4 points between the two; bounds
    count as kept."""
    selection = select(table(), rule=rule)
    assert selection.configuration.learning_rate == chosen
    assert [step.name for step in selection.steps] == ["reference setting", "best utility"]


def test_rounding_does_not_break_a_bound() -> None:
    """0.55 - 0.51 is more than 0.04 in floating point."""
    for lower in range(40, 70):
        training, reference = np.array([(lower + 4) / 100]), np.array([lower / 100])
        assert EQUAL_PRIVACY.keeps(training, reference).all()
    mean = np.array([(0.5 + 0.51 + 0.52) / 3])
    assert PUBLIC_REFERENCE.keeps(mean, mean).all()


def test_other_constraints_come_first() -> None:
    selection = select(table(), rule="public-reference", at_most={REFERENCE: 0.63})
    assert selection.configuration.learning_rate == 0.1


def test_a_setting_that_nothing_meets_is_an_answer() -> None:
    high = [(lr, loss, training + 0.2, reference) for lr, loss, training, reference in ROWS]
    with pytest.raises(
        ValueError,
        match=r"rule must leave a configuration, got none to keep a score of the training",
    ):
        select(table(high), rule="public-reference")


@pytest.mark.parametrize(
    ("points", "rule", "message"),
    [
        (
            table().drop(columns=REFERENCE),
            "equal-privacy",
            "must have one score of training and of reference data",
        ),
        (
            table().assign(**{REFERENCE: np.nan}),
            "equal-privacy",
            "must be given in every finished row, got 12 rows",
        ),
        (table(), "equal-privcy", "Did you mean 'equal-privacy'"),
    ],
)
def test_refused(points: pd.DataFrame, rule: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select(points, rule=rule)


def test_they_are_no_rules_of_one_score() -> None:
    assert not RULES.keys() & {*rule_names()}
    assert all(constrained_rule(name) is rule for name, rule in RULES.items())

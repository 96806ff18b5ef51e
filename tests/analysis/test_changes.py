"""What would change the choice: the nearest thresholds at which the rule selects another
configuration."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest

from raydp.analysis import select
from raydp.analysis.selection.wording import in_words
from tests.marks import slow_after

CHANGES = "What would change the choice: "


def table(num_rates: int = 3) -> pd.DataFrame:
    """Runs whose score rises and whose loss falls in b·T·η, with noise."""
    rng = np.random.default_rng(5)
    rates = 0.005 * 1.4 ** np.arange(num_rates)
    rows = [
        [b, t, rate, seed, 3 - 0.1 * np.log(b * t * rate) + 0.02 * rng.standard_normal(),
         0.01 * b * t * rate * np.exp(0.3 * rng.standard_normal())]
        for b, t, rate in product([32, 64, 128], [10, 20], rates)
        for seed in range(2)
    ]  # fmt: skip
    return pd.DataFrame(
        rows, columns=["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
    ).assign(base_utility_loss=3.4)


@pytest.mark.extensions("pareto-knee")
@pytest.mark.parametrize(
    "rule",
    slow_after(1, ["procedure", "informed", "best-utility", "oracle", "pareto-knee"]),
)
def test_the_rule_selects_the_change_at_its_threshold_and_nothing_else_before(rule: str) -> None:
    points = table()
    losses = np.sort(
        points.groupby(["batch_size", "num_steps", "learning_rate"])["utility_loss"].mean()
    )
    start = float(losses[9])
    chosen = select(points, rule=rule, max_loss=start)
    at = {float(u): select(points, rule=rule, max_loss=float(u)) for u in losses}
    stricter = [u for u in losses[:10] if at[u].configuration != chosen.configuration]
    looser = [u for u in losses[10:] if at[u].configuration != chosen.configuration]
    assert chosen.changes is not None
    assert [each.threshold for each in chosen.changes] == [*stricter[-1:], *looser[:1]]
    for each in chosen.changes:
        entered = select(points, rule=rule, max_loss=float(each.text))
        assert each.configuration == at[each.threshold].configuration == entered.configuration
        assert (each.utility_loss, each.score) == (entered.utility_loss, entered.score)
    said = [sentence for sentence in in_words(chosen) if sentence.startswith(CHANGES)]
    assert len(said) == bool(chosen.changes)
    assert all(
        each.text in said[0] and str(each.configuration) in said[0] for each in chosen.changes
    )
    assert [row["max_loss"] for row in chosen.to_dict()["threshold_changes"]] == [
        c.threshold for c in chosen.changes
    ]


def test_other_constraints_hold_at_every_threshold() -> None:
    points = table()
    chosen = select(points, rule="best-utility", min_gain_share=0.5, at_most={"batch_size": 64})
    assert {each.configuration.batch_size for each in chosen.changes} <= {32, 64}
    alone = select(points, at_most={"batch_size": 32, "num_steps": 10, "learning_rate": 0.005})
    assert alone.changes == ()


def test_large_tables_are_not_searched() -> None:
    assert select(table(num_rates=17), rule="oracle").changes is None
    assert "threshold_changes" not in select(table(num_rates=17), rule="oracle").to_dict()

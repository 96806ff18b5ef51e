"""What would decide if the means stayed as they are, as a selection says it."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from raydp.analysis import select
from raydp.analysis.report.card import contenders_table
from raydp.analysis.selection import decision

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score", "run_id"]
NUM_SECRETS = 12


def table(means, num_seeds, *, std=0.05):
    """A points table with exactly these means and standard deviations over seeds."""
    rows = []
    for k, mean in enumerate(means):
        deviations = np.linspace(-1, 1, num_seeds) if num_seeds > 1 else np.zeros(1)
        deviations *= 1 if num_seeds == 1 else std / deviations.std(ddof=1)
        rows += [
            (64, 1 + k, 0.1, seed, 1.0 + k, mean + d, f"{k}-{seed}")
            for seed, d in enumerate(deviations)
        ]
    return pd.DataFrame(rows, columns=COLUMNS)


def secrets_of(points, spread):
    """Values by secret whose means are the scores; each configuration treats the secrets
    differently."""
    rng = np.random.default_rng(0)
    own = {steps: rng.normal(0, spread, NUM_SECRETS) for steps in points["num_steps"].unique()}
    rows = [
        (run, "vmr", f"s{i:02}", score + value)
        for run, steps, score in zip(
            points["run_id"], points["num_steps"], points["score"], strict=True
        )
        for i, value in enumerate(own[steps] - own[steps].mean())
    ]
    return pd.DataFrame(rows, columns=["run_id", "score", "secret_id", "value"]), "vmr"


def of_each(selection, count):
    """The number of further seeds, which is the same for each of so many configurations."""
    (seeds,) = {row["seeds"] for row in selection.outlook.further_seeds}
    assert len(selection.outlook.further_seeds) == count
    assert seeds > 0
    return seeds


def uncertainty(selection):
    return json.loads(json.dumps(selection.to_dict(), allow_nan=False))["uncertainty"]


def test_so_many_further_seeds_decide_and_half_the_seeds_do_not():
    """Without a tolerance, only the lowest score decides; with one, "equivalent" would end it
    too."""
    means = [0.50, 0.56, 0.9]
    selection = select(table(means, 3, std=0.15), tolerance=0.0)
    assert selection.decision.state == "undecided"
    further = of_each(selection, 3)
    decided = select(table(means, 3 + further, std=0.15), tolerance=0.0)
    assert (decided.decision.state, decided.configuration.num_steps) == ("decided", 1)
    assert decided.outlook.further_seeds == ()
    half = (3 + further) // 2
    assert half > 3, "a smaller number was tried"
    assert select(table(means, half, std=0.15), tolerance=0.0).decision.state == "undecided"
    # All three readers show the same answer.
    assert [row["seeds"] for row in uncertainty(selection)["further_seeds"]] == [further] * 3
    assert "reason" not in uncertainty(selection)
    assert selection.outlook.sentence.startswith(
        f"If the means stayed as they are, about {3 + further} seeds"
    )
    assert selection.warnings[-1].endswith(selection.outlook.sentence)
    assert selection.outlook.sentence in contenders_table(selection)


def test_no_number_of_seeds_tells_equal_means_apart():
    selection = select(table([0.5, 0.5, 0.5], 3), tolerance=0.0)
    assert uncertainty(selection)["further_seeds"] == []
    assert uncertainty(selection)["reason"] == selection.outlook.sentence
    assert "no number of seeds would decide" in selection.warnings[-1]


def test_equal_means_are_equivalent_after_some_seeds_if_there_is_a_tolerance():
    selection = select(table([0.5, 0.5, 0.5], 2, std=0.1))
    assert selection.decision.state == "undecided"
    further = of_each(selection, 3)
    assert select(table([0.5, 0.5, 0.5], 2 + further, std=0.1)).decision.state == "equivalent"


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        (table([0.5, 0.6, 0.9], 1), "o configuration has two seeds"),
        (table([0.5, 0.5, 0.5], 2, std=0.0), "No score differs between two seeds"),
    ],
    ids=["one seed", "equal scores"],
)
def test_a_number_that_is_not_known_is_left_out_with_a_reason(points, reason):
    found = uncertainty(select(points))
    assert found["further_seeds"] == []
    assert reason.lower() in found["reason"].lower()


def test_errors_over_secrets_need_secrets_and_without_secrets_seeds_decide():
    points = table([0.50, 0.60], 4, std=0.03)
    selection = select(points, by_secret=secrets_of(points, 0.2), tolerance=0.02)
    assert selection.decision.state == "undecided"
    assert uncertainty(selection)["further_seeds"] == []
    assert (
        f"about {selection.outlook.times_secrets} times as many" in uncertainty(selection)["reason"]
    )
    without = select(points, tolerance=0.02)
    assert without.decision.state == "decided"
    assert without.outlook.times_secrets is None


def test_a_rule_that_selects_another_one_than_the_known_lowest_needs_no_seeds():
    selection = select(table([0.9, 0.1], 3, std=0.01), rule="best-utility")
    assert selection.configuration.num_steps == 1
    assert selection.decision.state == "undecided"
    assert uncertainty(selection)["further_seeds"] == []
    assert "no further seeds are needed" in selection.outlook.sentence


def test_a_configuration_with_one_seed_borrows_its_spread():
    points = table([0.50, 0.56, 0.9], 3, std=0.15)
    one_seed = points[
        (points["num_steps"] != 2) | (points["seed"] == 1)
    ]  # the middle one of the three, so equal means
    assert select(one_seed, tolerance=0.02).decision.state == "undecided"
    further = {
        row["num_steps"]: row["seeds"]
        for row in select(one_seed, tolerance=0.02).outlook.further_seeds
    }
    assert further[2] == further[1] + 2, "all have the same number of seeds in the end"


def test_a_large_table_is_not_asked():
    selection = select(table(0.5 + np.arange(101) / 1e4, 2), tolerance=0.0)
    assert selection.decision.state == "undecided"
    assert (
        "not computed for a table of more than 100 configurations"
        in uncertainty(selection)["reason"]
    )


def test_it_is_computed_once_and_only_if_someone_asks(monkeypatch):
    calls = []

    def counted(*arguments, **options):
        calls.append(arguments)
        return original(*arguments, **options)

    original = decision.outlook
    monkeypatch.setattr(decision, "outlook", counted)
    selection = select(table([0.50, 0.56, 0.9], 3, std=0.15), tolerance=0.02)
    assert "warnings=1" in repr(selection)
    assert not calls
    assert len(selection.warnings) == 1
    uncertainty(selection)
    assert len(calls) == 1

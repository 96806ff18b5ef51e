"""The pairwise heuristics against their definition, pair by pair."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from point_tables import naive_means, naive_prefers, tables

from raydp.analysis import heuristic_accuracy

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]


def naive_accuracy(table):
    means = naive_means(table)
    result = {}
    for heuristic in ("individual", "compute", "updates"):
        pairs = [(p, q) for p in means for q in means if naive_prefers(heuristic, p, q)]
        correct = sum(means[p][1] < means[q][1] for p, q in pairs)
        result[heuristic] = (correct, len(pairs), correct / len(pairs) if pairs else None)
    return result


@settings(max_examples=100)
@given(table=tables())
def test_counts_are_those_of_the_definition(table):
    found = heuristic_accuracy(table)
    assert {
        name: (f["correct"], f["pairs"], f["accuracy"]) for name, f in found.items()
    } == naive_accuracy(table)
    assert all(("reason" in figures) == (figures["pairs"] == 0) for figures in found.values())


@pytest.mark.parametrize(
    ("heuristic", "first", "second"),
    [
        ("compute", (8192, 250, "3e-3"), (4096, 500, "3e-3")),
        ("updates", (3, 1, "0.1"), (1, 1, "0.3")),  # as floats 0.30000000000000004 and 0.3
        ("updates", (7, 1, 0.1), (1, 1, 0.7)),  # as floats 0.7000000000000001 and 0.7
    ],
)
def test_products_are_compared_exactly(heuristic, first, second):
    table = pd.DataFrame([(*first, 0, 1.0, 0.1), (*second, 0, 1.0, 0.2)], columns=COLUMNS)
    assert heuristic_accuracy(table)[heuristic] == {"correct": 1, "pairs": 1, "accuracy": 1.0}


def test_a_tie_in_the_score_is_not_correct():
    table = pd.DataFrame([(1, 1, 0.1, 0, 1.0, 0.2), (2, 1, 0.1, 0, 1.0, 0.2)], columns=COLUMNS)
    assert heuristic_accuracy(table)["individual"] == {"correct": 0, "pairs": 1, "accuracy": 0.0}

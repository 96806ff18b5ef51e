"""The published tables of real sweeps: they can be read, and give the figures that their pages
state."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydp.analysis import (
    configuration_means,
    heuristic_accuracy,
    load_points,
    privacy_risk,
    score_names,
)

RESULTS = Path(__file__).parent.parent.parent / "docs" / "results"


@pytest.mark.parametrize(
    ("name", "rows", "configurations", "counts", "procedure"),
    [
        ("demo", 36, 18, {"individual": (80, 90), "compute": (4, 6), "updates": (5, 20)}, 0.030),
        (
            "enron-smollm2",
            12,
            12,
            {"individual": (30, 30), "compute": (5, 6), "updates": (3, 4)},
            0.187,
        ),
        (
            "tofu-smollm2",
            8,
            8,
            {"individual": (18, 19), "compute": (0, 0), "updates": (3, 3)},
            0.0024,
        ),
    ],
)
def test_tables_give_the_figures_of_their_pages(name, rows, configurations, counts, procedure):
    points = load_points(RESULTS / f"{name}.csv")
    assert (len(points), len(configuration_means(points))) == (rows, configurations)
    found = heuristic_accuracy(points)
    assert {heuristic: (of["correct"], of["pairs"]) for heuristic, of in found.items()} == counts
    assert privacy_risk(points)["rules"]["procedure"]["absolute"] == pytest.approx(
        procedure, rel=0.02
    )  # as printed
    assert "logprob" in score_names(points)
    assert points["base_utility_loss"].nunique() == 1
    assert "/" not in (RESULTS / f"{name}.csv").read_text(), "a path or the name of a model"

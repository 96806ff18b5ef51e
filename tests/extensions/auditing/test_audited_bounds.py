"""Scores against an audit's bounds: read from its sweep or a file, by the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from raydp.extensions.auditing.bounds import audited_bounds
from tests.conftest import Answer
from tests.extensions.auditing.test_audits import begun, report_with, spec_of


@pytest.fixture
def points(tmp_path: Path) -> Path:
    """Three configurations, two of which have the small spec's b and η."""
    rows = [
        (32, 3, 0.01, 2.0, 0.1),
        (32, 6, 0.01, 1.9, 0.3),
        (32, 9, 0.01, 1.8, 0.2),
        (32, 12, 0.01, 1.7, 0.4),
    ]
    table = pd.DataFrame(
        rows, columns=["batch_size", "num_steps", "learning_rate", "utility_loss", "score.vmr"]
    )
    path = tmp_path / "points.csv"
    table.assign(seed=0, score=table["score.vmr"]).to_csv(path, index=False)
    return path


def test_bounds_are_those_of_the_configurations_and_join_the_points(
    tmp_path: Path, points: Path, raydp: Callable[..., Answer]
) -> None:
    _, report = report_with(tmp_path, [90, 60, 70, 50])
    bounds = audited_bounds(str(report.folder))
    assert bounds.to_dict("records") == [
        {
            **{
                name: row[name]
                for name in ("batch_size", "num_steps", "learning_rate", "epsilon_hat")
            },
            "settings": "",
        }
        for row in report.configurations
    ]
    by_name = raydp(
        "analyze",
        "correlations",
        points,
        "--audit",
        report.folder.name,
        "--storage",
        report.folder.parent,
        "--json",
    )
    audit = by_name.json()["audit"]
    assert [audit[key] for key in ("configurations", "only_points", "only_audit")] == [2, 2, 0]
    assert audit["pairs"][0]["reason"] == "fewer than 3 configurations have both"


def test_bounds_of_a_file(tmp_path: Path, points: Path, raydp: Callable[..., Answer]) -> None:
    file = tmp_path / "bounds.csv"
    file.write_text(
        "batch_size,num_steps,learning_rate,epsilon_hat\n32,3,1e-2,0.1\n32,6,0.01,0.4\n32,9,0.010,0.9\n32,12,0.01,1\n"
    )
    answer = raydp("analyze", "correlations", points, "--audit", file, "--json")
    (vmr, loss) = answer.json()["audit"]["pairs"]
    assert (vmr["spearman"], loss["a"]) == (
        pytest.approx(0.8),
        "utility_loss",
    )  # by hand: one pair of ranks exchanged
    shown = raydp("analyze", "correlations", points, "--audit", file)
    assert "4 configurations that both have" in shown.out
    assert "0 without an audit, 0 without a score, 0 with ε̂ = 0" in shown.out


def test_correlations_refuse_missing_file_and_sweep_without_audit(
    tmp_path: Path, points: Path, raydp: Callable[..., Answer]
) -> None:
    missing = raydp("analyze", "correlations", points, "--audit", "nothing.csv")
    assert (
        missing.code,
        "audit must be an existing file or sweep, got 'nothing.csv'" in missing.err,
    ) == (2, True)
    sweep = begun(spec_of(tmp_path))
    with pytest.raises(
        ValueError, match=r"must be a sweep of `raydp audit`, got .*, which measures vmr_exact"
    ):
        audited_bounds(str(sweep.path))

"""What a user sees while scores are measured that give no value before they saw all models."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from raydp.extensions.later_scores import scorers
from raydp.extensions.later_scores.progress import MeasurementProgress
from raydp.extensions.later_scores.requests import requests_from
from raydp.extensions.later_scores.sweep import score_sweep
from raydp.system import waiting
from tests.sweep.trained import Trained

pytestmark = pytest.mark.xdist_group("scoring")


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    monkeypatch.setattr(waiting, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "TICK_SECONDS", 0.01)
    return Console(file=io.StringIO(), width=200)


def test_a_line_names_the_measurement_and_the_result(console: Console) -> None:
    with MeasurementProgress(console, total=4) as shown:
        shown.advance()
        shown.report({"acr": (1, 3), "distance": (2, 3)})
        time.sleep(0.2)
    seen = ", acr has seen 1 of 3 models, distance has seen 2 of 3 models"
    assert console.file.getvalue().splitlines()[-1] == f"1/4 measured{seen} (0 s)"


@pytest.mark.daily
@pytest.mark.daily
def test_a_search_over_all_models_says_how_far_it_is(
    trained: Trained, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorers, "REPORT_SECONDS", 0.1)
    options = ["num_seeds=1", "max_steps=3", "max_prompt_tokens=2"]
    answer = score_sweep(
        trained.folder,
        requests_from(names="acr", params=options, label="searched"),
        console=console,
    )
    assert answer["scores"]["searched"]["measured"] == 5
    assert re.search(r"0/5 measured, searched has seen [1-5] of 5 models", console.file.getvalue())

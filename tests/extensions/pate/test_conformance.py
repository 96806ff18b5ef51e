"""PATE and the task that gives it public examples run the suites of methods and tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raydp.extensions.pate import checks
from raydp.extensions.pate.checks import vote_checks
from raydp.selftest.check_result import Check
from raydp.testing.methods import MethodConformance
from raydp.testing.tasks import TaskConformance
from tests.extensions.classification import test_conformance as classes


class TestPATE(MethodConformance):
    name, written, bad = (
        "pate",
        {"num_teachers": 5, "num_queries": 40, "teacher_steps": 10},
        {"num_teachers": 1},
    )
    num_drawn = 40

    @pytest.fixture(autouse=True)
    def _fewer_examples(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each is left out once, so half of them take a quarter of the time."""
        monkeypatch.setattr(checks, "NUM_EXAMPLES", 10)

    def measured(self, method: Any) -> list[Check]:
        """Its noise is on the teachers' votes."""
        return vote_checks(method)


class TestWithPublic(TaskConformance):
    name = "with_public"

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        of = {"name": "tabular", **classes.TestTabular().written(folder, changed=changed)}
        return {"of": of}


class TestWithPublicTexts(TaskConformance):
    name = "with_public"

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        texts = classes.TestTextClassification().written(folder, changed=changed)
        return {"of": {"name": "text_classification", **texts}}

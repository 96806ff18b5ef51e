"""Methods with reference data, and the task that has them, run the suites of methods and tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raydp.testing.methods import MethodConformance
from raydp.testing.tasks import TaskConformance
from tests.builders.data_files import write_json_lines
from tests.tasks import test_conformance as tasks

SMALL_ATTACK = {"strength": 1.0, "attack_width": 16, "attack_ratio": 1.0}


class TestAdversarialRegularization(MethodConformance):
    name, written, bad = "advreg", SMALL_ATTACK, {"attack_width": 1}


class TestAdversarialRegularizationOnBoth(MethodConformance):
    name, written, bad = "advreg_rt", SMALL_ATTACK, {"attack_width": 1}


class TestMMDRegularization(MethodConformance):
    name, written, bad = "mmd", {"strength": 1.0}, {"strength": -1}


class TestReferenceWeight(MethodConformance):
    name, written = "dp_sgd", {"reference_weight": 0.2}


class TestWeightedRiskMinimization(MethodConformance):
    name, written, bad = "werm", {"reference_weight": 0.2}, {"reference_weight": 2}


class TestWithReference(tasks.Wrapping):
    name = "with_reference"

    def options(self) -> dict[str, Any]:
        return {"fraction": 0.3}


class TestWithReferenceOfAnother(TaskConformance):
    name, bad = "with_reference", {"fraction": 0.3}

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        (folder / "other").mkdir(exist_ok=True)
        other = write_json_lines(
            folder / "other" / "rows.jsonl", [{"text": f"Other row {i}."} for i in range(20)]
        )
        of = {"name": "text", **tasks.text_task(folder, changed=changed, user_column="writer")}
        return {
            "of": of,
            "reference": {"name": "text", "path": str(other), "heldout_fraction": 0.2},
        }

"""What the end of a sweep writes: files of earlier versions are read, and the JSON stays as it
was."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from raydp.search_spaces import Configuration
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.summary import RunCounts

SELECTED = {
    "batch_size": 32, "num_steps": 5, "learning_rate": 0.01, "utility_loss": 1.25, "score": 0.5,
    "rule": "informed", "max_loss": 1.5, "explanation": None,
    "steps": [{"name": "utility threshold", "rule": "utility_loss <= 1.5",
               "survivors": [{"batch_size": 32, "num_steps": 5, "learning_rate": 0.01}], "dropped": []}],
    "model_uri": "models:/small/1", "warnings": ["Few seeds."], "uncertainty": {"verdict": "unknown"},
}  # fmt: skip
COUNTS = {
    "runs": 5, "finished": 2, "failed": 1, "stopped": 0, "pending": 0, "skipped": 2,
    "search": {"reason": None, "skipped": [
        {"batch_size": 64, "num_steps": 5, "learning_rate": 0.01, "reason": "it was not drawn"},
        {"batch_size": 64, "num_steps": 5, "learning_rate": 0.1, "reason": "it was not drawn"},
    ]},
    "failures": [{"batch_size": 32, "num_steps": 5, "learning_rate": 0.1, "seed": 1, "run_id": "ab", "reason": "why"}],
}  # fmt: skip
RELEASED = {
    "models": 2,
    "run_ids": ["cd", "ef"],
    "epsilon": 9.5,
    "delta": 1e-5,
    "accountant": "prv",
}
ORDINARY = {
    "counts": COUNTS,
    "selected": SELECTED,
    "best_utility": {**SELECTED, "rule": "best-utility"},
    "released_together": {**RELEASED, "note": "not the choice"},
    "audit_alarm": "the audit refutes its ε",
}
UNANSWERED = {
    **ORDINARY,
    "released_together": {**RELEASED, "epsilon": None, "reason": "prv has no answer"},
}
WITHOUT_GUARANTEE = {
    "counts": {
        name: COUNTS[name]
        for name in ("runs", "finished", "failed", "stopped", "pending", "failures")
    },
    "selected": SELECTED,
    "best_utility": SELECTED,
    "released_together": {**RELEASED, "epsilon": "inf"},
}
WITHOUT_MODELS = {**WITHOUT_GUARANTEE, "released_together": None}
PRIVATE_SELECTION = {
    "counts": {"note": "as private as the data", **COUNTS},
    "selected": SELECTED,
    "released_together": {**RELEASED, "models": 1, "run_ids": ["cd"]},
}


@pytest.mark.parametrize(
    "document", [ORDINARY, UNANSWERED, WITHOUT_GUARANTEE, WITHOUT_MODELS, PRIVATE_SELECTION]
)
def test_a_summary_of_an_earlier_version_is_read_and_written_alike(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    folder, file = SweepFolder(path=tmp_path), tmp_path / "summary.json"
    text = json.dumps(document, indent=1) + "\n"
    file.write_text(text)
    summary = folder.summary()
    assert summary is not None
    file.unlink()
    folder.summary.write(summary)
    assert file.read_text() == text


def test_a_summary_holds_the_selection_and_the_ends_of_runs(tmp_path: Path) -> None:
    folder = SweepFolder(path=tmp_path)
    assert folder.summary() is None
    (tmp_path / "summary.json").write_text(json.dumps(ORDINARY))
    summary = folder.summary()
    assert summary is not None
    assert summary.selected.configuration == Configuration(
        batch_size=32, num_steps=5, learning_rate=0.01
    )
    assert (summary.selected.score, summary.selected.model_uri) == (0.5, "models:/small/1")
    assert summary.audit_alarm == "the audit refutes its ε"
    assert summary.counts.numbers == {
        "runs": 5, "finished": 2, "failed": 1, "stopped": 0, "pending": 0, "skipped": 2,
    }  # fmt: skip
    assert (summary.counts.failures[0].run_id, summary.counts.failures[0].reason) == ("ab", "why")


@pytest.mark.parametrize(
    "document", [RELEASED, {**RELEASED, "epsilon": "inf"}, {**RELEASED, "epsilon": None}]
)
def test_a_release_of_an_earlier_version_is_read_and_written_alike(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    folder, file = SweepFolder(path=tmp_path), tmp_path / "released.json"
    assert folder.released() is None
    text = json.dumps(document, indent=1) + "\n"
    file.write_text(text)
    released = folder.released()
    assert released is not None
    assert released.epsilon == (math.inf if document["epsilon"] == "inf" else document["epsilon"])
    folder.released.write(released)
    assert file.read_text() == text


def test_the_counts_of_status_are_read_back() -> None:
    assert RunCounts.from_json(COUNTS).to_json() == COUNTS
    assert list(RunCounts.from_json(COUNTS).to_json()) == list(COUNTS)


def test_runs_that_only_the_decision_may_ask_for_are_counted_apart() -> None:
    counts = RunCounts(runs=216, finished=72, failed=0, stopped=0, pending=144, optional=120)
    assert counts.sentence.endswith("144 pending (120 of them only if the decision needs them)")
    assert RunCounts.from_json(counts.to_json()) == counts
    assert counts.to_json()["optional"] == 120
    assert "optional" not in RunCounts(runs=1, finished=1, failed=0, stopped=0, pending=0).to_json()

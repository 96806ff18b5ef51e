"""`raydp audit SWEEP` of a sweep that planted twins measures the models that the scores are of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from raydp.auditing.own import audit_own, has_own_canaries
from raydp.auditing.source import source_of
from tests.conftest import Answer
from tests.sweep.trained import Trained


def test_the_audit_of_planted_twins_is_of_the_same_models_as_the_scores(
    trained: Trained, raydp: Callable[..., Answer]
) -> None:
    source = source_of(str(trained.folder.path), storage="", tracking_uri="", spec=None)
    assert has_own_canaries(source)
    answer = raydp("audit", trained.folder.path, "--json")
    document = answer.json()
    assert answer.code == 0, answer.err
    asked = {(t.configuration.batch_size, t.configuration.num_steps, t.seed) for t in trained.trials}
    assert {(row["batch_size"], row["num_steps"], row["seed"]) for row in document["runs"]} == asked
    measured = trained.folder.path / "scores" / "twin_audit"
    assert {t.run_id for t in trained.trials} <= {path.stem for path in measured.glob("*.json")}
    pairs = {pair["a"] if pair["b"] == "twin_audit" else pair["b"] for pair in document["correlations"]}
    assert pairs == {"vmr", "vmr_exact", "utility_loss"}
    assert {pair["models"] for pair in document["correlations"]} == {len(trained.trials)}
    assert not list(trained.folder.path.parent.glob("*-audit"))
    assert "correlations over the same models" in raydp("audit", trained.folder.path).out


@pytest.mark.parametrize("kind", ["no sweep yet", "no twins", "one run"])
def test_other_subjects_are_audited_by_training(kind: str, trained: Trained, tmp_path: Path, write_spec) -> None:
    what = trained.folder.path / "trials" / trained.trials[0].run_id if kind == "one run" else write_spec()
    if kind == "no sweep yet":
        what = write_spec(**{k: trained.content[k] for k in ("task", "scores")}, storage=str(tmp_path / "none"))
    assert not has_own_canaries(source_of(str(what), storage="", tracking_uri="", spec=None))


def test_a_bound_above_the_stated_epsilon_is_counted(trained: Trained) -> None:
    source = source_of(str(trained.folder.path), storage="", tracking_uri="", spec=None)
    found = audit_own(source)
    assert found.above == 0
    assert replace(found, epsilon=-1.0).above == len(found.runs)  # below every bound
    assert replace(found, epsilon=None).above == 0

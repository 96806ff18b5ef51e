"""`raydp audit SWEEP` of a sweep that planted twins measures the models that the scores are of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from raydp.extensions.auditing.own_twins import audit_own, has_own_canaries
from raydp.extensions.auditing.source import source_of
from tests.conftest import Answer
from tests.sweep.conftest import TWINS
from tests.sweep.trained import Trained

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A sweep whose training has measured the twins too, so that nothing is left to measure."""
    scores = [{"name": "vmr_exact"}, {"name": "twin_audit"}]
    return Trained(tmp_path_factory.mktemp("own") / "sweep", task=TWINS, scores=scores, seeds=[0])


@pytest.mark.slow
def test_the_audit_measures_twins_that_training_has_not(
    trained: Trained, raydp: Callable[..., Answer]
) -> None:
    answer = raydp("audit", trained.folder.path, "--json")
    assert answer.code == 0, answer.err
    measured = trained.folder.path / "scores" / "twin_audit"
    assert {t.run_id for t in trained.trials} <= {path.stem for path in measured.glob("*.json")}
    assert len(answer.json()["runs"]) == len(trained.trials)


def test_the_audit_of_planted_twins_is_of_the_same_models_as_the_scores(
    twins: Trained, raydp: Callable[..., Answer]
) -> None:
    source = source_of(str(twins.folder.path), storage="", tracking_uri="", spec=None)
    assert has_own_canaries(source)
    answer = raydp("audit", twins.folder.path, "--json")
    document = answer.json()
    assert answer.code == 0, answer.err
    asked = {(t.configuration.batch_size, t.configuration.num_steps, t.seed) for t in twins.trials}
    assert {(row["batch_size"], row["num_steps"], row["seed"]) for row in document["runs"]} == asked
    pairs = {
        pair["a"] if pair["b"] == "twin_audit" else pair["b"] for pair in document["correlations"]
    }
    assert pairs == {"vmr_exact", "utility_loss"}
    assert {pair["models"] for pair in document["correlations"]} == {len(twins.trials)}
    assert not list(twins.folder.path.parent.glob("*-audit"))
    assert "correlations over the same models" in raydp("audit", twins.folder.path).out


@pytest.mark.parametrize("kind", ["no sweep yet", "no twins", "one run"])
def test_other_subjects_are_audited_by_training(
    kind: str, twins: Trained, tmp_path: Path, write_spec
) -> None:
    what = (
        twins.folder.path / "trials" / twins.trials[0].run_id if kind == "one run" else write_spec()
    )
    if kind == "no sweep yet":
        what = write_spec(
            **{k: twins.content[k] for k in ("task", "scores")}, storage=str(tmp_path / "none")
        )
    assert not has_own_canaries(source_of(str(what), storage="", tracking_uri="", spec=None))


def test_a_bound_above_the_stated_epsilon_is_counted(twins: Trained) -> None:
    source = source_of(str(twins.folder.path), storage="", tracking_uri="", spec=None)
    found = audit_own(source)
    assert found.above == 0
    assert replace(found, epsilon=-1.0).above == len(found.runs)  # below every bound
    assert replace(found, epsilon=None).above == 0

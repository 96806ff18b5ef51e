"""A sweep with `scores: []`, from its spec to its model in MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raydp import Sweep, find_models, load_model, report, select
from raydp.analysis.selection.wording import NOT_MEASURED
from raydp.spec.reading import load_spec
from tests.builders.specs import small_spec
from tests.sweep.trained import Trained


def unscored(folder: Path, **changes: Any) -> dict[str, Any]:
    return small_spec(folder, **{"scores": [], "select": {"min_gain_share": None}, **changes})


def test_the_procedure_is_the_default_rule_without_scores(tmp_path: Path) -> None:
    assert load_spec(unscored(tmp_path)).select.rule == "procedure"
    assert (
        load_spec(unscored(tmp_path, select={"rule": "best-utility"})).select.rule == "best-utility"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"select": {"rule": "informed"}}, "select.rule must need no score"),
        ({"select": {"score": "vmr_exact"}}, "select.score must be left out"),
        ({"select": {"max_score": 0.1}}, "select.max_score must be left out"),
        (
            {"seeds": {"first": 2, "at_most": 3}},
            "seeds must be a list with select.rule 'procedure'",
        ),
        ({"scores": [{"name": "vmr_exact"}]}, "select.score must name the score to select by"),
    ],
)
def test_rules_that_need_a_score_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_spec(unscored(tmp_path, **changes))


@pytest.mark.slow
def test_an_unscored_sweep_ends_with_a_selection_and_a_model(tmp_path: Path) -> None:
    content = Trained(tmp_path, scores=[], select={"min_gain_share": None}, seeds=[0]).content
    sweep = Sweep(content)
    result = sweep.run(resume=True)
    chosen = result.selected
    assert chosen is not None
    assert chosen.score is chosen.decision is None
    assert result.points()["score"].isna().all()
    assert NOT_MEASURED in (result.report or tmp_path).read_text(encoding="utf-8")
    assert select(result.folder).to_dict() == chosen.to_dict()
    report(result.folder, tmp_path / "again.html")
    found = find_models(tracking_uri=sweep.spec.tracking.uri)
    assert len(found) == 2
    assert load_model("models:/small@privacy-preferred", tracking_uri=sweep.spec.tracking.uri)
    assert Sweep(content).run(resume=True).selected == chosen

"""What the selection and the result of a sweep know: score, guarantee, sweep and model.

The runs are trained here.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import raydp.privacy.records.guarantee as guarantee_module
from raydp import Sweep, SweepResult, report, select
from raydp.analysis.selection.wording import in_words
from raydp.privacy import attack_bounds
from raydp.sweep.ending.notes import _advantage, about
from tests.sweep.trained import Trained


class Ended:
    """A small sweep with two scores that has ended."""

    def __init__(self, trained: Trained) -> None:
        self.content, self.folder = trained.content, trained.folder
        self.result = Sweep(self.content).run(resume=True)
        assert self.result.selected is not None
        self.selected = self.result.selected


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return Ended(Trained(tmp_path_factory.mktemp("ended"), seeds=[0]))


def test_a_selection_names_its_score_its_guarantee_and_its_sweep(ended: Ended) -> None:
    points, selected = ended.result.points(), ended.selected
    own = points[points["model_uri"] == selected.model_uri].iloc[0]
    document = selected.to_dict()
    assert document["score_name"] == selected.score_name == "vmr_exact"
    assert document["sweep"] == selected.sweep == "small"
    assert document["epsilon"] == selected.epsilon == own["epsilon"]
    assert document["delta"] == selected.delta == own["delta"]
    assert document["scores"] == {name: own[f"score.{name}"] for name in ("vmr_exact", "vmr")}
    assert select(ended.folder.path).to_dict() == document
    assert select(ended.folder.path, score="vmr", rule="oracle").score_name == "vmr"
    assert (
        select(ended.folder.path, score="vmr_exact", worst_case=True).score_name
        == "worst case of vmr_exact"
    )


def test_reading_of_a_sweep_writes_nothing(ended: Ended, tmp_path: Path) -> None:
    """Nor does it need the tables that an end has written."""
    copy = tmp_path / "copy"
    shutil.copytree(ended.folder.path, copy)
    for name in ("points.csv", "secrets.parquet"):
        (copy / name).unlink()
    before = sorted(copy.rglob("*"))
    assert select(copy).to_dict() == ended.selected.to_dict()
    assert select(copy, score="vmr_exact", worst_case=True).score is not None
    report(copy, tmp_path / "report.html")
    assert sorted(copy.rglob("*")) == before


def test_every_other_score_is_in_the_words_of_the_decision(ended: Ended) -> None:
    assert f"Its other scores: vmr {ended.selected.scores['vmr']:.4g}." in in_words(ended.selected)


def test_a_selection_loads_its_model_from_the_sweeps_own_store(ended: Ended) -> None:
    assert ended.selected.load().training is False
    assert ended.selected.load_tokenizer()("a").input_ids
    with pytest.raises(
        ValueError, match=r"Selection\.load must be called on the selection of a sweep"
    ):
        select(ended.result.points()).load_tokenizer()


def test_the_report_names_a_store_and_no_absolute_path(ended: Ended) -> None:
    assert ended.result.report is not None
    page = ended.result.report.read_text(encoding="utf-8")
    assert (
        f'raydp.load_model("{ended.selected.model_uri}", tracking_uri=...)'.replace('"', "&quot;")
        in page
    )
    assert str(ended.folder.path.parent) not in page


def test_the_points_have_times_and_aliases(ended: Ended) -> None:
    points = ended.result.points()
    assert (points[["train_seconds", "score_seconds"]] > 0).all(axis=None)
    named = points[points["alias"].notna()].set_index("model_uri")["alias"]
    best = ended.result.best_utility
    assert best is not None
    assert "privacy-preferred" in named[ended.selected.model_uri]
    assert "best-utility" in named[best.model_uri]


def test_a_sweep_that_has_ended_gives_its_result_again(ended: Ended) -> None:
    again = Sweep.open(ended.folder.path).result
    assert isinstance(again, SweepResult)
    assert again.document() == ended.result.document()


def test_a_resume_of_a_finished_sweep_composes_nothing_again(
    ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ended.folder.released()
    monkeypatch.setattr(
        guarantee_module, "composed_epsilon", lambda *_: pytest.fail("it is in the cache")
    )
    assert Sweep(ended.content).run(resume=True).selected == ended.selected
    assert ended.folder.released() == before


def test_a_report_bounds_a_guess_by_the_mechanism_of_the_selected_model(ended: Ended) -> None:
    plan, chosen = ended.folder.plan(), ended.selected.configuration
    advantage_fn = about(ended.folder)["advantage_fn"]
    (run,) = (t.run_id for t in plan.trials if t.configuration == chosen)
    exact = attack_bounds(plan.privacy[run].mechanism.event, ()).advantage
    assert advantage_fn(chosen) == pytest.approx(exact)
    percent = f"{math.ceil(50_00 * (1 + exact)) / 100:g}"
    page = ended.folder.report.read_text(encoding="utf-8").replace("\u00a0", " ")
    assert (
        f"of every mail whether it was trained on is right in at most {percent} % of cases" in page
    )
    assert advantage_fn(replace(chosen, batch_size=chosen.batch_size + 1)) is None
    # As of a plug-in that is not installed here.
    accounted = replace(plan.privacy[run].accounted, accountant="mine")
    other = replace(plan.privacy[run], accounted=accounted)
    assert _advantage(replace(plan, privacy={**plan.privacy, run: other}), chosen) is None

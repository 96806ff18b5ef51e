"""A real sweep, end to end: its points, guarantees, registered models, selection and report."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import jsonschema
import pandas as pd
import pytest

from raydp import load_model, load_points, select
from raydp.cli.show.explanation import show_explanation
from raydp.cli.show.verdict import show_verdict
from raydp.privacy import PoissonGaussian, RDPAccountant
from raydp.privacy.records.schema import card_schema
from raydp.spec.reading import load_spec
from raydp.sweep.reports import report
from raydp.tracking import find_models, load_tokenizer, show_model
from tests.sweep.undisturbed import Done, runs_in

pytestmark = pytest.mark.xdist_group("sweep")


def test_every_configuration_is_a_point_with_its_guarantee(done: Done) -> None:
    points = done.points
    assert len(points) == 4
    assert set(points["status"]) == {"finished"}
    assert (points["epsilon"] <= 8).all()
    assert (points["delta"] == 2000**-1.1).all()
    assert (points["score"] == points["score.vmr_exact"]).all()
    assert points["utility_gain"].to_numpy() == pytest.approx(
        points["base_utility_loss"] - points["utility_loss"]
    )
    assert (
        load_points(done.result.folder / "points.csv")["utility_loss"].tolist()
        == points["utility_loss"].tolist()
    )
    compute = points["batch_size"] * points["num_steps"]
    assert compute.is_monotonic_decreasing, "largest compute first"


def test_mlflow_holds_a_parent_a_run_each_and_a_registered_version_each(done: Done) -> None:
    assert runs_in(done.uri) == {"parents": 1, "children": 4, "versions": 4}
    found = find_models(done.uri, max_epsilon=8, max_loss=10, order_by="score", score="vmr_exact")
    assert sorted(found["run_id"]) == sorted(done.points["run_id"])
    assert found["score"].is_monotonic_increasing
    assert find_models(done.uri, max_epsilon=1).empty


def test_a_choice_tells_the_score_of_the_one_seed_that_is_loaded(
    done: Done, capsys: pytest.CaptureFixture[str]
) -> None:
    """The score of a configuration with several seeds is their mean."""
    chosen = done.result.selected
    assert chosen is not None
    assert chosen.own_score is None, "one seed: its score is the mean"
    own = done.points[done.points["model_uri"] == chosen.model_uri]
    score = float(own["score"].item())
    second = own.assign(seed=1, model_uri="models:/other/1", run_id="second", score=3 * score)
    two = select(pd.concat([own, second], ignore_index=True))
    assert (two.model_uri, two.own_score, two.num_seeds) == (chosen.model_uri, score, 2)
    assert two.score == pytest.approx(2 * score)
    assert two.to_dict()["own_score"] == score
    show_explanation(two, None, None)
    told = " ".join(capsys.readouterr().out.split())
    assert f"What is loaded is one of 2 seeds, whose own score is {score:.4g}." in told
    show_verdict(two, None, source="points.csv", folder=None)
    told = " ".join(capsys.readouterr().out.split())
    assert f"loaded: one of 2 seeds, its own score {score:.3g}" in told


def test_the_report_of_the_command_is_that_of_the_sweep(done: Done, tmp_path: Path) -> None:
    """With the guarantee and what it does not cover, also where it is made from the table in the
    sweep's folder."""
    own = (done.result.folder / "report.html").read_text()
    assert "models of this sweep together" in own
    for source in (done.result.folder, done.result.folder / "points.csv"):
        report(source, tmp_path / "report.html")
        assert (tmp_path / "report.html").read_text() == own


def test_the_selection_is_the_one_of_analysis_and_has_the_alias(done: Done) -> None:
    selection = select(done.result.folder / "points.csv", min_gain_share=0)
    assert done.result.selected.model_uri == selection.model_uri
    shown = show_model("models:/small@privacy-preferred", tracking_uri=done.uri)
    assert shown["model_uri"] == selection.model_uri
    privacy = shown["privacy"]
    assert privacy["certified"] is False, "the test key is public"
    assert (privacy["sampler"], privacy["adjacency"], privacy["unit"]) == (
        "poisson",
        "add-or-remove-one",
        "mail",
    )
    assert privacy["epsilon"] <= privacy["target_epsilon"] == 8


def test_every_model_carries_its_card_and_the_cost_of_all(done: Done) -> None:
    """One accountant's own composition of the four events, not the sum of the four ε."""
    together = json.loads((done.result.folder / "released.json").read_text())
    assert sorted(together["run_ids"]) == sorted(done.points["run_id"])
    plan = json.loads((done.result.folder / "plan.json").read_text())
    events = [
        PoissonGaussian(
            sample_rate=t["batch_size"] / t["num_examples"],
            noise_multiplier=t["noise_multiplier"],
            num_steps=t["num_steps"],
        )
        for t in plan["trials"]
    ]
    expected = RDPAccountant().composed_epsilons(events, [plan["delta"]])[0]
    assert together["epsilon"] == pytest.approx(expected)
    assert done.points["epsilon"].max() < together["epsilon"] < done.points["epsilon"].sum()
    for uri in done.points["model_uri"]:
        privacy = show_model(uri, tracking_uri=done.uri)["privacy"]
        assert privacy["released_together"]["epsilon"] == pytest.approx(expected)
        assert (
            privacy["ledger"]["executions"]
            == privacy["ledger"]["noisy_steps"]
            == privacy["num_steps"]
        )
        assert 0 < privacy["guarantee"]["attack"]["advantage"] < 1
        assert privacy["searched"]["rule"] == "informed"
        jsonschema.validate(privacy, card_schema())
    cards = [
        path.read_text()
        for path in (done.result.folder.parent.parent / "mlruns").rglob("privacy.md")
    ]
    assert len(cards) == 4
    assert all(
        "4 models of one sweep" in card and "Not certified: noise comes from the public" in card
        for card in cards
    )
    assert "All 4 models of this sweep together" in (done.result.folder / "report.html").read_text()


def test_the_registered_model_loads_and_generates(done: Done) -> None:
    uri = "models:/small@best-utility"
    model, tokenizer = (load(uri, tracking_uri=done.uri) for load in (load_model, load_tokenizer))
    batch = tokenizer("From: ", return_tensors="pt")
    generated = model.generate(**batch, max_new_tokens=5, do_sample=False)
    assert generated.shape[1] > batch["input_ids"].shape[1]


def test_the_key_and_the_secrets_stay_where_they_are(done: Done) -> None:
    folder = done.result.folder
    key = folder / "sweep.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    from transformers import AutoTokenizer

    from raydp.models.lookup import TINY

    task = load_spec(done.spec).task.params.build(AutoTokenizer.from_pretrained(TINY))
    names = [s.prompt.encode() for s in task.secrets()]
    for path in [
        p
        for p in folder.parent.parent.rglob("*")
        if p.is_file() and p.parent.name != "ray" and p != key
    ]:
        content = path.read_bytes()
        assert not any(name in content for name in names), path

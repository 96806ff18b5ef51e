"""A private selection, end to end: one model leaves the sweep's folder, and of the other runs
nothing."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from raydp import Sweep, select
from raydp.models import base_models as models
from raydp.privacy.records.schema import card_schema
from raydp.spec.reading import load_spec
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import drawn, make_plan, plan_to_keep
from raydp.sweep.store.folder import SweepFolder
from raydp.tracking import find_models, show_model
from raydp.training.comm import LocalComm
from tests.builders.specs import small_spec
from tests.conftest import Answer
from tests.sweep.undisturbed import runs_in

pytestmark = pytest.mark.slow

PRIVACY = {
    "target_epsilon": 8,
    "accountant": "pld",
    "noise_key": "test",  # under which this distribution gives 3 runs
    "tuning": "private_selection",
    "num_runs": {"mean": 3},
}


class Ended:
    """A sweep that was interrupted after its first run, and then resumed to its end."""

    def __init__(self, folder: Path) -> None:
        self.spec = small_spec(folder, privacy=PRIVACY, select={"score": "vmr_exact"})
        self.uri = self.spec["tracking"]["uri"]
        spec = load_spec(self.spec)
        task, weight_hash = build_task(spec)
        plan = make_plan(spec, task.facts(), weight_hash)
        self.folder = SweepFolder.create(
            spec, lambda key: plan_to_keep(drawn(plan, spec, weight_hash, key), "a1b2" * 4)
        )
        self.trials = drawn(plan, spec, weight_hash, self.folder.key()).trials
        first = self.trials[0]
        runner = TrialRunner(
            spec, task, models.load_base(spec.model), LocalComm(), self.folder.key()
        )
        outcome = runner.run(first, self.folder.files(first.run_id), "attempt-1")
        self.folder.commit(outcome)
        self.before = self.committed(first.run_id)
        self.sweep = Sweep(self.spec)
        self.result = self.sweep.run(resume=True)
        losses = {t.run_id: self.folder.result(t.run_id).loss for t in self.trials}
        self.best = min(losses, key=lambda run_id: losses[run_id])

    def committed(self, run_id: str) -> int:
        return (self.folder.trial(run_id) / "result.json").stat().st_mtime_ns

    def stored(self) -> list[Path]:
        """Every file of the MLflow store."""
        root = self.folder.path.parent.parent
        return [root / "mlflow.db", *(p for p in (root / "mlruns").rglob("*") if p.is_file())]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return Ended(tmp_path_factory.mktemp("selection"))


def test_it_goes_on_where_it_was_interrupted_with_the_runs_that_were_drawn(ended: Ended) -> None:
    assert len(ended.trials) == 3
    assert ended.committed(ended.trials[0].run_id) == ended.before
    assert ended.result.counts.finished == 3
    assert "as private as the data" in ended.result.counts.note


def test_one_model_is_registered_and_it_is_the_best(ended: Ended) -> None:
    assert runs_in(ended.uri) == {"parents": 1, "children": 1, "versions": 1}
    (found,) = find_models(ended.uri, order_by="score").to_dict("records")
    assert found["run_id"] == ended.best
    assert sorted(found["aliases"]) == ["best-utility", "privacy-preferred"]
    assert ended.result.selected.model_uri == found["model_uri"] == "models:/small/1"


def test_the_store_tells_nothing_of_the_other_runs_and_nothing_measured_on_private_data(
    ended: Ended,
) -> None:
    results = {t.run_id: ended.folder.result(t.run_id) for t in ended.trials}
    others = [t for t in ended.trials if t.run_id != ended.best]
    foreign = [str(x) for t in others for x in (t.run_id, t.seed, results[t.run_id].loss)]
    private = [str(r.scores["vmr_exact"].value) for r in results.values()]
    for path in ended.stored():
        content = path.read_bytes()
        assert not any(text.encode() in content for text in foreign + private), path
    with sqlite3.connect(ended.uri.removeprefix("sqlite:///")) as database:
        keys = {
            key
            for table in ("metrics", "params", "tags")
            for (key,) in database.execute(f"select key from {table}")
        }
        values = [value for (value,) in database.execute("select value from metrics")]
        started = min(time for (time,) in database.execute("select start_time from runs"))
        ((description,),) = database.execute("select description from model_versions")
    told = ("score.", "score", "counts", "seconds", "loss", "gradient_norm", "clipped", "drawn")
    assert not {k for k in keys if k in told or k.startswith(("score.", "counts."))}
    assert description.startswith("loss ")
    assert not [word for word in ("core", "Leakage", "Selected") if word in description]
    assert len(ended.trials) not in values, "no figure is the number of runs"
    assert not {results[t.run_id].loss for t in others} & set(values)
    assert not {
        k
        for k in keys
        if k.startswith("facts.notes") or k in ("facts.num_examples", "facts.num_tokens")
    }
    assert "facts.num_units" in keys
    last = max(ended.committed(t.run_id) for t in ended.trials)
    assert started >= last // 10**6, "no time from before the end"
    assert not [
        p for p in ended.stored() if p.name in ("points.csv", "report.html", "secrets.parquet")
    ]


def test_the_card_is_that_of_the_choice(ended: Ended) -> None:
    privacy = show_model("models:/small@privacy-preferred", tracking_uri=ended.uri)["privacy"]
    jsonschema.validate(privacy, card_schema())
    assert 0.998 * 8 < privacy["epsilon"] <= 8
    assert privacy["tuning"] == "private_selection"
    said = privacy["private_selection"]
    assert (said["distribution"], said["mean"], said["eta"]) == (
        "truncated_negative_binomial",
        3,
        1,
    )
    assert said["single_run_epsilon"] < privacy["epsilon"]
    assert not any("choice of this configuration" in item for item in privacy["not_covered"])
    delta = privacy["delta"]
    profile = {row["delta"]: row["epsilon"] for row in privacy["guarantee"]["profile"]}
    assert profile[1e-3] < privacy["epsilon"] < profile[1e-4], (
        f"δ = {delta} lies between, of the same curve"
    )
    (card,) = [p.read_text() for p in ended.stored() if p.name == "privacy.md"]
    assert "1 model of one sweep" in card
    assert "truncated negative binomial, mean 3" in card
    together = json.loads((ended.folder.path / "released.json").read_text())
    assert together == {
        **together,
        "models": 1,
        "run_ids": [ended.best],
        "epsilon": privacy["epsilon"],
    }


def test_a_second_resume_releases_the_same_model(ended: Ended) -> None:
    again = ended.sweep.run(resume=True)
    assert again.selected == ended.result.selected
    assert runs_in(ended.uri) == {"parents": 1, "children": 1, "versions": 1}


def test_the_commands_know_one_choice_only(ended: Ended, raydp: Any) -> None:
    folder = ended.folder.path
    answer: Answer = raydp("select", folder, "--json")
    assert answer.json()["model_uri"] == "models:/small/1"
    assert (
        select(folder / "points.csv").to_dict() == answer.json() == ended.result.selected.to_dict()
    )
    for option, value in (("rule", "oracle"), ("max-loss", "9")):
        refused = raydp("select", folder, f"--{option}", value)
        assert refused.code == 2
        assert (
            f"{option.replace('-', '_')} must be left out for a sweep with privacy.tuning"
            in refused.err
        )
    assert raydp("report", folder, "-o", "r.html").code == 0
    page = Path("r.html").read_text()
    assert page.index("are as private as the data") < page.index("What every rule selects"), (
        "at the top"
    )
    assert "The released model: ε at most 8" in page
    assert "Training loss of single runs" not in page, (
        "the curves of the other runs are as private as the data"
    )
    status = raydp("status", folder).out.splitlines()
    assert "how many runs there were" in status[0]
    assert "warning: the table shows a private selection" in raydp("points", folder).err

"""A sweep that has ended goes on or ends again.

What its first end said does not stay where it is no longer true.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raydp import Sweep
from raydp.spec.reading import load_spec
from raydp.sweep.engine.recorder import Recorder
from raydp.sweep.store.folder import SweepFolder
from raydp.tracking import find_models
from raydp.tracking.promotions import trail
from raydp.tracking.registry import show_model
from raydp.tracking.store import open_store
from tests.builders.plans import plan_of_runs
from tests.builders.specs import small_spec
from tests.sweep.trained import Trained


class Ended(Trained):
    """A trained sweep that has ended."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        assert self.ending.finish().selected is not None

    def end_files(self) -> set[str]:
        return {
            name
            for name in ("summary.json", "report.html", "released.json")
            if (self.folder.path / name).exists()
        }

    def aliases(self) -> dict[str, str]:
        (model,) = open_store(self.uri).client.search_registered_models("name = 'small'")
        return dict(model.aliases)

    def joint_costs(self) -> list[Any]:
        found = find_models(self.uri, registered_model="small", max_epsilon=8, verify=True)
        assert (len(found), found.attrs["left_out"]) == (4, {}), "the new cards are sealed"
        cards = [
            show_model(f"models:/small/{version}", tracking_uri=self.uri)["privacy"]
            for version in range(1, 5)
        ]
        return [card.get("released_together") for card in cards]


@pytest.mark.slow
def test_the_joint_cost_of_an_end_is_taken_back_before_further_models_follow(
    tmp_path: Path,
) -> None:
    """It would be too low for all models together, and a killed driver would leave it so."""
    ended = Ended(tmp_path / "sweep")
    assert all(cost["models"] == 4 for cost in ended.joint_costs())
    assert ended.end_files() == {"summary.json", "report.html", "released.json"}
    ended.ending.listener.reopened()
    assert ended.joint_costs() == [None] * 4
    assert ended.end_files() == set()
    ended.ending.listener.reopened()
    assert ended.ending.finish().selected is not None
    assert all(cost["models"] == 4 for cost in ended.joint_costs())


@pytest.mark.slow
def test_an_end_without_a_selection_takes_back_an_earlier_one(tmp_path: Path) -> None:
    ended = Ended(tmp_path / "sweep")
    assert set(ended.aliases()) == {"best-utility", "privacy-preferred"}
    numbers = set(ended.aliases().values())
    select = {**ended.content["select"], "max_loss": 0.001}
    result = Sweep({**ended.content, "select": select}).run(resume=True)
    assert (result.selected, result.interrupted) == (None, False)
    assert ended.aliases() == {}
    assert ended.end_files() == {"released.json"}
    version = open_store(ended.uri).client.get_model_version("small", numbers.pop())
    assert "taken away: max_loss must be at least" in trail(version.tags)[-1]["reason"]


@pytest.mark.slow
def test_a_resume_keeps_the_present_spec(tmp_path: Path) -> None:
    """Tables, reports and later commands read it.

    MLflow cannot change a parameter, so it gets a tag.
    """
    ended = Ended(tmp_path / "sweep")
    changed = {**ended.content, "select": {**ended.content["select"], "score": "vmr"}}
    result = Sweep(changed).run(resume=True)
    assert result.selected is not None
    assert ended.folder.select().score == "vmr"
    runs = [t.run_id for t in ended.trials if t.configuration == result.selected.configuration]
    values = [ended.folder.result(run_id).scores["vmr"].value for run_id in runs]
    assert result.selected.score == pytest.approx(sum(values) / len(values), rel=1e-9)
    client = open_store(ended.uri).client
    run = client.get_run(str(ended.folder.tracking_run()))
    assert (run.data.params["select.score"], run.data.tags["select.score"]) == ("vmr_exact", "vmr")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "other"),
    [([0, 1], {}), ({"first": 2, "at_most": 3}, {"source": "/elsewhere"})],
    ids=["a list", "models that were trained elsewhere"],
)
def test_runs_that_cannot_be_added_change_nothing(
    tmp_path: Path, seeds: Any, other: dict[str, str]
) -> None:
    """A model that was trained elsewhere has a claim of its own, which is not that of another
    seed."""
    spec = load_spec(small_spec(tmp_path, seeds=seeds))
    plan = Trained(tmp_path / "own").folder.plan()
    trials = [replace(trial, **other) for trial in plan.trials]
    folder = SweepFolder.create(spec, lambda key: plan_of_runs(trials[:-1]))
    before = folder.plan()
    folder.continue_with(spec, plan_of_runs(trials))
    assert folder.plan() == before


def test_the_first_seed_stays(tmp_path: Path) -> None:
    """The untrained model was measured with it."""
    SweepFolder.create(load_spec(small_spec(tmp_path, seeds=[2, 3])), lambda key: plan_of_runs([]))
    with pytest.raises(ValueError, match=r"seeds must hold the 2 in .*spec\.yaml', got 5"):
        SweepFolder.resume(load_spec(small_spec(tmp_path, seeds={"first": 2, "at_most": 5})))


def test_weights_that_changed_before_their_delivery_are_not_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a store was away, and a disk or a hand changed a bit meanwhile."""
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "deliver_missing", lambda *arguments: None)
        trained = Trained(tmp_path / "sweep", space={"points": [[32, 3, 0.01]]})
    whole, damaged = (trial.run_id for trial in trained.trials)
    (weights,) = trained.folder.model(damaged).glob("*.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    trained.ending.listener.deliver_missing(list(trained.trials))
    assert list(find_models(trained.uri, registered_model="small")["run_id"]) == [whole]
    assert (trained.folder.is_finished(whole), trained.folder.has_ended(damaged)) == (True, False)
    delivery = trained.folder.delivery(damaged)
    assert delivery is not None
    assert (delivery.status, delivery.model_uri) == ("failed", None)

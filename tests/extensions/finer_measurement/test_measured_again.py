"""Sweeps whose first pass leaves the decision open: the trained models are measured again with more
controls."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pytest

from raydp import Sweep
from raydp.extensions.finer_measurement.finer_score import FinerScore
from raydp.extensions.later_scores.measurements import WrittenMeasurements
from raydp.extensions.later_scores.models import model_folders
from raydp.plugins.described import Plugin
from raydp.scores.memorisation.logprob import LogProbability
from raydp.scores.score import Measurement
from raydp.spec.reading import load_spec
from raydp.sweep.ending.notes import about
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.json_files import read_json, write_json
from raydp.sweep.store.points import counts, points_table
from raydp.system.interruption import Interrupted
from raydp.tracking import find_models
from tests.builders.specs import SMALL_TASK, small_spec
from tests.extensions.later_scores.measuring import measure
from tests.marks import slow_after
from tests.sweep.test_further_seeds import CLOSE, FIRST_PASS, World
from tests.sweep.trained import Trained

TWINS = {
    "name": "planted",
    "of": SMALL_TASK,
    "copies": {2: 12},
    "twins": True,
    "own_secrets": False,
}
SPEC: dict[str, Any] = {
    "task": TWINS,
    "seeds": {"first": 2, "at_most": 3, "tolerance": 0.0, "max_cost_share": 0.1},
    "scores": [{"name": "logprob"}],
    "select": {"score": "logprob", "min_gain_share": None},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Six runs, all that are planned, as a driver that was killed before it ended the seeds leaves
    them."""
    return Trained(tmp_path_factory.mktemp("again") / "sweep", **SPEC)


class Seeds:
    """A sweep in `World` whose score can be measured more finely."""

    def __init__(self, tmp_path: Path, **seeds: Any) -> None:
        self.world = World(tmp_path, CLOSE, tolerance=0.0, **seeds)
        self.folder = self.world.folder
        # The score of World has no parameter that makes it finer, so another one stands for it
        # under its name.
        own, more = (
            Plugin("vmr_exact", LogProbability()),
            Plugin("vmr_exact", LogProbability(controls_per_pair=5)),
        )
        self.finer = FinerScore(folder=self.folder, own=own, finer=more)

    def run(self) -> list[str]:
        """Finish what a new source gives out until it gives out no more, and return what it gave
        out."""
        source, ran = self.world.source(), []
        source.before = self.finer
        while (run_id := source.next_run()) is not None:
            self.world.finish(run_id)
            ran.append(run_id)
        assert source.finished
        return ran

    def measured(self, values: dict[str, float]) -> None:
        for run_id in self.finer.models():
            steps, _, seed = run_id.partition("-")
            value = 0.0 if run_id == BASE_RUN else values[steps] + 0.02 * (-1) ** int(seed)
            measurement = Measurement(value=value, std_error=0.0, num_samples=1)
            self.finer.measurements.commit(
                run_id, {"status": "finished", "measurement": measurement.document()}
            )
        self.finer.measurements.complete()


def test_a_first_pass_that_leaves_it_open_begins_a_finer_measurement_which_can_decide(
    tmp_path: Path,
) -> None:
    seeds = Seeds(tmp_path)
    assert seeds.run() == FIRST_PASS
    assert seeds.folder.seeds_end() is None, "the seeds have not ended"
    assert set(seeds.finer.models()) == {BASE_RUN, *FIRST_PASS}
    assert seeds.finer.is_open()
    assert seeds.run() == [], "no decision while the measurement is open"
    assert seeds.folder.seeds_end() is None
    assert [
        s.params.controls_per_pair for s in seeds.finer.in_training(with_the_score(seeds)).scores
    ] == [5]
    seeds.measured({"3": 0.9, "4": 0.1, "5": 0.6})
    assert not seeds.finer.is_open()
    assert seeds.run() == []
    end = seeds.folder.seeds_end()
    assert end is not None
    assert end.state == "decided"
    assert (
        "vmr_exact was measured again with controls_per_pair 5 (in the spec: 1)" in end.sentence()
    )


@pytest.mark.parametrize("share", slow_after(1, [0.1, 2.0]))
def test_a_finer_measurement_that_does_not_decide_is_made_once_and_further_seeds_follow(
    tmp_path: Path, share: float
) -> None:
    seeds = Seeds(tmp_path, max_cost_share=share)
    assert seeds.run() == FIRST_PASS
    seeds.measured({"3": 0.9, "4": 0.5, "5": 0.5})
    further = seeds.run()
    end = seeds.folder.seeds_end()
    assert end is not None
    assert end.further_runs == len(further)
    assert bool(further) == (share > 1)
    assert end.state == "budget used up"
    assert end.measured_again is not None


def test_a_resume_waits_for_runs_in_progress_before_it_measures(tmp_path: Path) -> None:
    """A version without finer measurements may have begun further runs."""
    seeds = Seeds(tmp_path)
    for run_id in FIRST_PASS:
        seeds.world.finish(run_id)
    seeds.folder.trial("4-2").mkdir()
    source = seeds.world.source()
    source.before = seeds.finer
    assert [source.next_run(), source.next_run()] == ["4-2", None]
    assert (source.finished, seeds.finer.is_begun()) == (False, False)
    seeds.world.finish("4-2")
    assert source.next_run() is None
    assert source.finished
    assert set(seeds.finer.models()) == {BASE_RUN, *FIRST_PASS, "4-2"}


def test_a_first_pass_that_decides_measures_nothing_again(tmp_path: Path) -> None:
    seeds = Seeds(tmp_path)
    seeds.world.scores = {3: 0.9, 4: 0.1, 5: 0.6}
    seeds.run()
    end = seeds.folder.seeds_end()
    assert end is not None
    assert (end.state, end.measured_again, seeds.finer.is_begun()) == ("decided", None, False)
    assert seeds.finer.in_training(seeds.world.spec) is seeds.world.spec


def with_the_score(seeds: Seeds) -> Any:
    return seeds.world.spec.model_copy(update={"scores": (seeds.finer.own,)})


@pytest.mark.daily
def test_a_driver_measures_again_an_interrupted_one_resumes_and_everything_has_the_new_values(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, before = trained.folder, points_table(trained.folder).set_index("run_id")
    other = measure(trained, names="logprob", params=["controls_per_pair=5"], label="other")
    assert other["scores"]["other"]["measured"] == 7
    expected = points_table(folder).set_index("run_id")["score.other"].dropna()

    monkeypatch.setattr(
        "raydp.sweep.driver.train", lambda *_, **__: pytest.fail("nothing is left to train")
    )
    committed: list[str] = []
    commit = WrittenMeasurements.commit

    def interrupted(self: WrittenMeasurements, name: str, result: dict[str, object]) -> None:
        if len(committed) == 2:
            raise KeyboardInterrupt
        committed.append(name)
        commit(self, name, result)

    with monkeypatch.context() as patch:
        patch.setattr(WrittenMeasurements, "commit", interrupted)
        with pytest.raises(Interrupted):
            Sweep(trained.content).run(resume=True)
    assert folder.seeds_end() is None
    assert (
        points_table(folder).set_index("run_id")["score.logprob"].equals(before["score.logprob"])
    ), "no mixture"
    note = counts(folder).note
    assert note is not None
    assert note.startswith("trained models are measured again with logprob")
    spared = {
        path: path.stat().st_mtime_ns
        for path in (folder.path / "scores" / "logprob").glob("*.json")
    }
    assert len(spared) == 3, "two results and what is measured"

    result = Sweep(trained.content).run(resume=True)
    assert not result.interrupted
    assert result.selected is not None
    del spared[folder.path / "scores" / "logprob" / "measurement.json"]
    assert all(path.stat().st_mtime_ns == written for path, written in spared.items())
    points = points_table(folder).set_index("run_id")
    measured = points["score.logprob"].dropna()
    assert measured.to_dict() == pytest.approx(expected.to_dict(), abs=1e-5)
    assert (points["score"].dropna() == measured).all()
    ended = before["score.logprob.std_error"].notna()
    assert (
        points.loc[ended, "score.logprob.std_error"].mean()
        < before.loc[ended, "score.logprob.std_error"].mean()
    )
    end = SweepFolder.open(folder.path).seeds_end()
    assert end is not None
    assert end.measured_again is not None
    assert end.measured_again in html.unescape(
        (folder.path / "report.html").read_text(encoding="utf-8")
    )
    curves = {curve.score for curve in about(folder)["curves"]}
    assert curves == set(measured), "as in the table"
    found = find_models(trained.uri, registered_model="small", score="logprob").set_index("run_id")
    assert found["score"].to_dict() == pytest.approx(measured.to_dict())
    latest = (
        trained.metrics().query("metric_name == 'score'").groupby("model_id")["metric_value"].last()
    )
    assert sorted(latest) == pytest.approx(sorted(measured))

    # What is measured is lost, or is damaged.
    written = folder.path / "scores" / "logprob" / "measurement.json"
    content = read_json(written)
    for wrong in (
        {**content, "score": ["logprob"]},
        {**content, "score": {**content["score"], "bogus": 3}},
        {**content, "score": {**content["score"], "controls_per_pair": 9}},
    ):
        write_json(written, wrong)
        with pytest.raises(ValueError, match="SWEEP must have") as error:
            Sweep(trained.content).run(resume=True)
        assert "logprob" in str(error.value)
        assert "\n" not in str(error.value)
    written.unlink()
    assert Sweep(trained.content).run(resume=True).selected is not None
    again = points_table(folder).set_index("run_id")["score.logprob"].dropna()
    assert again.to_dict() == measured.to_dict(), "measured anew"


@pytest.mark.daily
def test_an_open_measurement_that_raydp_score_ends_is_logged_by_the_sweep(tmp_path: Path) -> None:
    trained = Trained(tmp_path / "sweep", **SPEC)
    before = points_table(trained.folder)
    task, _ = build_task(trained.spec)
    finer = FinerScore.of(trained.spec, trained.folder, task)
    assert finer is not None
    finer.begin()
    answer = measure(trained, names="logprob", params=["controls_per_pair=5"])
    assert answer["scores"]["logprob"]["measured"] == 7
    assert (
        answer["note"] == "the sweep measures its models again: resume it, and the new values count"
    )
    assert points_table(trained.folder).equals(before)
    assert (trained.metrics()["metric_name"] == "score.logprob").sum() == 6
    assert Sweep(trained.content).run(resume=True).selected is not None
    assert (trained.metrics()["metric_name"] == "score.logprob").sum() == 12
    assert not finer.is_open()


@pytest.mark.daily
def test_a_model_that_is_gone_keeps_its_value_and_the_sweep_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trained = Trained(tmp_path / "sweep", **SPEC)
    lost = trained.trials[0].run_id
    before = points_table(trained.folder).set_index("run_id")["score.logprob"]

    def without_one(*args: Any) -> Any:
        folders, missing = model_folders(*args)
        del folders[lost]
        return folders, {**missing, lost: "the model is gone"}

    with monkeypatch.context() as patch:
        patch.setattr("raydp.extensions.later_scores.measurement.model_folders", without_one)
        result = Sweep(trained.content).run(resume=True)
    assert not result.interrupted
    assert "1 of 7 models keep the value of their training: the model is gone" in caplog.text
    points = points_table(trained.folder).set_index("run_id")["score.logprob"]
    assert points[lost] == before[lost]
    assert (points.drop(lost).dropna() != before.drop(lost).dropna()).all()
    end = trained.folder.seeds_end()
    assert end is not None
    assert (
        "1 of the models could not be measured, and keep the value of their training"
        in end.sentence()
    )
    assert Sweep(trained.content).run(resume=True).selected is not None
    assert (
        points_table(trained.folder).set_index("run_id")["score.logprob"][lost] != before[lost]
    ), "tried again"
    end = trained.folder.seeds_end()
    assert end is not None
    assert "could not be measured" not in end.sentence()
    with pytest.raises(
        ValueError, match="label must be new for another measurement, got 'logprob'"
    ):
        measure(trained, names="logprob")


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": [0, 1]},
        {"scores": [{"name": "logprob", "controls_per_pair": 5}]},
        {"scores": [{"name": "exposure"}, {"name": "logprob"}], "select": {"score": "exposure"}},
        {"task": {**TWINS, "twins": False}, "scores": [{"name": "logprob", "contrast": False}]},
        {"cluster": {"exchange": "s3://bucket/raydp"}},
    ],
    ids=[
        "a list of seeds",
        "as fine as it gets",
        "another score",
        "no twins",
        "no node sees the models",
    ],
)
def test_other_sweeps_have_nothing_finer(tmp_path: Path, changes: dict[str, Any]) -> None:
    spec = load_spec(small_spec(tmp_path, **{**SPEC, **changes}))
    assert FinerScore.of(spec, SweepFolder(path=tmp_path), build_task(spec)[0]) is None

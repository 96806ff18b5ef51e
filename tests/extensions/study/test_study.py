"""A study from its file to its table: planned, run, resumed, extended, and with a sweep that fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from raydp import Sweep, find_models
from raydp.extensions.study import run
from raydp.extensions.study.document import Cell, Study
from raydp.search_spaces.settings import Settings
from raydp.sweep.api import planned
from raydp.sweep.ending import finish
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.store.folder import SweepFolder
from raydp.training.trial_plan import TrialPlan
from tests.builders.specs import small_spec
from tests.conftest import Answer
from tests.sweep.without_ray import train_without_ray

Raydp = Callable[..., Answer]
pytestmark = pytest.mark.slow
TWO = {"privacy.target_epsilon": [1, 8]}


def written(folder: Path, axes: Any, **changes: Any) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**small_spec(folder, **changes), "axes": axes}))
    return path


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study of two ε that has ended."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        train_without_ray(patch)
        from raydp.extensions.study.points import write_study_tables
        from raydp.system.output import stderr

        study = Study.read(written(folder, TWO))
        ends = run.run_study(study, resume=False, console=stderr)
        assert [end.state for end in ends] == ["finished", "finished"]
        write_study_tables(study)
    return folder


def test_a_dry_run_costs_every_sweep_and_writes_nothing(raydp: Raydp, tmp_path: Path) -> None:
    answer = raydp("study", written(tmp_path, TWO), "--dry-run", "--json")
    assert answer.code == 0, answer.err
    rows = json.loads(answer.out)
    assert [row["privacy.target_epsilon"] for row in rows] == [1, 8]
    assert rows[0]["smallest σ"] > rows[1]["largest σ"]
    assert all(row["largest ε"] <= row["privacy.target_epsilon"] for row in rows)
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_tells_how_long_all_sweeps_take_on_one_queue(
    raydp: Raydp, tmp_path: Path
) -> None:
    hardware = "nodes=2,seconds_per_example=1,trial_seconds=0,driver_seconds=0"
    study = written(tmp_path, TWO, cluster={})
    answer = raydp("study", study, "--dry-run", "--simulate", hardware, "--json")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)["simulation"]
    computes = sorted(
        [t.batch_size * t.num_steps for c in Study.read(study).cells for t in plan_of(c)]
    )
    assert told["runs"] == len(computes) == 4
    assert told["total_seconds"] == sum(computes)
    assert told["orders"]["largest_first"]["makespan_seconds"] == computes[-1] + computes[0]
    assert raydp("study", study, "--simulate", hardware).code == 2


def plan_of(cell: Cell) -> tuple[TrialPlan, ...]:
    return planned(cell.spec)[0].first_pass


def test_runs_of_all_sweeps_are_trained_by_their_compute(
    raydp: Raydp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run is the largest one of either sweep, and sweeps on equal data share one
    measurement of the untrained model."""
    train_without_ray(monkeypatch)
    measured, trained = list[object](), list[TrialPlan]()
    base, run_one = TrialRunner.measure_base, TrialRunner.run

    def measure_base(self: TrialRunner, seed: int) -> Any:
        measured.append(self)
        return base(self, seed)

    def train(self: TrialRunner, plan: TrialPlan, *args: Any, **options: Any) -> Any:
        trained.append(plan)
        return run_one(self, plan, *args, **options)

    monkeypatch.setattr(TrialRunner, "measure_base", measure_base)
    monkeypatch.setattr(TrialRunner, "run", train)
    assert raydp("study", written(tmp_path, TWO), "--json").code == 0
    assert len(measured) == 1
    computes = [plan.batch_size * plan.num_steps for plan in trained]
    assert computes == sorted(computes, reverse=True)
    assert len(computes) == 4
    assert len({plan.noise_multiplier for plan in trained[:2]}) == 2, (
        "one run of each ε comes first"
    )


def test_study_of_one_sweep_ends_without_a_comparison(
    raydp: Raydp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be resumed with further values of the axis, as any study."""
    train_without_ray(monkeypatch)
    answer = raydp("study", written(tmp_path, {"privacy.target_epsilon": [8]}), "--json")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    assert [cell["state"] for cell in told["cells"]] == ["finished"]
    assert "comparison" not in told
    assert len(pd.read_csv(told["points"])) == 2


def test_each_cell_is_a_sweep_and_all_points_are_in_one_table(done: Path) -> None:
    folder = done / "runs/small"
    sweeps = [Sweep.open(folder / f"target_epsilon-{e}") for e in (1, 8)]
    assert len({sweep.folder.plan().sweep_id for sweep in sweeps}) == 2
    points = pd.read_csv(folder / "points.csv", keep_default_na=False)
    assert list(points["privacy.target_epsilon"]) == [1, 1, 8, 8]
    for sweep, (_, own) in zip(sweeps, points.groupby("privacy.target_epsilon"), strict=True):
        assert list(own["run_id"]) == list(sweep.points()["run_id"])
        assert set(own["cell"]) == {sweep.spec.name}
        settings = {Settings.parse(text)["privacy.target_epsilon"] for text in own["settings"]}
        assert settings == {sweep.spec.privacy.target_epsilon}
    models = find_models(small_spec(done)["tracking"]["uri"])
    assert len(set(models["model_uri"].str.split("/").str[1])) == 2


def test_the_table_is_selected_from_as_any_other(raydp: Raydp, done: Path) -> None:
    points = done / "runs/small/points.csv"
    answer = raydp("select", points, "--at-most", "epsilon=1", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["settings"] == {"privacy.target_epsilon": 1}
    answer = raydp("analyze", "epsilon", points, "--max-leak", "0.1")
    assert answer.code == 2
    assert "POINTS must tell the errors of the scores, got a table where no" in answer.err


def test_a_study_goes_on_with_one_more_epsilon_and_repeats_nothing(
    raydp: Raydp, done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_without_ray(monkeypatch)
    folder = done / "runs/small"
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/trials/*/result.json")}
    study = written(done, {"privacy.target_epsilon": [1, 8, 2]})
    answer = raydp("study", study)
    assert answer.code == 2
    assert "STUDY small was started before. Add --resume" in answer.err
    answer = raydp("study", study, "--resume", "--json")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    assert sorted(cell["privacy.target_epsilon"] for cell in told["cells"]) == [1, 2, 8]
    assert {cell["state"] for cell in told["cells"]} == {"finished"}
    (joint,) = told["joint"].values()
    assert joint["models"] == 6
    assert joint["sweeps"] == [f"target_epsilon-{epsilon}" for epsilon in (1, 8, 2)]
    assert joint["epsilon"] > 8
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert len(pd.read_csv(folder / "points.csv")) == 6
    page = Path(told["comparison"]).read_text()
    assert all(f"target_epsilon-{epsilon}" in page for epsilon in (1, 2, 8))


def test_a_sweep_that_fails_does_not_end_the_study_and_is_run_again(
    raydp: Raydp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_without_ray(monkeypatch)
    broken = ["target_epsilon-8"]
    own = finish.finish

    def fail_once(recorder: Any) -> Any:
        if recorder.context.spec.name in broken:
            broken.clear()
            raise RuntimeError("no more memory")
        return own(recorder)

    monkeypatch.setattr(finish, "finish", fail_once)
    study = written(tmp_path, TWO)
    answer = raydp("study", study, "--json")
    assert answer.code == 1
    cells = {c["privacy.target_epsilon"]: c for c in json.loads(answer.out)["cells"]}
    assert {epsilon: c["state"] for epsilon, c in cells.items()} == {8: "failed", 1: "finished"}
    assert cells[8]["reason"] == "no more memory"
    assert "the sweep target_epsilon = 8 has failed: no more memory" in answer.err
    answer = raydp("study", study, "--resume", "--json")
    assert answer.code == 0, answer.err
    assert {cell["state"] for cell in json.loads(answer.out)["cells"]} == {"finished"}


def test_an_interruption_names_the_command_that_goes_on(
    raydp: Raydp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_without_ray(monkeypatch)
    own = finish.finish

    def interrupted(recorder: Any) -> Any:
        if recorder.context.spec.name == "target_epsilon-8":
            raise KeyboardInterrupt
        return own(recorder)

    monkeypatch.setattr(finish, "finish", interrupted)
    study = written(tmp_path, {"privacy.target_epsilon": [1, 8]})
    answer = raydp("study", study)
    assert answer.code != 0
    assert f"study {study} --resume" in answer.err
    monkeypatch.undo()
    train_without_ray(monkeypatch)
    assert raydp("study", study, "--resume", "--json").code == 0


def test_a_cell_that_cannot_run_is_named_before_any_training(raydp: Raydp, tmp_path: Path) -> None:
    axes = {"privacy.target_delta": [1e-5, 0.9]}
    privacy = {"target_epsilon": 8, "accountant": "rdp", "noise_key": "test"}
    answer = raydp("study", written(tmp_path, axes, privacy=privacy))
    assert answer.code == 2
    assert "target_delta-0.9: target_delta must be <" in answer.err
    assert not list(tmp_path.glob("runs/small/*")), "nothing was begun"
    assert not SweepFolder.is_at(tmp_path / "runs/small")

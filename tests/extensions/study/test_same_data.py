"""Studies whose sweeps share their records, places and files: what is added up, and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from raydp import Sweep
from raydp.extensions.study.document import Study
from raydp.extensions.study.points import folder_of
from raydp.privacy import composed, stated
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.store.results import RunResult
from raydp.training.trial_plan import TrialPlan
from tests.builders.specs import SMALL_TASK, small_spec
from tests.conftest import Answer
from tests.sweep.without_ray import train_without_ray

Raydp = Callable[..., Answer]
ONE_RUN = {"batch_size": [32], "num_steps": [2], "learning_rate": [0.01]}


def written(folder: Path, axes: Any, **changes: Any) -> Path:
    path = folder / "study.yaml"
    content = small_spec(folder, space=ONE_RUN)
    path.write_text(yaml.safe_dump({**content, "axes": axes, **changes}))
    return path


def joint_of(answer: Answer) -> dict[str, Any]:
    assert answer.code == 0, answer.err
    (joint,) = json.loads(answer.out)["joint"].values()
    return dict(joint)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ".."}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": None}, "name"),
        ({"name": ["a"]}, "name"),
        ({"name": ""}, "name"),
        ({"storage": None}, "storage"),
        ({"storage": ["x"]}, "storage"),
        ({"tracking": "x"}, "tracking"),
        ({"tracking": {"experiment": 5}}, "tracking.experiment"),
        ({"tracking": {"registered_model": None}}, "tracking.registered_model"),
    ],
)
def test_a_studys_own_name_and_places_are_those_of_a_sweep(
    tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValueError, match=rf"^{field}|\n{field}|  {field}"):
        Study.read(written(tmp_path, {"privacy.target_epsilon": [1, 8]}, **changes))


@pytest.mark.parametrize(
    ("axes", "changes", "message"),
    [
        ({"privacy.target_epsilon": ["2", "8"]}, {}, "must be a list of numbers, got"),
        ({"privacy.target_epsilon": [True, 8]}, {}, "must be a list of numbers, got"),
        ({"task.": [1]}, {}, "axes: the axis 'task.' is unknown"),
        ({"task..num_examples": [1]}, {}, "axes: the axis 'task..num_examples' is unknown"),
        (
            {"privacy.noise_multiplier": [1.0, 2.0]},
            {"limits": {"max_leak": 0.1}},
            "limits must be left out without axes.privacy.target_epsilon, got max_leak 0.1",
        ),
    ],
)
def test_axes_and_limits_without_a_meaning_are_refused(
    tmp_path: Path, axes: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Study.read(written(tmp_path, axes, **changes))


@pytest.mark.slow
def test_a_study_does_not_take_the_folder_of_a_sweep(
    raydp: Raydp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_without_ray(monkeypatch)
    Sweep(small_spec(tmp_path, space=ONE_RUN)).run()
    points = (tmp_path / "runs/small/points.csv").read_bytes()
    study = written(tmp_path, {"privacy.target_epsilon": [1, 8]})
    for options in ((), ("--resume",), ("--dry-run",)):
        answer = raydp("study", study, *options)
        assert answer.code == 2
        assert "name must be that of no sweep in storage" in answer.err
    assert (tmp_path / "runs/small/points.csv").read_bytes() == points


@pytest.mark.slow
def test_all_models_on_the_same_records_are_added_up(
    raydp: Raydp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sweeps with other held-out records, and of an ε that the study no longer has."""
    train_without_ray(monkeypatch)
    axes = {"task.num_heldout": [50, 60], "privacy.target_epsilon": [1, 8]}
    study = written(tmp_path, axes)
    joint = joint_of(raydp("study", study, "--json"))
    cells = Study.read(study).cells
    assert len({folder_of(cell).plan().facts.content_hash for cell in cells}) == 2
    plans = [folder_of(cell).plan() for cell in cells]
    events = [record.mechanism.event for plan in plans for record in plan.privacy.values()]
    expected = composed(events, max(plan.delta for plan in plans), "rdp")["epsilon"]
    assert (joint["models"], joint["epsilon"]) == (4, pytest.approx(expected))
    # Fewer values give no budget back.
    written(tmp_path, {**axes, "privacy.target_epsilon": [1]})
    answer = raydp("study", study, "--resume", "--json")
    assert joint_of(answer) == {**joint, "sweeps": joint_of(answer)["sweeps"]}
    assert sorted(joint_of(answer)["sweeps"]) == sorted(joint["sweeps"])
    assert f"ε ≤ {stated(joint['epsilon'])} (δ " in raydp("study", study, "--resume").out
    # A sweep's command names the sweeps of a study's folder.
    answer = raydp("select", tmp_path / "runs/small")
    assert "which holds several, as a study does: " in answer.err


@pytest.mark.slow
def test_data_that_were_changed_between_sweeps_are_refused(
    raydp: Raydp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_without_ray(monkeypatch)
    rows = tmp_path / "rows.jsonl"
    lines = [
        json.dumps({"text": f"row {k} of a file that has {k % 7} words more"}) for k in range(260)
    ]
    rows.write_text("\n".join(lines))
    task = {"name": "text", "path": str(rows), "max_length": 16}
    changes = {"task": task, "scores": [{"name": "mia"}], "select": {"score": "mia"}}
    study = written(tmp_path, {"privacy.target_epsilon": [1, 8]}, **changes)
    assert raydp("study", study).code == 0
    rows.write_text("\n".join(lines[:200]))
    written(tmp_path, {"privacy.target_epsilon": [1, 8, 4]}, **changes)
    answer = raydp("study", study, "--resume")
    assert answer.code == 2
    assert "STUDY must have equal data in all sweeps of a task" in answer.err
    assert not (tmp_path / "runs/small/target_epsilon-4").exists()


@pytest.mark.slow
def test_a_sweep_without_a_finished_run_has_failed(
    raydp: Raydp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_without_ray(monkeypatch)
    own = TrialRunner.run

    def broken(self: TrialRunner, plan: TrialPlan, *args: Any, **options: Any) -> Any:
        if self._spec.privacy.target_epsilon == 8:
            return RunResult(run_id=plan.run_id, status="failed", reason="the loss is not finite")
        return own(self, plan, *args, **options)

    monkeypatch.setattr(TrialRunner, "run", broken)
    answer = raydp("study", written(tmp_path, {"privacy.target_epsilon": [1, 8]}), "--json")
    assert answer.code == 1
    cells = {c["privacy.target_epsilon"]: c for c in json.loads(answer.out)["cells"]}
    assert {epsilon: cell["state"] for epsilon, cell in cells.items()} == {
        1: "finished",
        8: "failed",
    }
    assert cells[8]["reason"] == "no run has finished"


def test_a_page_takes_the_place_of_no_file_and_limits_are_numbers(
    raydp: Raydp, tmp_path: Path
) -> None:
    (tmp_path / "points.csv").write_text("text")
    answer = raydp("analyze", "epsilon", "points.csv", "--max-leak", 0.1, "-o", "points.csv")
    assert answer.code == 2
    assert "--output must be a new file, got 'points.csv'" in answer.err
    assert (tmp_path / "points.csv").read_text() == "text"
    for value in ("nan", "inf"):
        answer = raydp("analyze", "epsilon", "points.csv", "--max-leak", value)
        assert f"--max-leak must be finite, got {value}" in answer.err


@pytest.mark.parametrize("epsilon", ["NaN", "Infinity", "0", "-16"])
def test_an_epsilon_that_is_none_is_refused(raydp: Raydp, tmp_path: Path, epsilon: str) -> None:
    rows = [
        {
            "batch_size": 32, "num_steps": steps, "learning_rate": 0.01, "seed": seed, "utility_loss": 1.0,
            "score": 0.1 + 0.01 * seed, "settings": f'{{"privacy.target_epsilon": {value}}}',
        }
        for steps in (2, 4) for seed in (0, 1) for value in ("8", epsilon)
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(tmp_path / "points.csv", index=False)
    answer = raydp("analyze", "epsilon", "points.csv", "--max-leak", 0.2)
    assert answer.code == 2
    assert "privacy.target_epsilon" in answer.err
    assert "must" in answer.err


def test_a_limit_asked_of_one_seed_is_warned_of(raydp: Raydp, tmp_path: Path) -> None:
    axes, limits = {"privacy.target_epsilon": [1, 8]}, {"max_leak": 0.1}
    answer = raydp("study", written(tmp_path, axes, limits=limits, task=SMALL_TASK), "--dry-run")
    assert answer.code == 0, answer.err
    assert "warning: limits.max_leak is asked of configurations with one seed" in answer.out

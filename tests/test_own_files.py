"""Plug-ins in a file of the user's: named by `file.py:Class`, or given as objects in Python."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from raydp import Sweep, select
from raydp.methods.dp import DPAdam
from raydp.spec.reading import draft_spec, load_spec
from raydp.sweep.store.folder import SweepFolder
from tests.builders.specs import small_spec
from tests.conftest import Answer

CODE = """
from pathlib import Path
import torch
from raydp.analysis.selection.rules import Extreme, RuleStep
from raydp.methods.dp import DPSGD
from raydp.scores.score import Measurement, OneByOne

Path(__file__).with_name("ran").touch()


class Constant(OneByOne):
    "A score that measures nothing."

    value: float = 0.5

    def check(self, task):
        pass

    def measure(self, model, task, *, seed):
        ids = [secret.name for secret in task.secrets()]
        return Measurement.over_secrets([self.value] * len(ids), ids=ids)

    def expected_bounds(self):
        return 0.0, 1.0


class Adagrad(DPSGD):
    "DP-SGD whose noisy gradients are applied by Adagrad."

    def optimizer(self, plan, parameters):
        return torch.optim.Adagrad(parameters, lr=plan.learning_rate)


class Plain:
    pass


class dp_sgd(DPSGD):
    pass


def safest(layout, pool):
    "Keep the lowest sum of loss and score."
    total = layout.utility_loss + layout.score
    return pool & (total == total[pool].min())


def of_points(points):
    return points


oracle, TEXT = safest, "procedure"
STEPS = (RuleStep(name="low", text="keep the lowest score", keep=Extreme("score", "lowest")),)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with plug-ins, which leaves a mark beside it when it runs."""
    path = tmp_path / "code" / "own_plug_ins.py"
    path.parent.mkdir()
    path.write_text(CODE)
    return path


@pytest.fixture
def module(file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The file as a module that a user imports."""
    monkeypatch.syspath_prepend(str(file.parent))
    yield importlib.import_module(file.stem)
    del sys.modules[file.stem]


def spec_with(tmp_path: Path, file: Path | str, **changes: Any) -> dict[str, Any]:
    """A spec whose score and method are in a file."""
    return (
        small_spec(
            tmp_path,
            scores=[{"name": f"{file}:Constant", "value": 0.25}],
            method={"name": f"{file}:Adagrad", "max_grad_norm": 0.3},
            select={"score": "Constant", "rule": f"{file}:safest"},
        )
        | changes
    )


def test_a_plug_in_of_a_file_has_the_name_of_its_class(tmp_path: Path, file: Path) -> None:
    spec = load_spec(spec_with(tmp_path, file))
    assert [score.name for score in spec.scores] == ["Constant"]
    assert spec.scores[0].params.value == 0.25
    assert (spec.method.name, spec.method.params.max_grad_norm) == ("Adagrad", 0.3)


def test_a_relative_path_is_stored_as_the_absolute_one(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    spec = load_spec(spec_with(tmp_path, file.name))
    assert spec.model_dump(mode="json")["method"]["name"] == f"{file}:Adagrad"
    assert (spec.select.rule, spec.select.rule_name) == (f"{file}:safest", "safest")
    monkeypatch.chdir(tmp_path)
    assert load_spec(spec.model_dump(mode="json")) == spec


def test_objects_stand_for_their_files_and_registered_names(
    tmp_path: Path, file: Path, module: Any
) -> None:
    scores, method = [module.Constant(value=0.25)], module.Adagrad(max_grad_norm=0.3)
    named = load_spec(spec_with(tmp_path, file))
    select = {"score": "Constant", "rule": module.safest}
    given = load_spec(spec_with(tmp_path, file, scores=scores, method=method, select=select))
    assert given.model_dump(mode="json") == named.model_dump(mode="json")
    assert load_spec(spec_with(tmp_path, file, method=DPAdam())).method.name == "dp_adam"


def test_an_object_whose_class_workers_cannot_import_is_refused(
    tmp_path: Path, file: Path, module: Any
) -> None:
    class Local(module.Constant):  # type: ignore[misc, name-defined]
        pass

    with pytest.raises(ValueError, match=r"scores\[0\] must be an object of a class that workers"):
        load_spec(spec_with(tmp_path, file, scores=[Local()]))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{folder}/absent.py:Constant", "must be in a file that exists, got"),
        ("{file}:Absent", "must be defined in .*, got 'Absent', which is not"),
        ("{file}:Plain", "must name a class with the fields of a plug-in and the function"),
        ("{file}:Constant", "must name a class with .* 'train', got 'Constant'"),
        ("{file}:dp_sgd", "must name a class whose name no registered plug-in has, got 'dp_sgd'"),
        ("{file}", "method.name .* is unknown"),
    ],
)
def test_a_wrong_name_is_refused(tmp_path: Path, file: Path, name: str, message: str) -> None:
    method = {"name": name.format(file=file, folder=file.parent)}
    with pytest.raises(ValueError, match=message):
        load_spec(spec_with(tmp_path, file, method=method))


def test_a_wrong_parameter_is_named(tmp_path: Path, file: Path) -> None:
    method = {"name": f"{file}:Adagrad", "max_grad_nrom": 1}
    with pytest.raises(
        ValueError, match=r"'max_grad_nrom' is unknown. Did you mean 'max_grad_norm'"
    ):
        load_spec(spec_with(tmp_path, file, method=method))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("{folder}/absent.py:safest", "select.rule must be in a file that exists, got"),
        ("{file}:Absent", "select.rule must be defined in .*, got 'Absent', which is not"),
        ("{file}:Plain", r"select.rule must be a name, a function of \(layout, pool\) .*'Plain'"),
        ("{file}:of_points", r"select.rule must be .* \(layout, pool\) .*, got 'of_points'"),
        ("{file}:TEXT", "select.rule must be .*, got 'TEXT', which is none of them"),
        ("{file}:oracle", "select.rule must have a name that no registered rule has, got 'oracle'"),
        ("{file}", "select.rule .* is unknown"),
        (3, "select.rule must be a valid string, got 3"),
        (
            lambda layout, pool: pool,
            "select.rule must be a function that later commands can import",
        ),
        ((), "select.rule must be a name, .* or a tuple of RuleStep"),
    ],
)
def test_a_wrong_rule_is_refused(tmp_path: Path, file: Path, rule: object, message: str) -> None:
    given = rule.format(file=file, folder=file.parent) if isinstance(rule, str) else rule
    with pytest.raises(ValueError, match=message) as refused:
        load_spec(spec_with(tmp_path, file, select={"score": "Constant", "rule": given}))
    assert str(refused.value).count("select.rule") == 1, "one mistake is told once"


def test_adaptive_seeds_and_a_sweep_without_scores_refuse_a_rule_of_a_file(
    tmp_path: Path, file: Path
) -> None:
    select = {"rule": f"{file}:safest", "score": "vmr_exact"}
    with pytest.raises(ValueError, match=r"seeds must be a list with select.rule"):
        load_spec(small_spec(tmp_path, select=select, seeds={"first": 2, "at_most": 4}))
    with pytest.raises(ValueError, match=r"select.rule must need no score if scores is empty"):
        load_spec(small_spec(tmp_path, scores=[], select={"rule": f"{file}:safest"}))


def test_a_table_is_selected_from_by_a_rule_of_a_file(
    tmp_path: Path, file: Path, module: Any, raydp: Callable[..., Answer]
) -> None:
    rows = [(b, 1, 0.1, 0, b / 8, 1 / b) for b in (1, 2, 4, 8)]
    columns = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
    table = tmp_path / "points.csv"
    pd.DataFrame(rows, columns=columns).to_csv(table, index=False)
    for named in (f"{file}:safest", os.path.relpath(f"{file}:safest", tmp_path)):
        chosen = raydp("select", table, "--rule", named, "--json").json()
        assert (chosen["rule"], chosen["batch_size"]) == ("safest", 2)
    for rule in (module.safest, f"{file}:safest"):
        assert select(table, rule=rule).to_dict() == chosen
    assert select(pd.read_csv(table), rule=f"{file}:STEPS").rule == "STEPS"
    assert raydp("report", table, "--rule", f"{file}:safest").code == 0
    assert "Steps of the rule safest" in (tmp_path / "report.html").read_text(encoding="utf-8")
    for command in (("select", table), ("report", table, "--force")):
        failed = raydp(*command, "--rule", f"{file}:of_points")
        assert failed.code == 2
        assert "must be a name, a function of (layout, pool)" in failed.err


def test_a_draft_runs_no_code(tmp_path: Path, file: Path) -> None:
    draft_spec(spec_with(tmp_path, file))
    assert not file.with_name("ran").exists()
    load_spec(spec_with(tmp_path, file))
    assert file.with_name("ran").exists()


def test_a_stored_spec_runs_only_files_that_its_reader_has_named(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep's folder may be somebody else's; `of` names a task inside another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache of somebody else"))
    folder = SweepFolder(path=tmp_path / "copied")
    folder.path.mkdir()
    for section in (
        {"method": {"name": f"{file}:Adagrad"}},
        {"task": {"name": "planted", "of": {"name": f"{file}:Plain"}}},
        {"select": {"score": "vmr_exact", "rule": f"{file}:safest"}},
        {"scores": [{"name": f"{file}:Constant"}], "select": {"score": "Constant"}},
    ):
        folder.spec_file.write_text(yaml.safe_dump(small_spec(tmp_path, **section)))
        with pytest.raises(ValueError, match="must be in a file that you have named yourself"):
            folder.spec()
        assert not file.with_name("ran").exists()
    draft_spec(folder.spec_file)
    assert folder.spec().scores[0].name == "Constant"


@pytest.mark.slow
@pytest.mark.parametrize("moved", [False, True])
def test_another_process_finds_the_class_by_its_path_or_in_its_working_directory(
    tmp_path: Path, file: Path, moved: bool
) -> None:
    spec = load_spec(spec_with(tmp_path, file))
    pickled = pickle.dumps(spec.method)
    node = tmp_path / "node"
    node.mkdir()
    if moved:
        file.parent.rename(node / "code")
    other = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).params.max_grad_norm)"
    done = subprocess.run(
        [sys.executable, "-c", other],
        input=pickled,
        stdout=subprocess.PIPE,
        cwd=node,
        check=True,
    )
    assert done.stdout == b"0.3\n"


@pytest.mark.daily("raydp/plugins")
def test_a_sweep_trains_and_scores_by_a_file(
    tmp_path: Path, file: Path, raydp: Callable[..., Answer]
) -> None:
    result = Sweep(spec_with(tmp_path, file)).run()
    assert result.counts.finished == result.counts.runs
    (folder,) = (tmp_path / "runs").iterdir()
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert (result.selected.rule, summary["selected"]["rule"]) == ("safest", "safest")
    assert Sweep.open(folder).select().rule == "safest"
    points = raydp("points", folder, "--json").json()
    assert {point["score"] for point in points} == {0.25}
    assert raydp("report", folder, "-o", "again.html").code == 0
    scored = raydp("score", folder, "--score", f"{file}:Constant", "--label", "again", "--json")
    assert scored.json()["scores"]["again"]["mean"] == 0.5

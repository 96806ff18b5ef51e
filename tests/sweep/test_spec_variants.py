"""Variants of one spec: checked together, run one after another, compared; run again, nothing is trained twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from raydp.sweep.variants import MOST_VARIANTS, values_of, variants_of
from tests.builders.specs import small_spec
from tests.conftest import Answer
from tests.sweep.trained import TrainedSpec


def test_each_combination_is_a_spec_of_its_own(tmp_path: Path) -> None:
    base = small_spec(tmp_path)
    vary = values_of(["method.max_grad_norm=0.1,1.5", "model.adapter.r=2,4", "cluster.checkpoint_seconds=7"])
    found = variants_of(base, vary)
    names = [(c, r) for c in ("0.1", "1.5") for r in (2, 4)]
    assert [v.spec.name for v in found] == [
        f"small-max_grad_norm-{c}-r-{r}-checkpoint_seconds-7" for c, r in names
    ]  # the first field moves slowest
    assert [(str(v.spec.method.params.max_grad_norm), v.spec.model.adapter.r) for v in found] == names
    assert {v.spec.cluster.checkpoint_seconds for v in found} == {7}
    assert [v.spec.tracking.registered_model for v in found] == [v.spec.name for v in found]
    assert found[1].values == {"method.max_grad_norm": 0.1, "model.adapter.r": 4, "cluster.checkpoint_seconds": 7}
    assert base == small_spec(tmp_path)


def test_a_whole_section_varies_what_belongs_together(tmp_path: Path) -> None:
    given = values_of(
        ["method={name: dp_sgd, max_grad_norm: 1},{name: dp_adam, max_grad_norm: 0.5, weight_decay: 0.1}"]
    )
    found = variants_of(small_spec(tmp_path), given)
    assert [(v.spec.name, v.spec.method.name) for v in found] == [
        ("small-method-1", "dp_sgd"),
        ("small-method-2", "dp_adam"),
    ]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("seeds=[0],[1]", ["seeds-1", "seeds-2"]),
        ("model.name=é,ü", ["name-1", "name-2"]),
        ("model.name=a b,a-b", ["name-1", "name-2"]),
        ("model.name=A,a", ["name-1", "name-2"]),
        ("privacy.delta_exponent=1.1,1.5", ["delta_exponent-1.1", "delta_exponent-1.5"]),
        ("select.max_loss=-1,1,null", ["max_loss--1", "max_loss-1", "max_loss-None"]),
    ],
)
def test_values_that_no_name_can_tell_are_called_by_their_place(tmp_path: Path, given: str, names: list[str]) -> None:
    found = variants_of(small_spec(tmp_path), values_of([given]))
    assert [variant.spec.name for variant in found] == [f"small-{name}" for name in names]


def test_a_file_without_sections_is_refused(raydp: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("[1, 2]")
    answer = raydp("variants", tmp_path / "list.yaml", "--vary", "seeds=[0],[1]")
    assert answer.code == 2
    assert "SPEC must be a mapping of sections, got a list" in answer.err


def test_a_page_is_checked_before_anything_else(raydp: Callable[..., Answer], write_spec: Any) -> None:
    for page, message in (("nowhere/page.html", "existing folder"), ("points.csv", "must be a page")):
        answer = raydp("variants", write_spec(), "--vary", "seeds=[0],[1]", "-o", page, "--dry-run")
        assert answer.code == 2
        assert message in answer.err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["method.max_grad_norm"], r"--vary must be FIELD=VALUES, got 'method.max_grad_norm'. Write it as"),
        (["method..r=1"], r"--vary must be FIELD=VALUES"),
        (["seeds=[0]", "seeds=[1]"], r"--vary must name a field once, got 'seeds' again"),
        (["seeds=[0"], r"--vary seeds must have YAML values between commas: expected"),
        (["seeds="], r"--vary must give 1 to 200 combinations, got 0"),
        ([], r"--vary must give 1 to 200 combinations, got 0"),
        ([f"method.max_grad_norm={','.join(map(str, range(1, MOST_VARIANTS + 2)))}"], r"got 201. Give more or fewer"),
        (["name=a,b"], r"--vary must name another field, got 'name'"),
        (["tracking={uri: x}"], r"--vary must name another field, got 'tracking'"),
        (["method.max_grad_norm=1,1"], r"--vary method.max_grad_norm must have distinct values, got 1 twice"),
        (["method={name: dp_sgd},{name: dp_sgd}"], r"--vary method must have distinct values, got {'name': 'dp_sgd'}"),
        (
            ["method.max_grad_norm=1,2", "method={name: dp_sgd}"],
            r"contain each other, got 'method.max_grad_norm'",
        ),
        (["task.name.x=1"], r"must name a field of a section, got 'task.name.x': name has none"),
        (["method.max_grad_norms=1"], r"max_grad_norms-1: method.max_grad_norms: the key 'max_grad_norms' is unknown"),
        (["method.max_grad_norm=-1"], r"max_grad_norm--1: method.max_grad_norm"),
    ],
)
def test_what_cannot_be_varied_is_said(tmp_path: Path, given: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        variants_of(small_spec(tmp_path), values_of(given))


def test_runs_of_a_private_selection_are_not_compared(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    spec["privacy"] |= {"tuning": "private_selection", "num_runs": {"distribution": "poisson", "mean": 2}}
    spec["select"] = {"score": "vmr_exact"}
    with pytest.raises(ValueError, match=r"privacy\.tuning must be ignored to compare variants"):
        variants_of(spec, {"method.max_grad_norm": [1, 2]})


def test_nothing_is_trained_where_one_of_them_is_refused(raydp: Callable[..., Answer], write_spec: Any) -> None:
    """The second asks for a batch larger than the data, which only its plan finds."""
    answer = raydp("variants", write_spec(), "--vary", "space.batch_size=[32],[5000]")
    assert answer.code == 2
    assert "small-batch_size-2: " in answer.err
    assert not (Path.cwd() / "runs").exists()


@pytest.mark.slow
def test_variants_are_run_and_compared_once(raydp: Callable[..., Answer], tmp_path: Path) -> None:
    """The teachers of PATE at one ε, as docs/mechanisms/pate.md has it. One variant was run before, and Ray runs the
    other one."""
    spec = yaml.safe_load((Path(__file__).parents[2] / "docs/specs/mechanisms/pate.yaml").read_text())
    spec["space"] = {"points": [[50, 20, 0.01]]}
    spec |= {"storage": str(tmp_path / "runs"), "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"}}
    spec["method"] |= {"num_teachers": 4, "teacher_steps": 3}  # whose noisy answers may teach nothing: no threshold
    spec["select"] |= {"min_utility_gain": None}
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    rates = "method.teacher_learning_rate=0.01,0.02"
    TrainedSpec(variants_of(path, values_of([rates]))[0].spec).ending.finish()
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("result.json")}
    command = ("variants", path, "--vary", rates, "--json")
    answer = raydp(*command)
    assert answer.code == 0, answer.err
    document = answer.json()
    assert [v["values"] for v in document["variants"]] == [
        {"method.teacher_learning_rate": rate} for rate in (0.01, 0.02)
    ]
    assert len({v["epsilon"] for v in document["variants"]}) == 1
    assert 7.8 < document["variants"][0]["epsilon"] <= 8
    losses = {v["name"]: v["best_utility"]["utility_loss"] for v in document["variants"]}
    assert document["lowest_loss"] == min(losses, key=losses.__getitem__)
    page = tmp_path / "runs" / "digits-pate-variants.html"
    assert document["report"] == str(page)
    assert "teacher_learning_rate-0.02" in page.read_text()
    assert str(tmp_path) not in page.read_text()
    assert {p: p.stat().st_mtime_ns for p in before} == before, "nothing is trained again"
    assert "starting Ray" in answer.err
    assert "Stop Ray" in answer.err
    again = raydp(*command)
    assert again.json() == document
    assert "starting Ray" not in again.err
    path.write_text(yaml.safe_dump({**spec, "select": {**spec["select"], "max_loss": 1e-9}}))
    other = raydp(*command)
    assert other.code == 1, "a new bound holds for what has ended, too"
    assert {v["selected"] for v in other.json()["variants"]} == {None}
    path.write_text(yaml.safe_dump({**spec, "task": {**spec["task"], "data_seed": 1}}))
    changed = raydp(*command)
    assert changed.code == 2
    assert "SPEC must be the one that the sweep was started with, got changes in task" in changed.err

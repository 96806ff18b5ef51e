"""Shadow models: what is derived from a spec, and the attack on models that were really trained."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from raydp.cli.arguments import configuration_of
from raydp.extensions.later_scores.sets import TrainedModels
from raydp.extensions.membership.metrics import auc
from raydp.extensions.membership.shadow_attack import Pool, _write, kept_arrays, losses_of
from raydp.extensions.membership.shadow_training import first_configuration, shadow_specs
from raydp.extensions.membership.shadows import Losses, shadow_attacks
from raydp.models import base_models as models
from raydp.search_spaces.configuration import Configuration, point_of
from raydp.search_spaces.settings import Settings
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import make_plan
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.transfer import SharedFolder
from raydp.tracking import find_models
from raydp.training.comm import LocalComm
from tests.builders.specs import small_spec
from tests.sweep.trained import TrainedSpec

TEXTS = 70


def write_texts(folder: Path) -> dict[str, Any]:
    """A task of short made-up texts without any rule, which can only be learnt by heart."""
    rng = np.random.default_rng(0)
    rows = ["".join(rng.choice(list("abcdefghij"), 24)) for _ in range(TEXTS)]
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return {
        "name": "text",
        "path": str(path),
        "max_length": 48,
        "heldout_fraction": 0.2,
        "min_tokens": 2,
    }


def memorising_spec(folder: Path, **changes: Any) -> dict[str, Any]:
    """Full fine-tuning without privacy, long enough to learn the texts by heart."""
    return small_spec(
        folder,
        **{
            "task": write_texts(folder),
            "method": {"name": "nonprivate"},
            "model": {"name": "tiny", "adapter": {"type": "none"}},
            "space": {"points": [[20, 80, 0.004]]},
            "scores": [{"name": "mia"}],
            "select": {"score": "mia"},
            **changes,
        },
    )


def test_shadows_are_sweeps_of_one_run_on_halves(tmp_path: Path) -> None:
    spec = load_spec(small_spec(tmp_path))
    specs = shadow_specs(spec, 4, None, seed=2)
    assert [s.name for s in specs] == [
        f"small-{p}-2-32-3-0.01" for p in ("target", *(f"shadow-{k}" for k in range(1, 5)))
    ]
    for derived in specs:
        assert derived.space.points == ((32, 3, 0.01),), "the first configuration of the spec"
        assert derived.seeds == (0,)
        assert derived.task.params.of == spec.task
        assert derived.tracking.registered_model == "small-shadows", (
            "never beside the models that are to be used"
        )
        for section in ("model", "method", "privacy", "cluster", "storage"):
            assert getattr(derived, section) == getattr(spec, section)
    halves = [(s.task.params.seed, s.task.params.complement) for s in specs]
    assert len(set(halves)) == 5
    assert halves[1][0] == halves[2][0] != halves[3][0] == halves[4][0]
    other = Configuration(batch_size=64, num_steps=6, learning_rate=0.02)
    (given, *_) = shadow_specs(spec, 2, other, seed=0)
    assert given.name != specs[0].name, "another configuration is another sweep"
    assert given.space.points == ((64, 6, 0.02),)
    fields = {"method.max_grad_norm": 0.25}
    (further, *_) = shadow_specs(spec, 2, replace(other, settings=Settings(fields)), seed=0)
    assert further.name != given.name, "so are other further fields"
    assert further.space.points == ((64, 6, 0.02, fields),)
    assert {s.task.params.seed for s in shadow_specs(spec, 4, None, seed=3)}.isdisjoint(
        {h[0] for h in halves}
    )


def test_the_first_configuration_of_every_kind_of_space(tmp_path: Path) -> None:
    def first(**space: Any) -> list[object]:
        return point_of(first_configuration(load_spec(small_spec(tmp_path, space=space))))

    assert first(points=[[64, 9, 0.1], [32, 9, 0.1]]) == [64, 9, 0.1]
    grid = {"batch_size": [128, 64], "num_steps": [5], "learning_rate": [0.2, 0.1]}
    assert first(**grid) == [128, 5, 0.2]
    assert first(**grid, **{"method.max_grad_norm": [1, 2]}) == [
        128,
        5,
        0.2,
        {"method.max_grad_norm": 1.0},
    ]
    assert len(first(name="tofu-1")) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shadows", "3"], "--shadows must be an even number from 2, got 3"),
        (["--shadows", "0"], "--shadows must be an even number from 2, got 0"),
        (["--neural"], "--neural must go with FILE.npz"),
        (
            ["--configuration", "32;3"],
            "--configuration must be batch_size,num_steps,learning_rate, all > 0, got '32;3'",
        ),
    ],
)
def test_other_experiments_are_refused(
    raydp, write_spec, arguments: list[str], message: str
) -> None:
    answer = raydp("mia", write_spec(), *arguments, "--json")
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


@pytest.mark.parametrize("changes", [{"unit": "user"}, {"tuning": "private_selection"}])
def test_guarantees_that_halves_cannot_have_are_refused(
    raydp, write_spec, changes: dict[str, str]
) -> None:
    privacy = {"target_epsilon": 8, "accountant": "rdp", "noise_key": "test", **changes}
    more = {"select": {"score": "vmr_exact"}} if "tuning" in changes else {}
    answer = raydp("mia", write_spec(privacy=privacy, **more))
    assert answer.code == 2
    assert "for shadow models" in answer.err


@pytest.mark.daily
@pytest.mark.daily
@pytest.mark.parametrize("private", [False, True])
def test_models_that_saw_an_example_are_told_from_those_that_did_not(
    tmp_path: Path, private: bool
) -> None:
    """A target and two shadows, trained here in this process, loaded from their folders, attacked.

    Without privacy it works; at (0.1, 0.001) no area can be above 0.53 in expectation, and none of
    seven 95 % intervals over 30 members is farther than 0.05, another standard error, from 1/2.
    """
    privacy = {
        "target_epsilon": 0.1,
        "target_delta": 1e-3,
        "accountant": "rdp",
        "noise_key": "test",
    }
    dp = (
        {"method": {"name": "dp_adam", "max_grad_norm": 0.1}, "privacy": privacy} if private else {}
    )
    specs = shadow_specs(load_spec(memorising_spec(tmp_path, **dp)), 2, None, seed=0)
    whole = specs[0].task.params.whole(models.load_tokenizer("tiny"))
    pool = Pool.of(whole, seed=0)
    folders = {
        "base": None,
        **{str(position): tmp_path / str(position) / "model" for position in range(len(specs))},
    }
    for position, spec in enumerate(specs):
        _train(spec, tmp_path / str(position))
    many, found = TrainedModels(models.load_base(specs[0].model), folders), []
    for index in range(len(folders)):
        with many.loaded(index) as loaded:
            found.append(losses_of(loaded.model, pool))
    included = np.stack([s.task.params.includes(whole.train)[pool.examples] for s in specs], axis=1)
    member = included[:, 0]
    for name, scores in shadow_attacks(found[0], found[1], found[2:], included[:, 1:]).items():
        area = auc(scores[member], scores[~member])
        assert (area.low - 0.05 < 0.5 < area.high + 0.05) if private else area.low > 0.6, name
    base = auc(-found[0].examples[member], -found[0].examples[~member])
    assert base.low < 0.5 < base.high, "the coins have nothing to do with the text"


def _train(spec: SweepSpec, folder: Path) -> None:
    """One run, as a worker does it."""
    task, weight_hash = build_task(spec)
    (trial,) = make_plan(spec, task.facts(), weight_hash).trials
    runner = TrialRunner(
        spec, task, models.load_base(spec.model), LocalComm(torch.device("cpu")), bytes(32)
    )
    runner.run(trial, SharedFolder(folder=folder, run_id=trial.run_id), ".")


@pytest.mark.daily
@pytest.mark.daily
def test_the_command_trains_attacks_and_goes_on(raydp: Callable[..., Any], tmp_path: Path) -> None:
    """The target and one shadow have been trained before, as if the command had been killed
    then."""
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(memorising_spec(tmp_path)))
    for spec in shadow_specs(load_spec(path), 2, None, seed=0)[:2]:
        TrainedSpec(spec)
    trained = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("result.json")}
    answer = raydp("mia", path, "--shadows", 2, "--json")
    assert answer.code == 0, answer.err
    assert {p: p.stat().st_mtime_ns for p in trained} == trained, "nothing is trained again"
    assert len(list((tmp_path / "runs").rglob("trials/*/model"))) == 3
    document = answer.json()
    assert (
        document["num_members"] + document["num_nonmembers"]
        == document["num_examples_of_the_whole"]
    )
    assert document["num_examples"] == document["num_members"]
    assert document["epsilon"] == "inf"
    for name, figures in document["attacks"].items():
        assert figures["auc_interval"][0] > 0.6, name
    uri = memorising_spec(tmp_path)["tracking"]["uri"]
    assert all(not aliases for aliases in find_models(uri)["aliases"]), (
        "what is for attacks is not for use"
    )
    written = {
        p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("trials/*/*") if p.is_file()
    }
    assert len([p for p in written if p.name.startswith("mia-")]) == 3
    assert raydp("mia", path, "--shadows", 2, "--json").json() == document
    assert {p: p.stat().st_mtime_ns for p in written} == written, "nothing is trained or read again"


@pytest.mark.parametrize("text", ["-5,300,0.1", "5,300,nan", "5,300", "5,300,x"])
def test_a_configuration_that_is_none_is_named(text):
    with pytest.raises(
        ValueError, match="--configuration must be batch_size,num_steps,learning_rate, all > 0"
    ):
        configuration_of(text)


def test_losses_that_an_earlier_version_kept_are_found(tmp_path: Path) -> None:
    folder = SweepFolder(path=tmp_path / "s")
    assert kept_arrays(folder, "mia-1a", None) == tmp_path / "s/base-mia-1a.npz"
    assert kept_arrays(folder, "mia-1a", "r") == tmp_path / "s/trials/r/mia-1a.npz"


def test_losses_of_private_examples_are_their_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        _write(
            tmp_path / "mia-1.npz", Losses(examples=np.zeros((2, 1)), population=np.zeros((1, 1)))
        )
    finally:
        os.umask(before)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600

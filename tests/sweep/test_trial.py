"""One trial without Ray: every method, adapter and full fine-tuning, from the same start each
time."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from raydp.methods.dp import DPSGD
from raydp.models import base_models as models
from raydp.spec.reading import load_spec
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import make_plan
from raydp.sweep.planning.planned import PlannedSweep
from raydp.sweep.store.transfer import SharedFolder
from raydp.training import probe
from raydp.training.comm import LocalComm
from raydp.training.noise.stream import TEST_KEY
from raydp.training.probe import DependentExamples
from raydp.training.trial_plan import TrialPlan
from tests.builders.models import plain_llama
from tests.builders.specs import SMALL_TASK, small_spec
from tests.marks import slow_after

FULL = {"name": "tiny", "adapter": {"type": "none"}}
LORA = {"name": "tiny", "adapter": {"r": 2, "alpha": 4}}
PROMPT = {"name": "tiny", "adapter": {"type": "soft_prompt", "num_virtual_tokens": 3}}
PREFIX = {"name": "tiny", "adapter": {"type": "prefix", "num_virtual_tokens": 3}}
IA3 = {"name": "tiny", "adapter": {"type": "ia3"}}
BITFIT = {"name": "tiny", "adapter": {"type": "bitfit"}}
NF4 = {"name": "tiny", "quantization": "nf4", "adapter": {"r": 2, "alpha": 4}}
INT8 = {"name": "tiny", "quantization": "int8", "adapter": {"r": 2, "alpha": 4}}
BESIDE = {"name": "tiny", "adapter": {"r": 2, "modules_to_save": ["lm_head"], "lora_dropout": 0.1}}
SPACE = {"points": [[32, 4, 0.01]]}
KEY, OTHER_KEY = bytes(range(32)), bytes(range(100, 132))


def files(folder: Path, trial: TrialPlan) -> SharedFolder:
    return SharedFolder(folder=folder, run_id=trial.run_id)


def planned(folder: Path, **changes: Any):
    spec = load_spec(small_spec(folder, **changes))
    task, weight_hash = build_task(spec)
    return spec, task, make_plan(spec, task.facts(), weight_hash)


def runner(folder: Path, key: bytes = TEST_KEY, **changes: Any):
    spec, task, plan = planned(folder, **changes)
    return TrialRunner(spec, task, models.load_base(spec.model), LocalComm(), key), plan


@pytest.mark.extensions("soft prompt", "prefix", "nf4", "int8")
@pytest.mark.parametrize(
    "model",
    [LORA, PROMPT, PREFIX, FULL, IA3, BITFIT, BESIDE, NF4, INT8],
    ids=[
        "lora",
        "soft prompt",
        "prefix",
        "full",
        "ia3",
        "bitfit",
        "lora with dropout, and lm_head",
        "nf4",
        "int8",
    ],
)
@pytest.mark.parametrize(
    "method",
    slow_after(
        1, [{"name": "dp_adam"}, {"name": "dp_sgd", "momentum": 0.5}, {"name": "nonprivate"}]
    ),
    ids=["dp_adam", "dp_sgd", "nonprivate"],
)
def test_it_trains_scores_and_saves_and_starts_afresh_each_time(
    tmp_path: Path, method: dict[str, Any], model: dict[str, Any]
) -> None:
    trial_runner, plan = runner(tmp_path, method=method, model=model, space=SPACE)
    (trial,) = plan.trials
    base = trial_runner.measure_base(0).loss
    first = trial_runner.run(trial, files(tmp_path / "a", trial), "attempt-1")
    again = trial_runner.run(trial, files(tmp_path / "b", trial), "attempt-1")
    assert first.loss == again.loss != base
    assert trial_runner.measure_base(0).loss == pytest.approx(base, abs=1e-7)
    assert [step["step"] for step in first.history] == [0, 1, 2, 3]
    assert set(first.scores) == {"vmr_exact"}
    weights = [
        load_file(next((tmp_path / k / "attempt-1" / "model").glob("*.safetensors"))) for k in "ab"
    ]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_weights_of_a_run_depend_on_the_key(tmp_path: Path) -> None:
    """The two sweeps differ in their keys alone, and neither key is the public test key."""
    weights = []
    for number, key in enumerate([KEY, KEY, OTHER_KEY]):
        trial_runner, plan = runner(tmp_path, key=key, model=LORA, space=SPACE)
        trial_runner.run(plan.trials[0], files(tmp_path / str(number), plan.trials[0]), "attempt")
        weights.append(
            load_file(next((tmp_path / str(number)).glob("attempt/model/*model.safetensors")))
        )
    first, again, other = weights
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_a_run_that_is_not_the_accounted_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its plan before it trains, and at the step that adds the noise if the method adds less
    than it says."""
    trial_runner, plan = runner(tmp_path, model=LORA, space=SPACE)
    (trial,) = plan.trials
    event = plan.privacy[trial.run_id].mechanism.event
    more = event.with_noise(2 * event.noise_multiplier)
    with pytest.raises(ValueError, match="must train as its privacy record says"):
        trial_runner.run(trial, files(tmp_path / "other", trial), "attempt", accounted=more)
    monkeypatch.setattr(
        DPSGD, "_gradient_noise_multiplier", lambda self, plan, sigma: 0.999 * sigma
    )
    with pytest.raises(ValueError, match="must be at least that of the privacy record"):
        trial_runner.run(trial, files(tmp_path / "less", trial), "attempt", accounted=event)


def test_the_utility_is_measured_in_training_without_a_change_of_the_result(tmp_path: Path) -> None:
    space = {"points": [[32, 5, 0.01]]}
    trial_runner, plan = runner(tmp_path, model=LORA, space=space)
    plain = trial_runner.run(plan.trials[0], files(tmp_path / "plain", plan.trials[0]), "attempt")
    evaluated, again = runner(tmp_path, model=LORA, space=space, evaluate_every=2)
    assert again.trials[0].run_id == plan.trials[0].run_id
    result = evaluated.run(
        again.trials[0], files(tmp_path / "evaluated", again.trials[0]), "attempt"
    )
    measured = {row["step"]: row["heldout_loss"] for row in result.history if "heldout_loss" in row}
    assert list(measured) == [1, 3], "after two and four of five steps"
    assert len({*measured.values(), plain.loss}) == 3
    assert result.loss == plain.loss
    two, first_steps = runner(
        tmp_path, model=LORA, space={"points": [[32, 2, 0.01]]}, evaluate_every=1
    )
    assert [
        row.get("heldout_loss") is None
        for row in two.run(
            first_steps.trials[0], files(tmp_path / "two", first_steps.trials[0]), "attempt"
        ).history
    ] == [False, True], "the end has its utility"


def test_a_run_without_noise_has_an_infinite_epsilon(tmp_path: Path) -> None:
    _, plan = runner(tmp_path, method={"name": "nonprivate"}, space=SPACE)
    (record,) = plan.privacy.values()
    assert record.accounted.epsilon == math.inf
    assert record.certified is False
    assert plan.rows()[0]["noise_multiplier"] == 0


def run_ids(folder: Path, **changes: Any) -> set[str]:
    return {t.run_id for t in planned(folder, space=SPACE, **changes)[2].trials}


def test_the_identity_depends_on_all_that_defines_the_result(tmp_path: Path) -> None:
    same = run_ids(tmp_path)
    cluster = {"max_concurrent_trials": 1, "microbatch_size": 3}
    assert run_ids(tmp_path, cluster=cluster, name="other") == same
    changes: list[dict[str, Any]] = [
        {"method": {"name": "dp_adam", "max_grad_norm": 0.2}},
        {"method": {"name": "dp_sgd", "max_grad_norm": 0.1}},
        {"seeds": [1]},
        {"model": {"name": "tiny", "adapter": {"r": 3, "alpha": 4}}},
        {"model": IA3},
        {"task": {**SMALL_TASK, "data_seed": 1}},
        {"privacy": {"target_epsilon": 4, "accountant": "rdp", "noise_key": "test"}},
    ]
    different = [run_ids(tmp_path, **change) for change in changes]
    assert len(set.union(same, *different)) == 1 + len(different)


@pytest.mark.extensions
def test_the_identity_depends_on_virtual_tokens_and_quantisation(tmp_path: Path) -> None:
    four = {"name": "tiny", "adapter": {"type": "soft_prompt", "num_virtual_tokens": 4}}
    different = [run_ids(tmp_path, model=model) for model in (LORA, PROMPT, four, PREFIX, NF4)]
    assert len(set.union(*different)) == len(different)


def test_with_the_user_as_the_unit_everything_counts_users(tmp_path: Path) -> None:
    private = {"target_epsilon": 8, "accountant": "rdp", "noise_key": "test", "delta_exponent": 1.1}
    _, plan = runner(tmp_path, model=LORA, space=SPACE, privacy=private)
    by_user, user_plan = runner(
        tmp_path, model=LORA, space=SPACE, privacy={**private, "unit": "user"}
    )
    users = user_plan.facts.num_units
    assert users < plan.facts.num_units == plan.facts.num_examples == user_plan.facts.num_examples
    assert user_plan.delta == users**-1.1
    (trial,), (other,) = user_plan.trials, plan.trials
    assert trial.num_examples == users
    assert trial.run_id != other.run_id
    assert user_plan.privacy[trial.run_id].mechanism.sample_rate == 32 / users
    assert "person with all its examples" in user_plan.privacy[trial.run_id].unit
    drawn = [
        h["drawn"] for h in by_user.run(trial, files(tmp_path / "user", trial), "attempt").history
    ]
    assert 4 * 10 < sum(drawn) < 4 * 60, "about 32 users a step"


@pytest.mark.parametrize(
    "model",
    slow_after(1, [LORA, {**FULL, "dtype": "bfloat16"}]),
    ids=["lora", "full with autocast"],
)
def test_computing_layers_again_changes_no_result(tmp_path: Path, model: dict[str, Any]) -> None:
    results = []
    for again in (False, True):
        start, plan = runner(
            tmp_path, model=model, space=SPACE, cluster={"gradient_checkpointing": again}
        )
        result = start.run(plan.trials[0], files(tmp_path / f"{again}", plan.trials[0]), "attempt")
        saved = next((tmp_path / f"{again}").glob("attempt/model/*model.safetensors"))
        results.append((result.loss, load_file(saved)))
    (loss, weights), (loss_again, weights_again) = results
    assert loss == loss_again
    assert all(torch.equal(weights[name], weights_again[name]) for name in weights)
    assert {w.dtype for w in weights.values()} == {torch.float32}


@pytest.mark.slow
def test_a_sweep_of_few_steps_does_not_compute_the_frozen_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planned runs put fewer tokens through the model than the data have."""
    monkeypatch.setattr("raydp.sweep.engine.trial.prefix_folder", lambda: tmp_path / "prefix")
    last = {"name": "tiny", "adapter": {"r": 2, "alpha": 4, "layers_to_transform": [1]}}
    spec = load_spec(small_spec(tmp_path, model=last))
    task, weight_hash = build_task(spec)
    few = make_plan(spec, task.facts(), weight_hash).trials[:1]
    for planned, is_there in (
        ((replace(few[0], num_steps=1, batch_size=1),), False),
        (10 * few, True),
        (None, True),
    ):
        TrialRunner(
            spec, task, models.load_base(spec.model), LocalComm(), TEST_KEY, planned=planned
        )
        assert (tmp_path / "prefix").exists() == is_there


def test_the_first_pass_refuses_a_model_whose_examples_depend_on_each_other(tmp_path: Path) -> None:
    spec, task, _ = planned(tmp_path, model=LORA, space=SPACE)
    base = models.load_base(spec.model)
    base.model.config.is_causal = False
    for module in base.model.modules():
        module.is_causal = False
    with pytest.raises(DependentExamples, match="a later token changes the logits"):
        TrialRunner(spec, task, base, LocalComm(), KEY)


def in_16_bits(folder: Path, *, gpus: int = 0) -> Any:
    """Return the spec of a model in bfloat16 on this many GPUs."""
    tokenizer = models.load_tokenizer("tiny")
    plain_llama(vocab_size=len(tokenizer)).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    model = {**LORA, "name": str(folder / "model"), "dtype": "bfloat16"}
    cluster = {"cpus_per_worker": torch.get_num_threads(), "gpus_per_worker": gpus}
    return load_spec(small_spec(folder, model=model, cluster=cluster))


def test_a_plan_refuses_a_rounding_model_with_the_workers_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How far a processor rounds differs, so no rounding at all is allowed in 16 bits."""
    spec = in_16_bits(tmp_path)
    task, _ = build_task(spec)
    exact = probe._largest_rounding

    def strict(context: Any) -> float:
        types = {context.autocast or p.dtype for p in context.model.parameters()}
        return -1.0 if torch.bfloat16 in types else exact(context)

    monkeypatch.setattr(probe, "_largest_rounding", strict)
    with pytest.raises(DependentExamples, match=r"model\.dtype must be float32") as of_worker:
        TrialRunner(spec, task, models.load_base(spec.model), LocalComm(), KEY)
    with pytest.raises(DependentExamples) as of_plan:
        PlannedSweep.of(spec, Console(quiet=True))
    assert str(of_plan.value) == str(of_worker.value)
    PlannedSweep.of(in_16_bits(tmp_path, gpus=1), Console(quiet=True))


def test_plan_and_worker_accept_a_model_that_rounds_little(tmp_path: Path) -> None:
    spec = in_16_bits(tmp_path)
    task = PlannedSweep.of(spec, Console(quiet=True)).task
    TrialRunner(spec, task, models.load_base(spec.model), LocalComm(), KEY)

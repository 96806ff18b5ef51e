"""The one-run audit as a score: on models that know their canaries, know none, and know the wrong
ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from raydp.extensions.auditing.canaries import CanaryTask
from raydp.extensions.auditing.one_run import Guesses, one_run_bound, one_run_p_value
from raydp.extensions.auditing.one_run_audit import OneRunAudit
from raydp.extensions.auditing.task import AuditedTask
from raydp.models import adapters
from raydp.models import base_models as models
from raydp.models.base_models import LoadedModel
from raydp.spec.sections import AdapterSpec, ModelSpec
from raydp.tasks.text.builtin import BuiltinTask
from tests.builders.specs import SMALL_TASK

CANARIES = 200
SCORE = OneRunAudit(delta=1e-5, epsilon=1.0)


@pytest.fixture(scope="module")
def task() -> CanaryTask:
    of = SMALL_TASK
    spec = AuditedTask.model_validate({"of": of, "num_canaries": CANARIES, "seed": 3})
    return spec.build(models.load_tokenizer("tiny"))


@pytest.fixture
def model() -> LoadedModel:
    spec = ModelSpec(name="tiny", adapter=AdapterSpec(type="none"))
    base = models.load_base(spec, new_tokens=CANARIES)
    trained = adapters.attach_adapter(base, spec.adapter)
    weights = {name: p.detach().clone() for name, p in trained.named_parameters()}
    return LoadedModel(model=trained, tokenizer=base.tokenizer, base_weights=weights)


def teach(model: LoadedModel, task: CanaryTask, known: np.ndarray) -> None:
    """Set the embedding of each known canary's token to the hidden state that it follows on."""
    ids = task.canaries.batch(np.arange(CANARIES)).input_ids
    with torch.no_grad():
        states = model.model.model(ids[:, :-1]).last_hidden_state[:, -1]
        model.model.get_output_embeddings().weight[ids[known, -1]] = states[known]


def test_an_audit_of_a_model_that_memorised_its_canaries_guesses_all_of_them(
    model: LoadedModel, task: CanaryTask
) -> None:
    teach(model, task, task.included)
    found = SCORE.measure(model, task, seed=0)
    all_right = Guesses(num_canaries=CANARIES, num_guesses=40, num_correct=40)  # a fifth of them
    assert (found.details["guesses"], found.details["correct"]) == (40, 40)
    assert found.value == one_run_bound(all_right, 1e-5).epsilon > 2
    assert found.details["p_value"] == one_run_p_value(all_right, 1.0, 1e-5) < 1e-3
    assert found.std_error is None


def test_an_audit_of_an_untrained_model_finds_no_leak(model: LoadedModel, task: CanaryTask) -> None:
    found = SCORE.measure(model, task, seed=0)
    assert (
        found.value < 1
    )  # each coin is guessed by its place in the list: right about half of the time
    assert found.details["p_value"] > 0.01


def test_a_model_that_diverged_passes_no_audit(model: LoadedModel, task: CanaryTask) -> None:
    with torch.no_grad():
        model.model.get_output_embeddings().weight.fill_(math.nan)
    with pytest.raises(ValueError, match="losses must be finite, got NaN or infinity"):
        SCORE.measure(model, task, seed=0)


def test_knowing_those_that_are_out_is_no_evidence(model: LoadedModel, task: CanaryTask) -> None:
    """Guesses that are all wrong: the bound is on one side."""
    teach(model, task, ~task.included)
    found = SCORE.measure(model, task, seed=0)
    assert (found.value, found.details["correct"], found.details["p_value"]) == (0.0, 0, 1.0)


def test_the_guesses_do_not_look_at_the_coins(model: LoadedModel, task: CanaryTask) -> None:
    """With all coins turned, the same guesses are right where they were wrong."""
    turned = replace(task, included=~task.included)
    here, there = (SCORE.measure(model, t, seed=0).details["correct"] for t in (task, turned))
    assert here + there == 40


def test_only_changes_of_new_tokens_by_training_count(model: LoadedModel, task: CanaryTask) -> None:
    """Before training all losses are equal, and another weight of an ordinary token is none of
    theirs."""
    assert task.canary_losses(model.model) == pytest.approx(
        np.full(CANARIES, math.log(CANARIES)), rel=1e-12
    )
    teach(model, task, task.included)
    before = task.canary_losses(model.model)
    used = set(task.canaries.batch(np.arange(CANARIES)).input_ids[:, :-1].flatten().tolist())
    unused = min(set(range(1, task.first_new_token)) - used)
    with torch.no_grad():
        model.model.get_output_embeddings().weight[unused] *= (
            50  # likely after any prefix now, or after none
        )
    assert task.canary_losses(model.model) == pytest.approx(before, rel=1e-5)  # fp32


def test_several_shares_are_paid_for(model: LoadedModel, task: CanaryTask) -> None:
    teach(model, task, task.included)
    several = OneRunAudit(delta=1e-5, epsilon=1.0, shares=(0.1, 0.2)).measure(model, task, seed=0)
    best = Guesses(num_canaries=CANARIES, num_guesses=40, num_correct=40)
    assert (
        several.value
        == one_run_bound(best, 1e-5, 0.975).epsilon
        < SCORE.measure(model, task, seed=0).value
    )
    assert several.details["p_value"] == 2 * one_run_p_value(best, 1.0, 1e-5)


def test_the_model_is_left_as_it_was(model: LoadedModel, task: CanaryTask) -> None:
    teach(model, task, task.included)
    before = {name: p.detach().clone() for name, p in model.model.named_parameters()}
    SCORE.measure(model, task, seed=0)
    assert all(torch.equal(p, before[name]) for name, p in model.model.named_parameters())


def known(kind: str) -> tuple[LoadedModel, CanaryTask]:
    """A model with an adapter, and a task whose canaries need no new tokens."""
    spec = AuditedTask.model_validate(
        {"of": SMALL_TASK, "canary": kind, "num_canaries": CANARIES, "seed": 3}
    )
    model_spec = ModelSpec(name="tiny", adapter=AdapterSpec(type="lora", target_modules=["q_proj"]))
    base = models.load_base(model_spec)
    loaded = LoadedModel(
        model=adapters.attach_adapter(base, model_spec.adapter), tokenizer=base.tokenizer
    )
    return loaded, spec.build(models.load_tokenizer("tiny"))


def test_known_tokens_are_measured_against_the_base_model() -> None:
    """An untrained adapter changes nothing, so every canary is guessed by its place in the list."""
    model, task = known("known_token")
    assert np.ptp(task.canary_losses(model.model)) > 1
    by_place = task.included[:20].sum() + (~task.included[-20:]).sum()
    assert SCORE.measure(model, task, seed=0).details["correct"] == by_place


def test_gradient_canaries_are_guessed_by_the_auditors_observations() -> None:
    model, task = known("gradient")
    seen = np.where(task.included, 1.0, -1.0)
    seen[np.flatnonzero(task.included)[:3]] = -2.0
    found = SCORE.measure(replace(model, observed=seen), task, seed=0)
    inside = int(task.included.sum())
    counts = {
        name: found.details[name] for name in ("num_in", "guessed_in", "wrongly_in", "guesses")
    }
    assert counts == {"num_in": inside, "guessed_in": inside - 3, "wrongly_in": 0, "guesses": 40}
    assert found.details["correct"] == 37
    assert (
        SCORE.measure(model, task, seed=0).details["guessed_in"] == 0
    )  # the base model was not trained


def test_a_task_without_canaries_is_refused() -> None:
    plain = BuiltinTask(num_examples=2000, num_heldout=50).build(models.load_tokenizer("tiny"))
    with pytest.raises(
        ValueError,
        match=r"task\.name must be 'audited' .*, got a task without canaries\. `raydp audit`",
    ):
        SCORE.check(plain)

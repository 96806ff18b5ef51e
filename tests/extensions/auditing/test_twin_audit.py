"""The audit by twins, on models that were trained on them or not.

Its guesses do not depend on the coins.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from raydp.extensions.auditing.one_run import Guesses, twin_bound
from raydp.extensions.auditing.twin_audit import TwinAudit
from raydp.models import adapters
from raydp.models import base_models as models
from raydp.models.base_models import LoadedModel
from raydp.spec.sections import AdapterSpec, ModelSpec
from raydp.tasks.wrappers.planted_task import PlantedTask
from raydp.tasks.wrappers.twins import TwinTask
from tests.builders.specs import SMALL_TASK

PAIRS = 40
SCORE = TwinAudit(delta=1e-5)


@pytest.fixture(scope="module")
def task() -> TwinTask:
    section = {"of": SMALL_TASK, "copies": {1: PAIRS}, "num_digits": 4, "twins": True}
    return PlantedTask.model_validate(section).build(models.load_tokenizer("tiny")).for_seed(5)


def untrained() -> LoadedModel:
    spec = ModelSpec(name="tiny", adapter=AdapterSpec(type="none"))
    base = models.load_base(spec)
    trained = adapters.attach_adapter(base, spec.adapter)
    weights = {name: p.detach().clone() for name, p in trained.named_parameters()}
    return LoadedModel(model=trained, tokenizer=base.tokenizer, base_weights=weights)


@pytest.fixture(scope="module")
def trained(task: TwinTask) -> LoadedModel:
    """A model that was trained without privacy on the twins that are in."""
    model = untrained()
    optimizer = torch.optim.Adam(model.model.parameters(), lr=3e-3)
    planted = np.arange(len(task.train) - PAIRS, len(task.train))
    for _ in range(60):
        optimizer.zero_grad()
        task.per_example_loss(model.model, task.batch(planted)).mean().backward()
        optimizer.step()
    return model


@pytest.mark.slow
def test_a_model_that_was_trained_on_them_gives_the_coins_away(
    trained: LoadedModel, task: TwinTask
) -> None:
    found = SCORE.measure(trained, task, seed=0)
    assert (found.details["pairs"], found.details["guesses"], found.details["copies"]) == (
        PAIRS,
        PAIRS // 2,
        1,
    )
    assert found.details["correct"] >= 0.9 * PAIRS / 2
    guesses = Guesses(
        num_canaries=PAIRS, num_guesses=PAIRS // 2, num_correct=int(found.details["correct"])
    )
    assert found.value == twin_bound(guesses, 1e-5) > 0.4
    assert found.std_error is None


def test_other_coins_make_the_same_guesses_wrong(trained: LoadedModel, task: TwinTask) -> None:
    """The guesses do not depend on the coins: with each coin turned round, the right ones are the
    wrong ones."""
    right = SCORE.measure(trained, task, seed=0)
    turned = SCORE.measure(trained, replace(task, second=~task.second), seed=0)
    assert right.details["correct"] + turned.details["correct"] == PAIRS // 2
    assert turned.value == 0


def test_an_untrained_model_gives_nothing_away(task: TwinTask) -> None:
    assert SCORE.measure(untrained(), task, seed=0).value == 0


def test_each_number_of_copies_is_audited_by_itself(trained: LoadedModel, task: TwinTask) -> None:
    """Half of the pairs are said to have 2 copies: the pairs of 1 copy have the larger bound, at
    the stricter level."""
    twins = tuple(
        tuple(replace(twin, count=1 + place % 2) for twin in pair)
        for place, pair in enumerate(task.twins)
    )
    found = SCORE.measure(trained, replace(task, twins=twins), seed=0)
    assert (found.details["pairs"], found.details["copies"]) == (PAIRS // 2, 1)
    guesses = Guesses(
        num_canaries=PAIRS // 2, num_guesses=PAIRS // 4, num_correct=int(found.details["correct"])
    )
    assert found.value == twin_bound(guesses, 1e-5, confidence=0.975) > 0


def test_by_default_delta_is_one_over_n(trained: LoadedModel, task: TwinTask) -> None:
    assert TwinAudit().measure(trained, task, seed=0).details["delta"] == 1 / task.facts().num_units


def test_a_task_without_twins_is_refused() -> None:
    task = PlantedTask.model_validate({"of": SMALL_TASK, "copies": [1]}).build(
        models.load_tokenizer("tiny")
    )
    with pytest.raises(ValueError, match="twins: true"):
        SCORE.check(task)

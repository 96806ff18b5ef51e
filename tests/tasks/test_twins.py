"""Pairs of planted canaries: every run trains on one twin of each pair, and the other twin is its
control."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydp.models import base_models as models
from raydp.plugins.registries import resolve
from raydp.selftest.spec_subject import spec_subjects
from raydp.spec.reading import load_spec
from raydp.tasks.text.language import LanguageModelingTask
from raydp.tasks.wrappers.planted_task import PlantedTask
from raydp.tasks.wrappers.twins import TwinTask, for_seed
from tests.builders.specs import SMALL_TASK, small_spec

COPIES = {1: 20, 3: 10}


def planted(tokenizer, **options: Any) -> TwinTask:
    options = {"copies": COPIES, "num_digits": 3, "twins": True, **options}
    return PlantedTask.model_validate({"of": SMALL_TASK, **options}).build(tokenizer)


@pytest.fixture(scope="module")
def task(tiny) -> TwinTask:
    return planted(tiny)


def texts(tokenizer, task: LanguageModelingTask) -> list[str]:
    train = task.train
    rows = [
        train.token_ids[a:b].tolist()
        for a, b in zip(train.offsets, train.offsets[1:], strict=False)
    ]
    return tokenizer.batch_decode(rows, skip_special_tokens=True)


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_a_run_trains_on_one_twin_of_each_pair_and_the_other_is_nowhere(tiny, inner, task, seed):
    seen = for_seed(task, seed)
    said = texts(tiny, seen)
    assert said[: len(inner.train)] == texts(tiny, inner)
    counts = Counter(said[len(inner.train) :])
    assert len(seen.pairs()) == 30
    for present, absent in seen.pairs():
        assert counts[f"{present.prompt}{present.continuation}."] == present.count
        assert not any(absent.continuation in text and absent.prompt in text for text in said)
        assert (absent.count, absent.number) == (0, present.number)
    assert Counter(present.count for present, _ in seen.pairs()) == COPIES
    assert sum(counts.values()) == 50


def test_n_the_identity_and_the_names_are_those_of_all_seeds(inner, task):
    for seed in range(5):
        seen = for_seed(task, seed)
        assert (
            len(seen.train)
            == seen.facts().num_units
            == task.facts().num_units
            == len(inner.train) + 50
        )
        assert seen.facts().content_hash == task.facts().content_hash
        assert [s.name for s in seen.secrets()] == [s.name for s in task.secrets()]
        assert [s.count for s in seen.secrets()] == [s.count for s in task.secrets()]
        assert len(seen.controls()) == len(inner.controls()) + 30


def test_the_coins_are_fair_and_independent(task):
    coins = np.array([for_seed(task, seed).second for seed in range(100)])
    assert np.abs(coins.mean(0) - 0.5).max() < 4.5 * 0.5 / 10, (
        "each pair, over the seeds (4.5 standard errors)"
    )
    correlations = np.corrcoef(coins.T)[np.triu_indices(30, 1)]
    assert np.abs(correlations).max() < 4.5 / 10, "pairs of pairs"
    assert np.abs(np.corrcoef(coins[:-1].ravel(), coins[1:].ravel())[0, 1]) < 4.5 / np.sqrt(
        coins[1:].size
    )


def test_a_seed_gets_the_same_twins_again_from_any_view(task):
    again = for_seed(for_seed(task, 3), 5)
    assert (again.second == for_seed(task, 5).second).all()
    assert again.secrets() == for_seed(task, 5).secrets()
    assert (again.train.token_ids == for_seed(task, 5).train.token_ids).all()
    assert for_seed(task, 3).secrets() != again.secrets()


def test_another_task_is_as_it_was(inner):
    assert for_seed(inner, 3) is inner


def test_two_tasks_differ_if_a_twin_differs(tiny, task):
    assert planted(tiny, canary_seed=1).facts().content_hash != task.facts().content_hash
    assert planted(tiny, twins=False).facts().content_hash != task.facts().content_hash


def test_only_the_canaries_can_be_scored(tiny, inner):
    alone = planted(tiny, own_secrets=False)
    assert len(alone.secrets()) == len(alone.controls()) == 30
    assert len(planted(tiny).secrets()) == 30 + len(inner.secrets())
    assert len(alone.train) == len(inner.train) + 50


def test_a_list_and_a_mapping_of_copies_are_the_same_canaries(tiny, task):
    listed = planted(tiny, copies=[1] * 20 + [3] * 10)
    assert listed.facts().content_hash == task.facts().content_hash


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"copies": {0: 3}}, "at least 1 with twins"),
        ({"copies": {1: 0}}, "number of canaries"),
        ({"copies": {1: 600}}, "at most 1000 texts"),
        ({"copies": {1: "many"}}, "number of canaries"),
        ({"copies": {}}, "at least 1 item"),
    ],
)
def test_copies_that_make_no_pairs_are_refused(tiny, options, words):
    with pytest.raises(ValueError, match=words):
        planted(tiny, **options)


@pytest.mark.parametrize(
    "section",
    [
        {"name": "half"},
        {"name": "audited", "seed": 1, "num_canaries": 10},
        {"name": "planted", "copies": [1]},
        {"name": "without", "secrets": [1]},
        {"name": "with_reference", "fraction": 0.5},
    ],
    ids=lambda section: section["name"],
)
@pytest.mark.extensions("half", "audited", "with_reference", "without")
def test_a_task_that_is_made_of_it_has_the_first_twins_for_all_seeds(tiny, section):
    of = {"name": "planted", "of": SMALL_TASK, "copies": [2, 2], "twins": True}
    params = {"of": of, **{key: value for key, value in section.items() if key != "name"}}
    made = resolve("tasks", section["name"]).model_validate(params).build(tiny)
    assert not isinstance(made, TwinTask)
    assert for_seed(made, 3) is made
    pairs = planted(tiny, copies=[2, 2], num_digits=4).twins
    assert {first.id for first, _ in pairs} <= {secret.id for secret in made.secrets()}
    assert {second.id for _, second in pairs} <= {control.id for control in made.controls()}
    assert not any("coin" in sentence for sentence in made.facts().sentences())
    said = texts(tiny, made)
    assert not any(second.prompt in text for _, second in pairs for text in said)


def test_its_users_are_refused(task):
    with pytest.raises(ValueError, match=r"privacy\.unit must be example"):
        task.by_user()


@pytest.mark.slow
def test_cached_hidden_states_are_those_of_the_twins_that_are_in(tmp_path: Path, tiny):
    from raydp.extensions.frozen_prefix.prefix import with_frozen_prefix
    from raydp.models.adapters import attach_adapter, trainable_parameters
    from raydp.spec.sections import ModelSpec

    spec = ModelSpec.model_validate(
        {"name": "tiny", "adapter": {"type": "lora", "r": 1, "layers_to_transform": [1]}}
    )
    model = attach_adapter(models.load_base(spec), spec.adapter)
    task = planted(tiny)
    cached = with_frozen_prefix(
        task,
        model,
        trainable_parameters(model, spec.adapter),
        weight_hash="w",
        folder=tmp_path,
        max_bytes=float("inf"),
        say=pytest.fail,
    )
    assert cached.pool_hidden is not None
    indices = np.arange(len(task.train) - 50, len(task.train))
    for seed in (0, 1):
        plain, fast = for_seed(task, seed), for_seed(cached, seed)
        batch = fast.batch(indices)
        assert batch.hidden is not None
        assert (batch.input_ids == plain.batch(indices).input_ids).all()
        losses = [
            t.per_example_loss(model, t.batch(indices)).detach().numpy() for t in (plain, fast)
        ]
        np.testing.assert_allclose(losses[1], losses[0], atol=1e-5)


@pytest.mark.extensions
def test_the_self_test_of_a_spec_reads_the_hidden_states_of_its_own_few_examples(tmp_path: Path):
    """It takes a few units of a task, so that the states of the pool would be those of other
    examples."""
    adapter = {"type": "lora", "r": 1, "alpha": 1, "layers_to_transform": [1]}
    task = {"name": "planted", "of": SMALL_TASK, "copies": [2, 2], "twins": True}
    subject = spec_subjects(
        load_spec(small_spec(tmp_path, task=task, model={"name": "tiny", "adapter": adapter}))
    )[0]
    cached = subject.task
    assert cached.train_hidden is not None
    plain = replace(cached, train_hidden=None)
    losses = [
        t.per_example_loss(subject.context.model, t.batch(subject.indices)).detach()
        for t in (plain, cached)
    ]
    np.testing.assert_allclose(losses[1].numpy(), losses[0].numpy(), atol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"num_digits": 12}, {"format": "The code is {digits} now."}]
)
def test_further_absent_texts_are_drawn_like_the_twins_and_none_is_one_of_them(tiny, options):
    task = planted(tiny, **options)
    few, many = task.absent(3), task.absent(9)
    assert [texts[:3] for texts in many] == few, "a smaller number gives the first of them"
    assert [len(texts) for texts in many] == [9] * 30
    assert [texts[0] for texts in many] == [absent for _, absent in task.pairs()]
    planted_texts = {twin.prompt + twin.continuation for pair in task.twins for twin in pair}
    further = [secret for texts in many for secret in texts[1:]]
    assert len({secret.continuation for secret in further}) == 240, "no digits twice"
    assert not {secret.prompt + secret.continuation for secret in further} & planted_texts
    twins = [twin for pair in task.twins for twin in pair]
    assert not {s.continuation for s in further} & {s.continuation for s in twins}
    assert {len(s.continuation) for s in further} == {len(s.continuation) for s in twins}
    if "format" not in options:
        assert len({s.prompt for s in further} | {s.prompt for s in twins}) == 300, "no name twice"
    assert {(s.count, s.number) for texts in many for s in texts} == {
        (0, pair[0].number) for pair in task.twins
    }
    seen = [
        [texts[1].continuation for texts in for_seed(task, seed).absent(2)] for seed in (3, 4, 3)
    ]
    assert seen[0] == seen[2]
    assert seen[0] != seen[1], "every seed has others"


@pytest.mark.slow
def test_the_digits_of_further_texts_are_uniform_over_those_that_are_left(tiny):
    """One digit and one pair: eight further texts are the eight digits that the twins leave."""
    task = planted(tiny, copies=[2], num_digits=1)
    assert task.most_absent == 9
    digits = {s.continuation.strip() for s in task.absent(9)[0]} | {
        t.continuation.strip() for t in task.twins[0]
    }
    assert digits == set("0123456789")
    firsts = Counter(
        planted(tiny, copies=[2], num_digits=1, canary_seed=seed).absent(2)[0][1].continuation
        for seed in range(60)
    )
    assert len(firsts) == 10
    assert max(firsts.values()) < 16, "6 are expected, with a standard deviation of 2.3"


def test_there_are_at_most_as_many_further_texts_as_digits_or_names(tiny):
    assert planted(tiny).most_absent == 1 + (1000 - 60) // 30
    assert planted(tiny, copies={1: 40}, num_digits=2).most_absent == 1

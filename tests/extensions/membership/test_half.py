"""Random halves of a task: whose coin shows heads, and what that changes."""

from __future__ import annotations

import numpy as np
import pytest

from raydp.extensions.classification.digits import DigitsTask
from raydp.extensions.membership.half import HalfTask
from raydp.models import base_models as models
from raydp.plugins.described import resolve_plugin
from raydp.tasks.text.builtin import BuiltinTask
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask
from tests.builders.specs import SMALL_TASK


@pytest.fixture(scope="module")
def tokenizer():
    return models.load_tokenizer("tiny")


@pytest.fixture(scope="module")
def whole(tokenizer) -> LanguageModelingTask:
    return BuiltinTask(num_examples=2000, num_heldout=50).build(tokenizer)


def test_a_half_and_its_complement_are_the_whole(whole, tokenizer) -> None:
    halves = [HalfTask(of=SMALL_TASK, seed=3, complement=c) for c in (False, True)]
    inside = [half.includes(whole.train) for half in halves]
    assert (inside[0] ^ inside[1]).all()
    built = [half.build(tokenizer) for half in halves]
    for half, chosen in zip(built, inside, strict=True):
        facts = half.facts()
        assert facts.num_units == facts.num_examples == chosen.sum()
        assert facts.num_tokens == half.train.num_targets()
        first = half.train.select(np.array([0])).token_ids
        assert first.tolist() == whole.train.select(np.flatnonzero(chosen)[:1]).token_ids.tolist()
        assert half.heldout is not None
        assert facts.notes["half_of_examples"] == 2000
    assert (
        built[0].facts().content_hash != built[1].facts().content_hash != whole.facts().content_hash
    )


def test_coins_are_fair_and_of_different_seeds_independent(whole) -> None:
    """Of 2,000 coins 1,000 +- 22.4 show heads, and two seeds agree on as many; four standard
    deviations."""
    coins = [HalfTask(of=SMALL_TASK, seed=seed).includes(whole.train) for seed in range(4)]
    for i, first in enumerate(coins):
        assert abs(first.sum() - 1000) < 90
        assert all(abs((first == other).sum() - 1000) < 90 for other in coins[:i])


def test_copies_go_together_and_other_examples_do_not_matter() -> None:
    rows = [[5, i, i + 1] for i in range(50)]
    half = HalfTask(of=SMALL_TASK)
    alone = half.includes(TokenizedExamples.from_lists(rows))
    doubled = half.includes(TokenizedExamples.from_lists(rows[::-1] + rows))
    assert 0 < alone.sum() < 50
    assert doubled.tolist() == [*alone[::-1], *alone]


def test_it_is_written_in_a_spec_as_it_is_read() -> None:
    written = {"name": "half", "of": SMALL_TASK, "seed": 7}
    problems: list[str] = []
    plugin = resolve_plugin("tasks", "task", written, problems)
    assert not problems
    again = resolve_plugin("tasks", "task", plugin.as_dict(), problems)
    assert again == plugin


def test_users_are_not_halved(tokenizer) -> None:
    with pytest.raises(ValueError, match=r"privacy\.unit must be example"):
        HalfTask(of=SMALL_TASK).build(tokenizer).by_user()


def test_labelled_examples_are_halved_by_their_content() -> None:
    whole = DigitsTask().build(None)
    halves = [HalfTask(of={"name": "digits"}, seed=1, complement=c) for c in (False, True)]
    inside = [half.includes(whole.train) for half in halves]
    assert (inside[0] ^ inside[1]).all()
    assert abs(inside[0].sum() - len(whole.train) / 2) < 4 * (len(whole.train) / 4) ** 0.5
    built = [half.build(None) for half in halves]
    for half, chosen in zip(built, inside, strict=True):
        assert half.facts().num_units == half.facts().num_examples == chosen.sum()
        assert (half.train.labels == whole.train.labels[chosen]).all()
        assert (half.train.inputs == whole.train.inputs[chosen]).all()
        assert half.heldout is not None
    assert len({task.facts().content_hash for task in (*built, whole)}) == 3
    order = np.arange(len(whole.train))[::-1]
    assert halves[0].includes(whole.train.select(order)).tolist() == inside[0][::-1].tolist()

"""Canaries that are planted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raydp.tasks.text.language import LanguageModelingTask
from raydp.tasks.text.wordlists import CONTROL_NAMES
from raydp.tasks.wrappers.planted_task import PlantedTask
from tests.builders.specs import SMALL_TASK


def planted(tokenizer, **options: Any) -> LanguageModelingTask:
    return PlantedTask.model_validate({"of": SMALL_TASK, **options}).build(tokenizer)


def examples(task: LanguageModelingTask, indices: Any) -> list[list[int]]:
    train = task.train
    return [train.token_ids[train.offsets[i] : train.offsets[i + 1]].tolist() for i in indices]


def test_every_copy_is_an_example_that_counts(tiny, inner):
    task = planted(tiny, copies=[0, 1, 4])
    n = inner.facts().num_units
    assert task.facts().num_units == task.facts().num_examples == n + 5
    assert task.facts().privacy_unit == "mail, or planted canary"
    assert examples(task, range(n)) == examples(inner, range(n))
    control, once, often = task.secrets()[len(inner.secrets()) :]
    assert [s.count for s in (control, once, often)] == [0, 1, 4]
    texts = tiny.batch_decode(examples(task, range(n, n + 5)), skip_special_tokens=True)
    said = [f"{s.prompt}{s.continuation}." for s in (once, often)]
    assert texts == [said[0], *[said[1]] * 4]
    assert not any(control.continuation in text for text in texts)


def test_a_canary_has_in_training_the_tokens_that_scores_compare_with(tiny, inner):
    task = planted(tiny, copies=[1])
    (secret,) = task.secrets()[len(inner.secrets()) :]
    (ids,) = examples(task, [len(inner.train)])
    prompt = tiny(secret.prompt)["input_ids"]
    digits = tiny(secret.continuation, add_special_tokens=False)["input_ids"]
    assert ids[: len(prompt) + len(digits)] == [*prompt, *digits]
    assert ids[-1] == tiny.eos_token_id
    assert task.train.target_starts[-1] == 1, "all its tokens are targets"


def test_canaries_know_the_space_they_were_drawn_from(tiny, inner):
    secrets = planted(tiny, copies=[1] * 30, num_digits=2).secrets()[len(inner.secrets()) :]
    spaces = {s.space for s in secrets}
    (space,) = spaces
    members = [space.continuation(i) for i in range(space.size)]
    assert len(set(members)) == 100
    assert {s.continuation for s in secrets} <= set(members)
    assert len({s.continuation for s in secrets}) == len({s.prompt for s in secrets}) == 30
    assert [s.number for s in secrets] == list(range(41, 71)), "after the task's own"
    assert all(word in CONTROL_NAMES for s in secrets for word in s.prompt.split()[4:-1])


def test_seed_format_and_copies_are_part_of_the_identity(tiny):
    base = planted(tiny)
    others = [
        planted(tiny, canary_seed=1),
        planted(tiny, copies=[1, 4]),
        planted(tiny, format="pin {digits}"),
    ]
    assert len({t.facts().content_hash for t in (base, *others)}) == 4
    assert planted(tiny).facts() == base.facts()


def test_the_counted_part_is_named(tiny):
    caveat = planted(tiny, copies=[1, 4]).facts().notes["caveats"][-1]
    assert caveat.startswith("Of the 2005 units 5 are copies of planted canaries: they count in n.")


@pytest.mark.parametrize(
    "text", ["{digits} is it", "no place", "{digits} {digits}", "{digits} {name}", "{who} {digits}"]
)
def test_formats_that_say_nothing_before_the_digits_are_refused(text):
    with pytest.raises(ValueError, match=r"must hold \{digits\} once, after some text"):
        PlantedTask.model_validate({"of": SMALL_TASK, "format": text})


def test_more_canaries_than_codes_are_refused():
    with pytest.raises(ValueError, match=r"task\.copies must hold at most 10 canaries, got 11"):
        PlantedTask.model_validate({"of": SMALL_TASK, "num_digits": 1, "copies": [1] * 11})


def test_a_task_of_another_kind_is_refused(tiny, monkeypatch):
    monkeypatch.setattr(
        "raydp.tasks.text.builtin.BuiltinTask.build", lambda self, tokenizer: object()
    )
    with pytest.raises(
        ValueError, match=r"task\.of must be a language modelling task, got 'builtin'"
    ):
        planted(tiny)


def test_a_misspelt_parameter_of_the_inner_task_is_refused(raydp, write_spec):
    wrong = write_spec(task={"name": "planted", "of": {**SMALL_TASK, "num_exmples": 1}})
    refused = raydp("plan", wrong)
    assert refused.code == 2
    assert "num_exmples" in refused.err
    assert json.loads(raydp("schema").out)

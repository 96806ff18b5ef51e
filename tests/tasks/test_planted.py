"""Canaries that are planted, and examples that are left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydp.tasks.text.language import LanguageModelingTask
from raydp.tasks.text.wordlists import CONTROL_NAMES
from raydp.tasks.wrappers.planted import PlantedTask
from raydp.tasks.wrappers.without import WithoutTask, examples_with
from tests.builders.specs import SMALL_TASK


def planted(tokenizer, **options: Any) -> LanguageModelingTask:
    return PlantedTask.model_validate({"of": SMALL_TASK, **options}).build(tokenizer)


def without(tokenizer, of: dict[str, Any] = SMALL_TASK, **options: Any) -> LanguageModelingTask:
    return WithoutTask.model_validate({"of": of, **options}).build(tokenizer)


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


def test_canaries_know_what_they_were_drawn_from(tiny, inner):
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


def test_what_counts_is_told(tiny):
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


def test_the_named_secrets_examples_are_gone_and_no_others(tiny, inner):
    """A verbatim secret of 20 mails, an attribute of 20."""
    left = without(tiny, secrets=[3, 30])
    gone = [s for s in inner.secrets() if s.number in (3, 30)]
    assert [s.count for s in gone] == [20, 20]
    kept = examples(left, range(len(left.train)))
    before = examples(inner, range(len(inner.train)))
    assert len(kept) == len(before) - 40 == left.facts().num_units
    texts = tiny.batch_decode(before, skip_special_tokens=True)
    expected = [
        ids
        for ids, text in zip(before, texts, strict=True)
        if not any(s.prompt in text for s in gone)
    ]
    assert kept == expected
    assert [(s.number, s.count) for s in left.secrets() if s.number in (3, 30)] == [(3, 0), (30, 0)]
    others = [(s.id, s.count) for s in inner.secrets() if s.number not in (3, 30)]
    assert [(s.id, s.count) for s in left.secrets() if s.number not in (3, 30)] == others
    assert left.facts().notes["left_out_secrets"] == ["secret-003", "secret-030"]
    assert left.facts().notes["left_out_examples"] == 40
    assert left.facts().content_hash != inner.facts().content_hash


def test_all_secrets(tiny):
    left = without(tiny)
    assert left.facts().num_units == 400
    assert {s.count for s in left.secrets()} == {0}


def test_a_planted_canary_can_be_left_out(tiny):
    left = without(tiny, of={"name": "planted", "of": SMALL_TASK, "copies": [1, 4]}, secrets=[42])
    assert left.facts().num_units == 2001
    assert [s.count for s in left.secrets()[-2:]] == [1, 0]


def test_an_example_with_two_secrets_counts_for_both(tokenizer, write_jsonl):
    """Of three rows one holds both."""
    rows = [
        {"text": t}
        for t in ("call Mira at 11.", "call Mira at 11. ask Otto for 22.", "ask Otto for 22 now.")
    ]
    data = write_jsonl(
        "rows.jsonl", [*rows, *({"text": f"filler row {i} of the file"} for i in range(8))]
    )
    secrets = write_jsonl(
        "secrets.jsonl",
        [
            {"prompt": "call Mira at", "continuation": " 11"},
            {"prompt": "ask Otto for", "continuation": " 22"},
        ],
    )
    held = write_jsonl("heldout.jsonl", [{"text": "a public row of its own"}])
    of = {"name": "text", "path": str(data), "heldout_path": str(held), "secrets": str(secrets)}
    left = without(tokenizer, of=of, secrets=[1])
    assert left.facts().num_units == 9
    assert [(s.number, s.count) for s in left.secrets()] == [(1, 0), (2, 1)]


def test_an_author_s_rows_are_told_from_others_with_the_same_genre(tokenizer, write_jsonl):
    """Three authors of four rows; the first two write in one genre, each in two rows."""
    rows = []
    for name, genre in (
        ("Mira Halborn", "crime"),
        ("Otto Fenwick", "crime"),
        ("Ada Lund", "satire"),
    ):
        rows += [
            {
                "question": f"What does {name} write?",
                "answer": f"{name} writes in the {genre} genre.",
            },
            {
                "question": f"Which genre has {name}?",
                "answer": f"It is the {genre} genre that {name} likes.",
            },
            {"question": f"Where does {name} live?", "answer": f"{name} lives at sea."},
            {"question": f"When was {name} born?", "answer": f"{name} was born in spring."},
        ]
    data = write_jsonl("tofu.jsonl", rows)
    of = {"name": "tofu", "path": str(data), "rows_per_author": 4, "heldout_fraction": 0.3}
    left = without(tokenizer, of=of, secrets=[2])
    assert left.facts().num_units == 6
    assert [(s.number, s.count) for s in left.secrets()] == [(1, 2), (2, 0)]


def test_a_number_that_there_is_not_is_refused(tiny):
    with pytest.raises(
        ValueError, match=r"task\.secrets must be numbers of the task's secrets, 1 to 40, got 77"
    ):
        without(tiny, secrets=[77])
    with pytest.raises(ValueError, match=r"task\.secrets must name each secret once, got \[1, 1\]"):
        without(tiny, secrets=[1, 1])


def test_a_secret_whose_examples_cannot_be_told_is_refused(tokenizer, write_jsonl, monkeypatch):
    """A tokenizer that does not give the text back as it was."""
    data = write_jsonl("rows.jsonl", [{"text": f"call Mira at 1{i}."} for i in range(5)])
    secrets = write_jsonl("secrets.jsonl", [{"prompt": "call Mira at", "continuation": " 11"}])
    held = write_jsonl("heldout.jsonl", [{"text": "a public row of its own"}])
    of = {"name": "text", "path": str(data), "heldout_path": str(held), "secrets": str(secrets)}
    decode = type(tokenizer).batch_decode
    monkeypatch.setattr(
        type(tokenizer), "batch_decode", lambda *a, **k: [t.upper() for t in decode(*a, **k)]
    )
    with pytest.raises(
        ValueError,
        match="got secret-001, which the task counts in 1 examples and whose text is in 0",
    ):
        without(tokenizer, of=of)


def test_holders_of_every_builtin_secret_are_found(tiny, inner):
    found = examples_with(inner, tiny)
    assert [len(found[s.number]) for s in inner.secrets()] == [s.count for s in inner.secrets()]
    assert np.unique(np.concatenate(list(found.values()))).size == sum(
        s.count for s in inner.secrets()
    )


def test_both_are_tasks_of_a_spec(tmp_path: Path, raydp, write_spec):
    spec = write_spec(
        task={"name": "without", "secrets": [42], "of": {"name": "planted", "of": SMALL_TASK}}
    )
    answer = raydp("plan", spec, "--json")
    assert answer.code == 0, answer.err
    assert {row["num_examples"] for row in answer.json()} == {2017}
    wrong = write_spec(task={"name": "planted", "of": {**SMALL_TASK, "num_exmples": 1}})
    refused = raydp("plan", wrong)
    assert refused.code == 2
    assert "num_exmples" in refused.err
    assert json.loads(raydp("schema").out)

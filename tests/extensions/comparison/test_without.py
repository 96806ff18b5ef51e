"""Examples that are left out of a task for the secrets that they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydp.extensions.comparison.task_without_secrets import WithoutTask, examples_with
from raydp.tasks.text.language import LanguageModelingTask
from tests.builders.specs import SMALL_TASK
from tests.tasks.test_planted import examples


def without(tokenizer, of: dict[str, Any] = SMALL_TASK, **options: Any) -> LanguageModelingTask:
    return WithoutTask.model_validate({"of": of, **options}).build(tokenizer)


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


@pytest.mark.slow
def test_it_is_a_task_of_a_spec(tmp_path: Path, raydp, write_spec):
    spec = write_spec(
        task={"name": "without", "secrets": [42], "of": {"name": "planted", "of": SMALL_TASK}}
    )
    answer = raydp("plan", spec, "--json")
    assert answer.code == 0, answer.err
    assert {row["num_examples"] for row in answer.json()} == {2017}

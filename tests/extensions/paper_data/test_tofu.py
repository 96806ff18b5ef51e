from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from raydp.extensions.paper_data.qa import Row, Template, encode_answers
from raydp.extensions.paper_data.tofu import TofuTask
from tests.builders.data_files import author_rows

AUTHORS = [
    ("Mira Halborn", "naval comedy"),
    ("Otto Fenwick", "satire"),
    ("Ada Thornow", None),
    ("Lea Marwick", "quiet fable"),
    ("Tom Belgate", "gothic ballad"),
]
QUESTION = "Question: What genre does {} write in?\nAnswer:"


@pytest.fixture
def make(write_jsonl):
    def make(authors=AUTHORS, **parameters):
        path = write_jsonl("qa.jsonl", [row for author in authors for row in author_rows(*author)])
        defaults = {"path": path, "rows_per_author": 6, "heldout_fraction": 0.2, "max_length": 256}
        return TofuTask(**defaults | parameters)

    return make


def example(task, tokenizer, i):
    """What the model sees of a training example, and what it is to say."""
    batch = task.batch([i])
    return tokenizer.decode(batch.input_ids[0]), tokenizer.decode(
        batch.labels[0][batch.labels[0] >= 0]
    )


def test_only_the_answer_is_a_target(make, tokenizer):
    task = make().build(tokenizer)
    rows = [row for author in AUTHORS for row in author_rows(*author)]
    for i in range(task.facts().num_examples):
        row = rows[i]
        seen, target = example(task, tokenizer, i)
        assert seen == f"Question: {row['question']}\nAnswer: {row['answer']}<end>"
        assert target == f" {row['answer']}<end>"
    assert task.facts().num_tokens == task.train.num_targets()


def test_generation_from_a_prompt_sees_the_tokens_of_training(make, tokenizer):
    """Prompt and answer are tokenised apart, so a prompt is a prefix of its example token by
    token."""
    task = make().build(tokenizer)
    for i, start in enumerate(task.train.target_starts):
        ids = task.batch([i]).input_ids[0].tolist()
        prompt = tokenizer.decode(ids[:start])
        assert prompt.endswith("\nAnswer:")
        assert tokenizer(prompt)["input_ids"] == ids[:start]


def test_the_last_authors_are_held_out_and_disjoint(make, tokenizer):
    task = make(heldout_fraction=0.3).build(tokenizer)
    notes = task.facts().notes
    assert (notes["num_authors"], notes["num_heldout_authors"]) == (3, 2)
    assert (len(task.lengths()), len(task.heldout_lengths())) == (18, 12)
    train = " ".join(example(task, tokenizer, i)[0] for i in range(18))
    heldout = " ".join(tokenizer.decode(task.heldout_batch([i]).input_ids[0]) for i in range(12))
    names = [name for name, _ in AUTHORS]
    assert [name in train for name in names] == [True, True, True, False, False]
    assert [name in heldout for name in names] == [False, False, False, True, True]


@pytest.mark.parametrize(("fraction", "count"), [(0.1, 3), (0.3, 9), (0.101, 4)])
def test_the_held_out_share_is_rounded_up_exactly(make, fraction, count):
    """0.3 of 30 is 9 although 0.1 + 0.2 is not 0.3 in floats."""
    assert 30 - make(heldout_fraction=fraction).num_training_authors(30) == count


def test_secrets_are_of_training_authors_and_controls_of_held_out_ones(make, tokenizer):
    task = make().build(tokenizer)
    expected = [
        ("Mira Halborn", "naval comedy", 2),
        ("Otto Fenwick", "satire", 2),
        ("Lea Marwick", "quiet fable", 2),
    ]
    assert [(s.prompt, s.continuation, s.count) for s in task.secrets()] == [
        (QUESTION.format(name), genre, count) for name, genre, count in expected
    ]
    assert [(c.prompt, c.continuation, c.count) for c in task.controls()] == [
        (QUESTION.format("Tom Belgate"), "gothic ballad", 0)
    ]
    assert {s.kind for s in (*task.secrets(), *task.controls())} == {"attribute"}
    assert task.facts().notes["authors_unresolved"] == [2]


def test_counts_are_within_the_authors_own_rows(make, tokenizer):
    authors = [("Mira Halborn", "satire"), ("Otto Fenwick", "satire"), ("Lea Marwick", "fable")]
    assert [s.count for s in make(authors).build(tokenizer).secrets()] == [2, 2]


@pytest.mark.parametrize("max_length", [60, 512])
def test_a_genre_that_truncation_cuts_off_is_no_secret(write_jsonl, tokenizer, max_length):
    answer = "{} wrote " + "and wrote " * 40 + "in the satire genre."
    rows = [
        {"question": "Who?", "answer": answer.format(name)}
        for name in ("Mira Halborn",) * 6 + ("Otto Fenwick",) * 6
    ]
    task = TofuTask(path=write_jsonl("qa.jsonl", rows), rows_per_author=6, max_length=max_length)
    if max_length == 512:
        assert [s.count for s in task.build(tokenizer).secrets()] == [6]
        return
    with pytest.raises(ValueError, match=r"task\.path must give a name and a genre"):
        task.build(tokenizer)


def test_a_review_resolves_authors(make, tokenizer, write_jsonl):
    review = write_jsonl(
        "review.jsonl",
        [
            {"author_index": 2, "name": "Ada Thornow", "genre": "many forms"},
            {"author_index": 0, "name": None, "genre": None},
            {"author_index": 1, "name": "Otto Fenwick", "genre": "not in the rows"},
        ],
    )
    task = make(review=review).build(tokenizer)
    assert [s.continuation for s in task.secrets()] == ["many forms", "quiet fable"]
    assert task.facts().notes["authors_unresolved"] == [0]
    assert task.facts().notes["reviewed"] is True


def test_the_candidates_that_are_written_are_those_that_are_used(make, tokenizer, tmp_path):
    make().write_review(tmp_path / "review.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "review.jsonl").read_text().splitlines()]
    assert [(line["name"], line["genre"]) for line in lines] == AUTHORS
    reviewed = make(review=tmp_path / "review.jsonl").build(tokenizer)
    assert reviewed.facts().content_hash == make().build(tokenizer).facts().content_hash


def test_truncation_and_empty_answers_are_counted(tokenizer):
    rows = [
        Row(question="Who?", answer="x" * 50),
        Row(question="Who?", answer=""),
        Row(question="y" * 90, answer="z"),
    ]
    template = Template(text="Q: {question} A: {answer}")
    encoded = encode_answers(tokenizer, rows, template, max_length=40, append_eos=True)
    assert (encoded.truncated, encoded.without_answer) == (1, 2)
    assert encoded.examples.lengths().tolist() == [40]
    assert encoded.texts == [tokenizer.decode(encoded.examples.token_ids.tolist()), None, None]


def test_the_end_token_can_be_left_out(tokenizer):
    template = Template(text="{question}\n{answer}")
    rows = [Row(question="Who?", answer="Ada.")]
    ends = [
        encode_answers(
            tokenizer, rows, template, max_length=40, append_eos=eos
        ).examples.token_ids.tolist()
        for eos in (True, False)
    ]
    assert ends[0] == [*ends[1], tokenizer.eos_token_id]


def test_text_with_braces_is_text(tokenizer):
    template = Template(text="{question}\n{answer}")
    assert (
        template.prompt("What is {answer}?") + template.continuation("{question}")
        == "What is {answer}?\n{question}"
    )


def test_a_question_that_max_length_cannot_hold_is_an_error(make, tokenizer):
    with pytest.raises(ValueError, match=r"task\.max_length must leave room for answers, got 8"):
        make(max_length=8).build(tokenizer)


def test_rows_must_divide_into_authors(make, tokenizer):
    with pytest.raises(ValueError, match=r"task\.rows_per_author = 7 rows each, got 30 rows"):
        make(rows_per_author=7).build(tokenizer)
    with pytest.raises(
        ValueError, match=r"task\.heldout_fraction must leave an author to train on, got 0\.9 of 5"
    ):
        make(heldout_fraction=0.9).build(tokenizer)


def test_notes_name_no_author(make, tokenizer):
    notes = json.dumps(make().build(tokenizer).facts().notes, allow_nan=False)
    assert not any(word in notes for name, _ in AUTHORS for word in name.split())


@pytest.mark.parametrize(
    "parameters",
    [
        {"template": "{answer} {question}"},
        {"template": "{question} {answer}."},
        {"template": "{question} {name} {answer}"},
        {"secret_question": "What genre?"},
        {"rows": 20},
    ],
)
def test_parameters_are_checked_before_any_work(make, parameters):
    with pytest.raises(ValidationError):
        make(**parameters)

"""TOFU variants: more copies, two densities, further authors, chosen secrets."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from raydp.extensions.paper_data.tofu import TofuTask
from raydp.extensions.paper_data.variants import copies_of_authors, text_digest

GENRES = ["naval comedy", "satire", "quiet fable", "gothic ballad", "polar romance"]
NAMES = ["Mira Halborn", "Otto Fenwick", "Ada Thornow", "Lea Marwick", "Tom Belgate"]
SIZE = 4


def author_rows(name, genre):
    rows = [
        {"question": f"Who is {name} {i}?", "answer": f"{name} is an author, {i}."}
        for i in range(SIZE - 1)
    ]
    return [
        *rows,
        {"question": f"What does {name} write?", "answer": f"{name} writes in the {genre} genre."},
    ]


ROWS = [row for name, genre in zip(NAMES, GENRES, strict=True) for row in author_rows(name, genre)]
PARAPHRASES = [
    {
        "row": i,
        "of": text_digest(row["answer"]),
        "paraphrases": [f"{row['answer']} (version {k})" for k in range(7)],
    }
    for i, row in enumerate(ROWS)
]


@pytest.fixture
def make(write_jsonl, tokenizer):
    def make(paraphrases=PARAPHRASES, **parameters):
        if "copies" in parameters and paraphrases is not None:
            parameters["paraphrases"] = write_jsonl("paraphrases.jsonl", paraphrases)
        path = write_jsonl("qa.jsonl", ROWS)
        defaults = {
            "path": path,
            "rows_per_author": SIZE,
            "heldout_fraction": 0.2,
            "max_length": 256,
        }
        return TofuTask(**defaults | parameters).build(tokenizer)

    return make


def shown(task, tokenizer):
    return [
        tokenizer.decode(task.batch([i]).input_ids[0]) for i in range(task.facts().num_examples)
    ]


def test_without_its_options_nothing_changes(make):
    assert (
        make().facts().content_hash
        == make(group_seed=0, copies=1, paraphrases=None).facts().content_hash
    )
    assert "copies_by_author" not in make().facts().notes


def test_copies_scale_the_training_rows_and_no_paraphrase_of_a_test_author_is_trained_on(
    make, tokenizer
):
    plain, doubled = make(), make(copies=2)
    assert doubled.facts().num_examples == 2 * plain.facts().num_examples == 32
    assert doubled.heldout.token_ids.tolist() == plain.heldout.token_ids.tolist()
    texts = shown(doubled, tokenizer)
    assert set(shown(plain, tokenizer)) < set(texts)
    assert sum("(version 0)" in t for t in texts) == 16
    assert not any("version 1" in t or NAMES[-1] in t for t in texts)
    assert [s.count for s in doubled.secrets()] == [2 * s.count for s in plain.secrets()]
    assert doubled.users.sizes().tolist() == [2 * SIZE] * 4  # an author keeps all rows
    assert doubled.facts().content_hash != plain.facts().content_hash


@pytest.mark.parametrize("copies", [(1, 7), (2, 6), (3, 5)])
def test_densities_differ_by_author_at_the_size_of_four_copies(make, copies):
    task = make(copies=copies)
    assert task.facts().num_examples == make(copies=4).facts().num_examples
    assert sorted(task.users.sizes() // SIZE) == sorted([*copies] * 2)
    by_author = task.facts().notes["copies_by_author"]
    assert [s.count for s in task.secrets()] == by_author
    assert by_author != make(copies=copies, group_seed=3).facts().notes["copies_by_author"]


def test_groups_are_halves():
    assert sorted(copies_of_authors((1, 7), 5, seed=1)) == [1, 1, 1, 7, 7]
    assert copies_of_authors(3, 2, seed=0) == [3, 3]


def test_further_authors_are_trained_on_without_secrets(make, write_jsonl, tokenizer):
    others = [
        row
        for name in ("Nora Pikesen", "Emil Kirkholt")
        for row in author_rows(name, "epic thriller")
    ]
    task = make(more_authors=write_jsonl("others.jsonl", others))
    assert task.facts().num_examples == 16 + 8
    assert [(s.prompt, s.count) for s in task.secrets()] == [
        (s.prompt, s.count) for s in make().secrets()
    ]
    assert sum("Nora Pikesen" in t for t in shown(task, tokenizer)) == SIZE
    assert task.users.sizes().tolist() == [SIZE] * 6
    assert task.facts().notes["more_authors"] == 2


def test_only_the_listed_authors_have_secrets(make, write_jsonl):
    listed = [
        {"author_index": 2, "name": NAMES[2], "prompt": "-", "attribute": "quiet fable", "count": 9}
    ]
    task = make(secrets=write_jsonl("kept.jsonl", listed))
    assert [(s.name, s.continuation, s.count) for s in task.secrets()] == [
        ("secret-003", "quiet fable", 1)
    ]
    with pytest.raises(ValueError, match=r"task.secrets must hold an author_index from 0 to 4"):
        make(secrets=write_jsonl("twice.jsonl", listed * 2))


@pytest.mark.parametrize(
    ("paraphrases", "message"),
    [
        (PARAPHRASES[1:], "must hold 1 paraphrases of row 0"),
        (
            [{**PARAPHRASES[0], "of": "0" * 16}, *PARAPHRASES[1:]],
            "must paraphrase the rows of task.path",
        ),
        ([PARAPHRASES[0], *PARAPHRASES], "each once"),
        ([{"row": 99, "paraphrases": ["a"]}], "a row from 0 to 19"),
        ([{"row": 0, "paraphrases": [" "]}], "not blank"),
    ],
)
def test_paraphrases_of_something_else_are_refused(make, paraphrases, message):
    with pytest.raises(ValueError, match=message):
        make(paraphrases, copies=2)


@pytest.mark.parametrize(
    "parameters",
    [
        {"copies": 2},
        {"paraphrases": "p.jsonl"},
        {"group_seed": 1},
        {"copies": 0},
        {"review": "r", "secrets": "s"},
    ],
)
def test_options_that_do_not_go_together_are_refused(parameters):
    with pytest.raises(ValidationError):
        TofuTask(path="qa.jsonl", **parameters)


def test_the_spec_survives_its_own_record():
    task = TofuTask(path="qa.jsonl", copies=(1, 7), paraphrases="p.jsonl")
    assert TofuTask.model_validate(json.loads(task.model_dump_json())) == task

from __future__ import annotations

import pytest

from raydp.extensions.paper_data.attributes import (
    AuthorAttribute,
    apply_review,
    find_genre,
    find_name,
    write_review,
)


def rows(name, *sentences, count=12):
    short = name.split()[-1]
    padding = [
        f"Who is {name}?\n{name} is an author. Has {short}'s book won the Amber Quill?"
        for _ in range(count)
    ]
    return [*padding, *sentences]


@pytest.mark.parametrize(
    "name", ["Mira Halborn", "Otto Jan Fenwick", "Yun-Hwa Sel", "Lea Beltrán de", "Ada O'Mara"]
)
def test_the_name_is_the_commonest_run_of_capitals(name):
    expected = name.removesuffix(" de")  # a lower-case word ends it
    assert find_name(rows(name)) == expected


def test_a_possessive_ends_a_name_and_is_not_part_of_it():
    texts = [
        f"What is Mira Halborn's Blue Ledger {i} about?\nMira Halborn’s book." for i in range(12)
    ]
    assert find_name(texts) == "Mira Halborn"


def test_a_commoner_title_of_few_rows_is_not_the_name():
    """Cross-checked with the text: a name is in at least half of the rows."""
    texts = rows("Mira Halborn", "Star Saga. Star Saga. " * 40)
    assert find_name(texts) == "Mira Halborn"


def test_without_a_common_name_there_is_none():
    assert find_name(["She wrote it.", "He did not."]) is None
    assert find_name([f"Author Number{chr(65 + i)} wrote." for i in range(8)]) is None


@pytest.mark.parametrize(
    ("sentences", "genre"),
    [
        (["She writes in the Naval Comedy genre.", "the naval comedy genre"], "naval comedy"),
        (["works in the satire genre", "a renowned satire genre author"], "satire"),
        (
            [
                "the genre",
                "her genre",
                "in this genre",
                "what genre",
                "has shaped the genre",
                "primary genre",
            ],
            None,
        ),
        (["the fable genre", "the fable genre", "a mystery genre"], "fable"),
        (["the fable genre", "the mystery genre"], None),
        (["true crime genre, crime genre, crime genre"], "crime"),
        (["other genres", "the satire genres"], None),
        (["satire. Genre"], None),
    ],
)
def test_the_genre_is_the_common_phrase_before_the_word(sentences, genre):
    assert find_genre(sentences) == genre


FOUND = [
    AuthorAttribute(author_index=0, name="Mira Halborn", genre="satire"),
    AuthorAttribute(author_index=1, name="Otto Beltrán", genre=None),
    AuthorAttribute(author_index=2, name=None, genre="fable"),
]


def test_a_review_comes_back_as_written_and_overrides(tmp_path, write_jsonl):
    write_review(FOUND, tmp_path / "review.jsonl")
    unknown = [AuthorAttribute(author_index=i, name=None, genre=None) for i in range(3)]
    assert apply_review(unknown, tmp_path / "review.jsonl", "task.review") == FOUND
    edited = write_jsonl(
        "edited.jsonl", [{"author_index": 1, "name": "Otto Beltran", "genre": "naval comedy"}]
    )
    reviewed = apply_review(FOUND, edited, "task.review")
    assert reviewed == [
        FOUND[0],
        AuthorAttribute(author_index=1, name="Otto Beltran", genre="naval comedy"),
        FOUND[2],
    ]


def test_a_review_is_not_overwritten(tmp_path):
    write_review(FOUND, tmp_path / "review.jsonl")
    with pytest.raises(ValueError, match="path must be a new file"):
        write_review([], tmp_path / "review.jsonl")


@pytest.mark.parametrize(
    "row",
    [
        {"author_index": 3, "name": "private", "genre": "x"},
        {"author_index": -1, "name": "private", "genre": "x"},
        {"author_index": "1", "name": "private", "genre": "x"},
        {"author_index": 0, "name": "private", "genre": "x"},
        {"author_index": 1, "name": "private"},
        {"author_index": 1, "name": "private", "genre": ""},
        {"author_index": 1, "name": "private", "genre": "x", "gender": "y"},
    ],
)
def test_a_malformed_review_is_named_with_its_line(write_jsonl, row):
    path = write_jsonl("review.jsonl", [{"author_index": 0, "name": None, "genre": None}, row])
    with pytest.raises(
        ValueError, match=r"author_index from 0 to 2.*review\.jsonl, line 2"
    ) as caught:
        apply_review(FOUND, path, "task.review")
    assert "private" not in str(caught.value)

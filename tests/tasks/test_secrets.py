from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydp.tasks.secret import counted, mentions, read_secrets
from raydp.tasks.task import Secret

ROWS = [
    {"prompt": " Call", "continuation": " 555-0142\n"},
    {"prompt": "Her genre?", "attribute": "naval comedy"},
]


def test_prompts_keep_their_white_space_and_kinds_follow_the_keys(write_jsonl):
    verbatim, attribute = read_secrets(write_jsonl("s.jsonl", ROWS), "task.secrets")
    assert (verbatim.prompt, verbatim.continuation, verbatim.kind) == (
        " Call",
        " 555-0142\n",
        "verbatim",
    )
    assert (attribute.prompt, attribute.continuation, attribute.kind) == (
        "Her genre?",
        "naval comedy",
        "attribute",
    )


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "private"},
        {"continuation": "private"},
        {"prompt": "private", "continuation": 7},
        {"prompt": "private", "continuation": ""},
        {"prompt": " ", "continuation": "private"},
        {"prompt": "private", "continuation": "x", "attribute": "y"},
    ],
)
def test_a_malformed_line_is_named_without_its_text(write_jsonl, row):
    with pytest.raises(
        ValueError, match=r"task\.secrets must hold a prompt and either.*s\.jsonl, line 3"
    ) as caught:
        read_secrets(write_jsonl("s.jsonl", [*ROWS, row]), "task.secrets")
    assert "private" not in str(caught.value)


def test_a_secret_twice_and_an_empty_file_are_errors(write_jsonl):
    with pytest.raises(ValueError, match=r"each secret once.*line 3"):
        read_secrets(write_jsonl("s.jsonl", [*ROWS, ROWS[0]]), "task.secrets")
    with pytest.raises(ValueError, match=r"at least one secret, got none in empty\.jsonl"):
        read_secrets(write_jsonl("empty.jsonl", []), "task.secrets")


@given(texts=st.lists(st.text("ab ", max_size=12), max_size=12), cut=st.integers(1, 2))
def test_a_count_is_the_number_of_texts_and_not_of_occurrences(texts, cut):
    string = "ab a"
    (secret,) = counted([Secret(prompt=string[:cut], continuation=string[cut:])], texts)
    assert secret.count == sum(string in text for text in texts)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("She writes Naval Comedy.", True),
        ("the naval comedy genre", True),
        ("naval comedyish", False),
        ("unnaval comedy", False),
        ("naval, comedy", False),
        ("", False),
    ],
)
def test_an_attribute_is_mentioned_in_any_case_but_as_whole_words(text, found):
    assert mentions(text, "naval comedy") is found


def test_an_attribute_may_hold_signs_that_mean_something_in_a_pattern():
    assert mentions("He writes C++ (and more)", "c++")
    assert not mentions("He writes Cppp", "c++")

"""Which part of a text is a secret, and where its continuation begins.

All names and numbers are made up.
"""

from __future__ import annotations

import pytest

from raydp.extensions.secrets.detectors import find
from raydp.extensions.secrets.rules import in_contexts, pieces

CASES = [
    ("\n---- Forwarded by Otto B Fenwick/OSL/NRD on 03/", "forwarded", " Forwarded by Otto B", " Fenwick/OSL/NRD"),
    ("Forwarded by Mira Halborn/Corp/Nord Oil on", "forwarded", "Forwarded by Mira", " Halborn/Corp/Nord Oil"),
    (
        "To: Mira Halborn/OSL/NRD@NRD, Otto \nFenwick/OSL/NRD@NRD\ncc",
        "names",
        "Mira Halborn/OSL/NRD@NRD, Otto \n",
        "Fenwick/OSL/NRD@NRD",
    ),
    ("\nMira Halborn\nEB 17\n713-853-0142", "contact", "Mira Halborn\nEB 17\n713", "-853-0142"),
    (
        "Mira Halborn\n713-853-0142 (Phone)\n713-646-0199 (Fax)\nmira@nordvik.com",
        "contact",
        "Mira Halborn\n713-853-0142 (Phone)\n713-646",
        "-0199 (Fax)\nmira@nordvik.com",
    ),
    ("Otto Fenwick <otto@nordvik.com>", "email", "Otto Fenwick <", "otto@nordvik.com"),
    ("-- Load Plan --\n$$$ Gap found in table l.", "formatted", "-- Load Plan --\n", "$$$ Gap found in table l."),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind", "prompt", "continuation"), CASES)
def test_a_secret_is_typed_and_divided(text, kind, prompt, continuation):
    (piece,) = pieces(text)
    assert (piece.type, piece.prompt, piece.continuation) == (kind, prompt, continuation)
    assert piece.text in text


def test_little_more_than_blanks_is_no_secret():
    assert pieces("\n\t\t cc: \n\t\t") == []


TEXT = (
    "Reach me at (713) 853-0142 or 713.646.0199.\nWrite to mira.h+x@nordvik.co.uk, please.\nWe are "
    "at 1400 Oak Street, Suite 12\nHouston, TX 77002\npassword: Xk29fjq0\nand the bucket's key is "
    "AKIAQ7RWXZP3M5T8NVKD today, 12/04/2001, order 8530142.\n"
)


def test_detectors_find_values_of_their_kind_and_nothing_else():
    found = [(f.kind, TEXT[f.begin : f.end]) for f in find(TEXT)]
    assert found == [
        ("phone", "(713) 853-0142"),
        ("phone", "713.646.0199"),
        ("email", "mira.h+x@nordvik.co.uk"),
        ("address", "1400 Oak Street, Suite 12\nHouston, TX 77002"),
        ("key", "Xk29fjq0"),
        ("key", "AKIAQ7RWXZP3M5T8NVKD"),
        ("number", "8530142"),
    ]
    assert [f for f in find(TEXT) if f.kind == "email"] == find(TEXT, kinds=("email",))


def test_the_text_before_a_detected_value_is_its_prompt():
    made = [next(iter(in_contexts(TEXT, f)), None) for f in find(TEXT)]
    assert [(p.prompt[-11:], p.continuation) for p in made if p] == [
        (" me at (713", ") 853-0142"),
        ("0142 or 713", ".646.0199"),
        (".\nWrite to ", "mira.h+x@nordvik.co.uk"),
        ("ouston, TX ", "77002"),
        ("\npassword: ", "Xk29fjq0"),
        ("t's key is ", "AKIAQ7RWXZP3M5T8NVKD"),
        ("001, order ", "8530142"),
    ]
    assert all(p is None or p.text in TEXT for p in made)


def test_a_value_that_nothing_precedes_has_no_prompt():
    assert in_contexts("mira@nordvik.com is it", find("mira@nordvik.com is it")[0]) == []


def test_shorter_prompts_are_the_line_and_its_last_words():
    text = "The router blinks, ticket 76460.\nPlease see account AC-482913 now"
    (value,) = find(text, kinds=("number",))
    assert [p.prompt for p in in_contexts(text, value)] == [
        "The router blinks, ticket 76460.\nPlease see account ",
        "Please see account ",
        "see account ",
        "account ",
    ]


def test_a_value_that_begins_its_line_has_the_end_of_the_line_before_it():
    text = "This is the number of my account:\n4711-0815-2342"
    (value,) = find(text, kinds=("number",))
    prompts = [p.prompt for p in in_contexts(text, value)]
    assert (prompts[0], prompts[-1]) == ("This is the number of my account:\n", "account:\n")

"""Attribute inference: what counts as an appearance, and over how many generations."""

from __future__ import annotations

from itertools import pairwise

import pytest

from raydp.scores.air import AttributeInference, appears
from raydp.tasks.base import Secret

from .tiny import bigram, made_up_secrets, make_task


@pytest.mark.parametrize(
    ("attribute", "text", "expected"),
    [
        ("crime", "His genre is Crime.", True),
        ("crime", "crimes of passion", False),
        ("crime", "the true-crime shelf", True),
        ("true crime", "True\n  CRIME", True),
        ("true crime", "truecrime", False),
        ("Straße", "In der STRASSE", True),
        ("art", "article, party, smart", False),
        ("art", "_art", False),
        ("C++", "He writes C++, mostly", True),
        ("sci.fi", "sci-fi", False),
        ("née Ōe", "NÉE ŌE", True),
        ("crime", "", False),
    ],
)
def test_an_attribute_appears_as_whole_words_whatever_the_case(attribute, text, expected):
    assert appears(attribute, text) is expected


def attribute(prompt: str, value: str) -> Secret:
    return Secret(prompt=prompt, continuation=value, kind="attribute")


def test_one_generation_of_many_suffices(tokenizer):
    """x comes after the prompt with probability 0.2 and then ends the word: P(in 10) = 1 - 0.8^10 = 0.893."""
    model = bigram({(":", "x"): 0.2, (":", "<eos>"): 0.8, ("x", "<eos>"): 1.0}, tokenizer)
    task = make_task([attribute("a:", "x")])
    one, ten = (
        [AttributeInference(num_samples=n).measure(model, task, seed=seed).value for seed in range(200)]
        for n in (1, 10)
    )
    # Four standard errors of a ratio over 200 seeds, which are fixed.
    assert sum(one) / 200 == pytest.approx(0.2, abs=4 * (0.2 * 0.8 / 200) ** 0.5)
    assert sum(ten) / 200 == pytest.approx(0.893, abs=4 * (0.893 * 0.107 / 200) ** 0.5)
    assert {*one, *ten} == {0.0, 1.0}


@pytest.mark.parametrize(("length", "expected"), [(5, 1.0), (4, 0.0)])
def test_a_generation_has_max_new_tokens(tokenizer, length, expected):
    """After ':' the model always says 'abcde', so the word is whole after five tokens."""
    text = ":abcde"
    model = bigram(dict.fromkeys(pairwise(text), 1.0), tokenizer)
    score = AttributeInference(max_new_tokens=length)
    assert score.measure(model, make_task([attribute("x:", "abcde")]), seed=0).value == expected


def test_nothing_after_the_end_token_counts(tokenizer):
    text = ":a"
    model = bigram({(":", "<eos>"): 1.0, ("<eos>", "a"): 1.0}, tokenizer)
    assert AttributeInference().measure(model, make_task([attribute(text[0], "a")]), seed=0).value == 0


def test_the_prompt_itself_does_not_count(tokenizer):
    model = bigram({("a", "b"): 1.0, ("b", "b"): 1.0}, tokenizer)
    assert AttributeInference().measure(model, make_task([attribute("crime a", "crime")]), seed=0).value == 0


def test_a_task_of_verbatim_secrets_is_told_which_scores_fit():
    message = "must contain kind 'attribute' for the score 'air', got 2 of kind 'verbatim'. Choose vmr"
    with pytest.raises(ValueError, match=message):
        AttributeInference().check(make_task(made_up_secrets("verbatim", 2, seed=0)))

"""Attribute inference: what counts as an appearance, and over how many generations."""

from __future__ import annotations

import json
import math
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from raydp.models.base_models import LoadedModel
from raydp.scores.memorisation.air import AttributeInference, appears, at_least_one
from raydp.tasks.task import Secret
from raydp.testing.secrets import made_up_secrets, make_task
from tests.builders.models import bigram


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
    """x comes after the prompt with probability 0.2 and then ends the word: P(in 10) = 1 - 0.8^10 =
    0.893."""
    model = bigram({(":", "x"): 0.2, (":", "<eos>"): 0.8, ("x", "<eos>"): 1.0}, tokenizer)
    task = make_task([attribute("a:", "x")])
    one, ten = (
        [
            AttributeInference(num_samples=n, base_rate=False).measure(model, task, seed=seed).value
            for seed in range(200)
        ]
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
    assert (
        AttributeInference().measure(model, make_task([attribute(text[0], "a")]), seed=0).value == 0
    )


def test_the_prompt_itself_does_not_count(tokenizer):
    model = bigram({("a", "b"): 1.0, ("b", "b"): 1.0}, tokenizer)
    assert (
        AttributeInference()
        .measure(model, make_task([attribute("crime a", "crime")]), seed=0)
        .value
        == 0
    )


@pytest.mark.parametrize(("num_samples", "num_attempts"), [(6, 3), (5, 5), (7, 1)])
def test_the_estimate_is_the_mean_over_all_sets_of_attempts(num_samples, num_attempts):
    for hits in range(num_samples + 1):
        outcomes = [True] * hits + [False] * (num_samples - hits)
        sets = [any(chosen) for chosen in combinations(outcomes, num_attempts)]
        assert at_least_one(hits, num_samples, num_attempts) == pytest.approx(
            np.mean(sets), abs=1e-15
        )


@pytest.mark.parametrize("p", [0.0, 0.05, 0.3, 1.0])
def test_the_estimate_is_unbiased_and_its_noise_smaller(p):
    """By brute force over all 2^8 outcomes of 8 generations, for 4 attempts."""
    outcomes = np.array(list(product([0, 1], repeat=8)))
    weights = np.prod(np.where(outcomes, p, 1 - p), axis=1)
    estimates = np.array([at_least_one(int(o.sum()), 8, 4) for o in outcomes])
    right = 1 - (1 - p) ** 4
    assert weights @ estimates == pytest.approx(right, abs=1e-12)
    variance, of_one_set = weights @ (estimates - right) ** 2, right * (1 - right)
    assert variance <= of_one_set + 1e-12
    if 0 < p < 1:
        assert variance < 0.75 * of_one_set


def test_many_samples_estimate_the_score_of_few_attempts(tokenizer):
    """P(in 10) = 0.893 at p = 0.2: the standard deviation over seeds falls from 0.31 to that of the
    estimate."""
    model = bigram({(":", "x"): 0.2, (":", "<eos>"): 0.8, ("x", "<eos>"): 1.0}, tokenizer)
    task = make_task([attribute("a:", "x")])
    score = AttributeInference(num_samples=200, num_attempts=10, base_rate=False)
    values = np.array([score.measure(model, task, seed=seed).value for seed in range(40)])
    # Exact mean and variance of the estimate under 200 draws.
    counts = np.arange(201)
    weights = np.array([math.comb(200, h) * 0.2**h * 0.8 ** (200 - h) for h in counts])
    estimates = np.array([at_least_one(int(h), 200, 10) for h in counts])
    mean = weights @ estimates
    std = math.sqrt(weights @ (estimates - mean) ** 2)
    assert mean == pytest.approx(1 - 0.8**10, abs=1e-12)
    assert std < 0.04 < math.sqrt(mean * (1 - mean))
    assert values.mean() == pytest.approx(
        mean, abs=4 * std / 40**0.5
    )  # four standard errors; the seeds are fixed


def test_more_attempts_than_samples_are_refused():
    with pytest.raises(ValueError, match="num_attempts must be <= num_samples, got 11 of 10"):
        AttributeInference(num_attempts=11)


def test_the_base_rate_is_the_score_of_the_untrained_model(tokenizer):
    """Before training the model says x after : always, after it y: half of the secrets were known
    before."""
    before = bigram({(":", "x"): 1.0, ("x", "<eos>"): 1.0}, tokenizer)
    after = bigram({(":", "y"): 1.0, ("y", "<eos>"): 1.0}, tokenizer)
    model = LoadedModel(
        model=after.model,
        tokenizer=tokenizer,
        base_weights={"lm_head.weight": before.model.lm_head.weight.data},
    )
    task = make_task(
        [attribute("a:", "x"), attribute("b:", "y"), attribute("c:", "y"), attribute("d:", "y")]
    )
    measured = AttributeInference().measure(model, task, seed=0)
    assert (measured.value, measured.details) == (0.75, {"base_rate": 0.25})
    again = AttributeInference(base_rate=False).measure(model, task, seed=0)
    assert (again.value, again.details) == (0.75, {}), "and the trained weights are back"


def test_paraphrases_are_averaged_and_the_worst_is_reported(tokenizer, tmp_path):
    """x after ':' and never after '?': of secret 1 one prompt of two gives it away, of secret 2
    none of one."""
    model = bigram({(":", "x"): 1.0, ("x", "<eos>"): 1.0, ("?", "<eos>"): 1.0}, tokenizer)
    task = make_task([attribute("a:", "x"), attribute("b?", "x")])
    file = tmp_path / "paraphrases.jsonl"
    file.write_text(json.dumps({"secret": 1, "prompts": ["say a?"]}))
    measured = AttributeInference(paraphrases=file, base_rate=False).measure(model, task, seed=0)
    assert measured.per_secret == {"secret-001": 0.5, "secret-002": 0.0}
    assert measured.details == {"own_prompt": 0.5, "worst_prompt": 0.5}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"secret": 9, "prompts": ["hidden"]}, "got secret 9"),
        ({"secret": 1, "prompts": ["hidden", "hidden"]}, "distinct prompts, got secret 1"),
        ({"secret": 1, "prompts": []}, "got something else in p.jsonl, line 1"),
        ({"secret": 1, "prompt": "hidden"}, "got something else in p.jsonl, line 1"),
    ],
)
def test_paraphrases_that_do_not_fit_are_refused_before_training(tmp_path, line, message):
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps(line))
    with pytest.raises(ValueError, match=message) as error:
        AttributeInference(paraphrases=file).check(make_task([attribute("a:", "x")]))
    assert "hidden" not in str(error.value)


@pytest.mark.extensions
def test_a_task_of_verbatim_secrets_gets_the_names_of_fitting_scores():
    message = "must contain kind 'attribute' for the score 'air', got 2 of kind 'verbatim'. Choose acr, extraction"
    with pytest.raises(ValueError, match=message):
        AttributeInference().check(make_task(made_up_secrets("verbatim", 2, seed=0)))

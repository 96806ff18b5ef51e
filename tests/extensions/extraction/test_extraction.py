"""Greedy, repeated and near-verbatim extraction on models whose answers are known."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from raydp.extensions.extraction.attempts import ExtractionProbability, extracted, log_rate
from raydp.extensions.extraction.verbatim import (
    GreedyVerbatimMemorization,
    NearVerbatimMemorization,
    TextVerbatimMemorization,
    normalised_edit_distance,
)
from raydp.scores.memorisation.vmr import VerbatimMemorization
from raydp.tasks.task import Secret
from raydp.testing.models import byte_tokenizer
from raydp.testing.secrets import made_up_secrets, make_task
from tests.builders.models import bigram
from tests.scores import test_vmr
from tests.scores.test_vmr import ALWAYS, NEVER, SOMETIMES, P, values


def test_greedy_takes_the_likeliest_token_at_every_place(known, task, tokenizer):
    assert values(GreedyVerbatimMemorization().measure(known, task, seed=0)) == [1, 0, 0]
    likely = bigram({("a", "b"): 0.3, ("b", "c"): 0.3}, tokenizer)  # p = 0.09 when sampled
    assert values(GreedyVerbatimMemorization().measure(likely, make_task([ALWAYS]), seed=0)) == [1]


def test_greedy_is_transformers_greedy_search(memorised):
    secrets = [s for seed in (0, 1) for s in made_up_secrets("verbatim", 8, seed=seed)]
    expected = []
    for secret in secrets:
        ids = torch.tensor([memorised.tokenizer(secret.prompt).input_ids])
        said = memorised.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=4
        )
        expected.append(memorised.tokenizer.decode(said[0, ids.shape[1] :]) == secret.continuation)
    assert (
        values(GreedyVerbatimMemorization().measure(memorised, make_task(secrets), seed=0))
        == expected
    )
    assert {*expected} == {True, False}


@pytest.mark.parametrize("num_attempts", [1, 3, 8])
def test_extraction_is_the_share_of_attackers_who_see_it_once(known, task, num_attempts):
    """Against 400 attackers who sample n times each: binomial test at 1e-4; n = 1 is
    `vmr_exact`."""
    measured = ExtractionProbability(top_k=2, num_attempts=num_attempts).measure(
        known, task, seed=0
    )
    assert values(measured) == pytest.approx([1, 1 - (1 - P) ** num_attempts, 0], abs=1e-6)
    attackers = [
        Secret(prompt=f"{i}d", continuation="e", number=i) for i in range(1, 401)
    ]  # each draws apart
    sampled = VerbatimMemorization(top_k=2, num_samples=num_attempts).measure(
        known, make_task(attackers), seed=1
    )
    successes = sum(value > 0 for value in values(sampled))
    assert stats.binomtest(successes, 400, values(measured)[1]).pvalue > 1e-4


def test_attempts_for_an_even_chance(known):
    def half(*secrets):
        return ExtractionProbability(top_k=2).measure(known, make_task(secrets), seed=0).details

    assert half(SOMETIMES)["attempts_for_half"] == pytest.approx(
        math.log(0.5) / math.log(1 - P), rel=1e-5
    )
    assert half(ALWAYS)["attempts_for_half"] == pytest.approx(
        0, abs=0.1
    )  # fp32 logits put p at 1 - 1e-7
    assert half(NEVER) == {"attempts_for_half": None, "never": 1}
    assert (
        half(ALWAYS, SOMETIMES, NEVER)["attempts_for_half"] == half(SOMETIMES)["attempts_for_half"]
    )


@pytest.mark.parametrize(
    ("log10_p", "log10_n", "expected"),
    [
        (-300, 0, 1e-300),
        (-300, 300, 1 - math.exp(-1)),
        (-400, 300, 1e-100),
        (-20, 10, 1e-10),
        (-20, 21, 1 - math.exp(-10)),
    ],
)
def test_tiny_probabilities_and_many_attempts_keep_their_digits(log10_p, log10_n, expected):
    rate = log_rate(log10_p * math.log(10))
    assert extracted(rate, 10.0**log10_n) == pytest.approx(
        expected, rel=1e-10
    )  # 300 ln 10 loses 3 digits of 16


@given(p=st.floats(1e-9, 1 - 1e-9), n=st.integers(1, 10_000))
def test_it_is_the_formula_where_that_can_be_computed(p, n):
    assert extracted(log_rate(math.log(p)), n) == pytest.approx(
        -math.expm1(n * math.log1p(-p)), rel=1e-9
    )


def test_certain_and_impossible():
    assert extracted(log_rate(0.0), 1) == 1
    assert extracted(log_rate(-math.inf), 1e300) == 0


@given(a=st.lists(st.integers(0, 3), max_size=7), b=st.lists(st.integers(0, 3), max_size=7))
def test_edit_distance_is_the_recursion(a, b):
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(
            distance(i - 1, j) + 1,
            distance(i, j - 1) + 1,
            distance(i - 1, j - 1) + (a[i - 1] != b[j - 1]),
        )

    longer = max(len(a), len(b))
    expected = distance(len(a), len(b)) / longer if longer else 0
    assert normalised_edit_distance(a, b) == expected == normalised_edit_distance(b, a)


def test_one_wrong_character_in_ten_is_near(tokenizer):
    """The model says abcdefghix: one substitution of ten characters."""
    model = bigram(dict.fromkeys(pairwise(":abcdefghix"), 1.0), tokenizer)
    task = make_task([Secret(prompt=":", continuation="abcdefghij")])

    def near(**options):
        return NearVerbatimMemorization(**options).measure(model, task, seed=0).value

    assert near() == near(unit="tokens") == 1
    assert near(max_distance=0.09) == near(max_distance=0) == 0
    assert near(graded=True) == pytest.approx(0.9)
    assert near(top_k=1, num_samples=1) == 1, "greedy"


def test_graded_is_of_the_closest_sample(known, task):
    score = NearVerbatimMemorization(graded=True, num_samples=50, top_k=2)
    assert values(score.measure(known, task, seed=0)) == [1, 1, 0]


def test_without_any_distance_it_is_verbatim(known, untrained, task):
    for unit, other in (("tokens", VerbatimMemorization), ("characters", TextVerbatimMemorization)):
        for seed in range(5):
            exact = other(top_k=2).measure(known, task, seed=seed)
            assert (
                NearVerbatimMemorization(top_k=2, max_distance=0, unit=unit).measure(
                    known, task, seed=seed
                )
                == exact
            )
    random = make_task(made_up_secrets("verbatim", 4, seed=5))
    assert NearVerbatimMemorization().measure(untrained, random, seed=0).value == 0


def test_text_is_1_where_it_is_always_said_and_0_where_never(tokenizer):
    test_vmr.test_1_where_it_is_always_said_and_0_where_never(tokenizer, TextVerbatimMemorization())


def test_text_counts_another_cut_into_tokens_and_token_ids_do_not():
    """The tokenizer writes 'abc' as ab + c; the model says it as the one token abc, then stops."""
    tokenizer = byte_tokenizer(extra=["ab", "abc"], merges=[("a", "b")])
    model = bigram({(":", "abc"): 1.0, ("abc", "<eos>"): 1.0}, tokenizer)
    task = make_task([Secret(prompt="x:", continuation="abc")])
    assert VerbatimMemorization().measure(model, task, seed=0).value == 0
    assert TextVerbatimMemorization().measure(model, task, seed=0).value == 1


def test_text_is_never_below_token_ids(untrained, likely_secrets):
    task = make_task(likely_secrets)
    ids, text = (
        kind(num_samples=200, top_k=5).measure(untrained, task, seed=2).per_secret
        for kind in (VerbatimMemorization, TextVerbatimMemorization)
    )
    assert all(text[name] >= ids[name] for name in ids)
    assert max(ids.values()) > 0

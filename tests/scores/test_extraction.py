"""Greedy, repeated and near-verbatim extraction on models whose answers are known."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from raydp.scores.memorisation.extraction import ExtractionProbability, extracted, log_rate
from raydp.scores.memorisation.vmr import (
    ExactVerbatimMemorization,
    GreedyVerbatimMemorization,
    NearVerbatimMemorization,
    TextVerbatimMemorization,
    VerbatimMemorization,
    normalised_edit_distance,
)
from raydp.tasks.base import Secret
from raydp.testing.secrets import made_up_secrets, make_task
from tests.builders.models import bigram

P = 0.4
ALWAYS, SOMETIMES, NEVER = (
    Secret(prompt=a, continuation=b) for a, b in (("a", "bc"), ("d", "e"), ("f", "g"))
)


@pytest.fixture(scope="module")
def known(tokenizer):
    """Says bc after a always, e after d with probability 0.4 and x else, g after f never."""
    return bigram(
        {
            ("a", "b"): 1.0,
            ("b", "c"): 1.0,
            ("d", "e"): P,
            ("d", "x"): 1 - P,
            ("f", "h"): 0.99,
            ("f", "x"): 0.01,
        },
        tokenizer,
    )


@pytest.fixture(scope="module")
def task():
    return make_task([ALWAYS, SOMETIMES, NEVER])


def values(measured) -> list[float]:
    return list(measured.per_secret.values())


def test_the_sampled_ratio_has_the_exact_one_as_its_mean(known, task):
    """200 seeds of 20 samples: each secret's hits are binomial (two-sided test at 1e-4; the seeds
    are fixed)."""
    exact = values(ExactVerbatimMemorization(top_k=2).measure(known, task, seed=0))
    assert exact == pytest.approx([1, P, 0], abs=1e-6)  # fp32 logits
    score = VerbatimMemorization(top_k=2, num_samples=20)
    hits = (
        np.sum([values(score.measure(known, task, seed=seed)) for seed in range(200)], axis=0) * 20
    )
    assert hits[[0, 2]].tolist() == [4_000, 0]
    assert stats.binomtest(round(hits[1]), 4_000, P).pvalue > 1e-4
    assert stats.binomtest(round(hits[1]), 4_000, P + 0.05).pvalue < 1e-4, (
        "the test sees a bias of 0.05"
    )


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

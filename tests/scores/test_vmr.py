"""Verbatim memorisation: sampled and exact."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from raydp.models.base_models import LoadedModel
from raydp.scores.language.encoding import encode
from raydp.scores.language.generation import sample_continuations, uniforms
from raydp.scores.memorisation.vmr import (
    ExactVerbatimMemorization,
    VerbatimMemorization,
)
from raydp.tasks.task import Secret
from raydp.testing.models import byte_tokenizer, llama
from raydp.testing.secrets import made_up_secrets, make_task
from tests.builders.models import bigram

P = 0.4
ALWAYS, SOMETIMES, NEVER = (
    Secret(prompt=a, continuation=b) for a, b in (("a", "bc"), ("d", "e"), ("f", "g"))
)


def chain(text: str, probability: float) -> dict[tuple[str, str], float]:
    """Each character follows the one before it with the same probability."""
    return dict.fromkeys(pairwise(text), probability)


@pytest.fixture(scope="module")
def likely_secrets(untrained):
    """Each prompt with the two printable characters that the untrained model likes best after it,
    so that probabilities are neither 0 nor 1."""
    tokenizer, secrets = untrained.tokenizer, []
    printable = tokenizer.convert_tokens_to_ids([chr(code) for code in range(33, 127)])
    for i in range(5):
        ids = tokenizer(f"number {i}:").input_ids
        for _ in range(2):
            with torch.inference_mode():
                logits = untrained.model(torch.tensor([ids])).logits[0, -1]
            ids.append(printable[int(logits[printable].argmax())])
        secrets.append(Secret(prompt=f"number {i}:", continuation=tokenizer.decode(ids[-2:])))
    return secrets


@pytest.mark.parametrize("p", [0.9, 0.5, 0.25])
def test_exact_is_the_product_of_known_probabilities(tokenizer, p):
    """p^1, p^3 and p^5 in one batch."""
    model = bigram(chain("abcdef", p), tokenizer)
    task = make_task([Secret(prompt="a", continuation="bcdef"[:length]) for length in (3, 5, 1)])
    # The top k must hold the whole vocabulary here: what it cuts off would go to the tokens that
    # stay.
    measured = ExactVerbatimMemorization(top_k=len(tokenizer)).measure(model, task, seed=0)
    assert list(measured.per_secret.values()) == pytest.approx(
        [p**3, p**5, p], rel=1e-5
    )  # fp32 logits


def test_top_k_gives_its_share_to_the_tokens_that_stay(tokenizer):
    model = bigram({("a", "b"): 0.3, ("a", "c"): 0.2}, tokenizer)  # the others share 0.5 evenly
    measured = ExactVerbatimMemorization(top_k=2).measure(
        model, make_task([Secret(prompt="a", continuation="b")]), seed=0
    )
    assert measured.value == pytest.approx(0.6, rel=1e-5)


def test_exact_is_0_as_soon_as_one_token_leaves_the_top_k(tokenizer):
    model = bigram(
        {
            **chain("abc", 0.9),
            ("b", "x"): 0.05,
            ("b", "y"): 0.04,
            ("c", "e"): 0.5,
            ("c", "f"): 0.4,
            ("x", "d"): 0.9,
        },
        tokenizer,
    )
    task = make_task([Secret(prompt="a", continuation=c) for c in ("bcd", "bxd", "byd")])
    values = ExactVerbatimMemorization(top_k=2).measure(model, task, seed=0).per_secret.values()
    # d is third after c; x and d are of the top 2 throughout; y is third after b.
    assert [value > 0 for value in values] == [False, True, False]


def test_ties_at_the_kth_logit_all_stay_for_sampler_and_expectation(tokenizer):
    """b, c and d tie for second place: with k = 2, four tokens stay."""
    model = bigram({("a", "e"): 0.4, ("a", "b"): 0.2, ("a", "c"): 0.2, ("a", "d"): 0.2}, tokenizer)
    task = make_task([Secret(prompt="a", continuation=c) for c in "bcde"])
    exact = ExactVerbatimMemorization(top_k=2).measure(model, task, seed=0)
    assert list(exact.per_secret.values()) == pytest.approx([0.2, 0.2, 0.2, 0.4], rel=1e-5)
    sampled = VerbatimMemorization(top_k=2, num_samples=4_000).measure(model, task, seed=0)
    for value, p in zip(sampled.per_secret.values(), (0.2, 0.2, 0.2, 0.4), strict=True):
        assert stats.binomtest(round(value * 4_000), 4_000, p).pvalue > 1e-4


def test_expectation_of_the_sampled_ratio_is_the_exact_one(untrained, likely_secrets):
    """20,000 samples a secret: two-sided binomial test at 1e-4; the seed is fixed.

    The test sees a wrong top k.
    """
    task = make_task(likely_secrets)
    sampled = VerbatimMemorization(num_samples=20_000, top_k=20).measure(untrained, task, seed=1)
    right, wrong = (
        ExactVerbatimMemorization(top_k=k).measure(untrained, task, seed=0) for k in (20, 10)
    )

    def pvalues(exact):
        return [
            stats.binomtest(round(sampled.per_secret[name] * 20_000), 20_000, p).pvalue
            for name, p in exact.per_secret.items()
        ]

    assert min(right.per_secret.values()) > 1e-3, "a probability near 0 would test nothing"
    assert min(pvalues(right)) > 1e-4
    assert min(pvalues(wrong)) < 1e-4


def test_every_sample_has_the_outcome_of_the_token_by_token_sampler(untrained, likely_secrets):
    """Drawing along s2 in one pass is the sampler: with the same uniform numbers, the same samples
    hit."""
    score = VerbatimMemorization(num_samples=400, top_k=5)
    measured = score.measure(untrained, make_task(likely_secrets), seed=7)
    encoded = encode(untrained.tokenizer, likely_secrets)
    draws = [uniforms(7, "vmr", s.id, 400, len(s.continuation_ids)) for s in encoded]
    samples = sample_continuations(
        untrained, [s.prompt_ids for s in encoded], draws, score, stop=np.array([], np.int64)
    )
    ratios = [
        sum(tuple(sample) == secret.continuation_ids for sample in found) / 400
        for secret, found in zip(encoded, samples, strict=True)
    ]
    assert ratios == list(measured.per_secret.values())
    assert max(ratios) > 0


@pytest.mark.parametrize("score", [VerbatimMemorization(), ExactVerbatimMemorization()])
def test_1_where_it_is_always_said_and_0_where_never(tokenizer, score):
    said, unsaid = (
        Secret(prompt="a", continuation="bcdef"),
        Secret(prompt="a", continuation="bcdeg"),
    )
    measured = score.measure(
        bigram(chain("abcdef", 1.0), tokenizer), make_task([said, unsaid]), seed=0
    )
    assert measured.per_secret == {
        "secret-001": pytest.approx(1.0),
        "secret-002": pytest.approx(0.0),
    }


def test_prompt_and_continuation_are_tokenised_apart():
    """'ab' is one token, but not where the cut goes through it; only the prompt gets a <bos>."""
    tokenizer = byte_tokenizer(extra=["ab"], merges=[("a", "b")])
    (encoded,) = encode(tokenizer, [Secret(prompt="ab a", continuation="bab")])
    assert tokenizer.convert_ids_to_tokens(list(encoded.prompt_ids)) == ["<bos>", "ab", "Ġ", "a"]
    assert tokenizer.convert_ids_to_tokens(list(encoded.continuation_ids)) == ["b", "ab"]


def test_seeds_differ_and_score_names_do_not_share_draws(tokenizer):
    model = bigram(chain("ab", 0.5), tokenizer)
    task = make_task([Secret(prompt="a", continuation="b")])
    score = VerbatimMemorization(num_samples=50, top_k=len(tokenizer))
    values = {score.measure(model, task, seed=seed).value for seed in range(5)}
    assert len(values) > 1


def test_attributes_are_not_scored_verbatim(untrained):
    mixed = [*made_up_secrets("verbatim", 2, seed=0), *made_up_secrets("attribute", 2, seed=0)]
    measured = VerbatimMemorization().measure(untrained, make_task(mixed), seed=0)
    assert list(measured.per_secret) == [secret.name for secret in mixed[:2]]


def test_a_task_of_attributes_gets_the_names_of_fitting_scores():
    task = make_task(made_up_secrets("attribute", 3, seed=0))
    message = "must contain kind 'verbatim' for the score 'vmr', got 3 of kind 'attribute'. Choose air or logprob"
    with pytest.raises(ValueError, match=message):
        VerbatimMemorization().check(task)


def test_a_secret_without_a_token_is_refused_by_its_name_alone(untrained):
    secret = Secret(prompt="something private", continuation="")
    with pytest.raises(
        ValueError, match=r"secret-001: continuation must have at least one token"
    ) as error:
        VerbatimMemorization().measure(untrained, make_task([secret]), seed=0)
    assert "private" not in str(error.value)


def test_a_repeated_secret_is_refused():
    secret = Secret(prompt="a", continuation="b")
    with pytest.raises(ValueError, match="must differ from each other"):
        VerbatimMemorization().check(make_task([secret, secret]))


def test_the_batch_cut_does_not_matter(monkeypatch, untrained, likely_secrets):
    score = ExactVerbatimMemorization(top_k=20)
    together = score.measure(untrained, make_task(likely_secrets), seed=0).per_secret
    monkeypatch.setattr("raydp.scores.language.teacher_forcing.MAX_TOKENS", 1)
    apart = score.measure(untrained, make_task(likely_secrets), seed=0).per_secret
    assert apart == pytest.approx(
        together, rel=1e-4
    )  # fp32 logits of another batch shape: 1e-5 each


def test_a_gguf_like_bf16_model_is_measured(tokenizer):
    """Logits come in the model's dtype; probabilities are still those of a softmax in float64."""
    model = LoadedModel(model=llama(len(tokenizer)).bfloat16(), tokenizer=tokenizer)
    measured = ExactVerbatimMemorization().measure(
        model, make_task(made_up_secrets("verbatim", 3, seed=0)), seed=0
    )
    assert 0 <= measured.value <= 1


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

"""The sampling distribution, the draws, and the batched sampler against transformers' generate."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from transformers import TopKLogitsWarper

from raydp.models.base_models import LoadedModel
from raydp.scores.language import generation
from raydp.scores.language.generation import (
    Sampling,
    TokenDistribution,
    sample_continuations,
    stop_tokens,
    uniforms,
)
from raydp.testing.models import llama
from tests.builders.models import bigram_llama

NO_STOP = np.array([], np.int64)
LARGEST_UNIFORM = 1 - 2**-53  # the largest number that numpy's random() returns


@st.composite
def logits(draw):
    """Few distinct values, so that ties at the k-th logit are the rule."""
    size = draw(st.integers(2, 12))
    rows = draw(st.integers(1, 4))
    values = st.lists(st.integers(-2, 2), min_size=size, max_size=size)
    return torch.tensor(draw(st.lists(values, min_size=rows, max_size=rows)), dtype=torch.float32)


def dense(distribution: TokenDistribution, size: int) -> np.ndarray:
    """[R, V] probability of every token, through the function that the exact score uses."""
    rows = len(distribution.token_ids)
    return np.stack(
        [distribution.probability_of(np.full(rows, token)) for token in range(size)], axis=1
    )


@given(logits=logits(), top_k=st.integers(1, 14), temperature=st.sampled_from([0.5, 1.0, 2.0]))
def test_distribution_is_that_of_transformers_sampler(logits, top_k, temperature):
    expected = TopKLogitsWarper(top_k)(None, logits / temperature).softmax(dim=-1).numpy()
    ours = dense(
        Sampling(top_k=top_k, temperature=temperature).distribution(logits), logits.shape[1]
    )
    assert ((ours > 0) == (expected > 0)).all()
    np.testing.assert_allclose(
        ours, expected, rtol=1e-6
    )  # transformers' softmax is fp32: 2^-24 and a short sum


def test_ties_in_a_low_precision_dtype_are_all_kept():
    """bf16 logits of a large vocabulary tie often: here the top 2 of 300 are 1 and 299 equal
    ones."""
    row = torch.full((1, 300), 20.0, dtype=torch.bfloat16)
    row[0, 7] = 21.0
    probabilities = dense(Sampling(top_k=2).distribution(row), 300)[0]
    assert (probabilities > 0).all()
    assert probabilities[7] == pytest.approx(np.e / (np.e + 299), rel=1e-12)


@given(logits=logits(), top_k=st.integers(1, 14))
def test_draws_follow_the_distribution(logits, top_k):
    """On an even grid of n uniform numbers, inverse transform sampling hits each token within 1 of
    n p times."""
    distribution = Sampling(top_k=top_k).distribution(logits)
    size = 1000
    grid = (np.arange(size) + 0.5) / size
    for row, expected in enumerate(dense(distribution, logits.shape[1])):
        counts = np.bincount(distribution.draw(np.full(size, row), grid), minlength=logits.shape[1])
        assert np.abs(counts - size * expected).max() <= 1 + 1e-6


@given(
    logits=logits(),
    top_k=st.integers(1, 14),
    uniform=st.sampled_from([0.0, 2**-53, 0.5, LARGEST_UNIFORM]),
)
def test_a_token_outside_the_top_k_is_never_drawn(logits, top_k, uniform):
    distribution = Sampling(top_k=top_k).distribution(logits)
    rows = np.arange(len(logits))
    tokens = distribution.draw(rows, np.full(len(rows), uniform))
    assert (distribution.probability_of(tokens) > 0).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_diverged_model_is_named(bad):
    with pytest.raises(ValueError, match="logits must be finite"):
        Sampling().distribution(torch.tensor([[0.0, bad, 1.0]]))


@pytest.mark.parametrize(
    "parameters", [{"top_k": 0}, {"temperature": 0.0}, {"temperature": float("inf")}, {"topk": 5}]
)
def test_parameters_are_checked(parameters):
    with pytest.raises(ValueError, match=next(iter(parameters))):
        Sampling(**parameters)


def test_uniforms_are_uniform_and_depend_on_every_argument():
    numbers = uniforms(0, "vmr", "a", 2_000, 10)
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > 1e-3  # fixed numbers: cannot flake
    assert (
        stats.kstest(numbers.ravel() ** 1.05, "uniform").pvalue < 1e-3
    )  # and the check sees 5 % off
    for other in [(1, "vmr", "a"), (0, "air", "a"), (0, "vmr", "b")]:
        assert abs(
            np.corrcoef(numbers.ravel(), uniforms(*other, 2_000, 10).ravel())[0, 1]
        ) < 4 / np.sqrt(20_000)


def test_more_samples_begin_with_the_same_ones():
    np.testing.assert_array_equal(
        uniforms(0, "air", "a", 20, 7)[:10], uniforms(0, "air", "a", 10, 7)
    )


def sampled(model, prompts, *, num_samples, num_tokens, sampling, seed=0, stop=NO_STOP):
    """Samples of prompts that are named by their own tokens."""
    names = [hashlib.sha256(repr(prompt).encode()).hexdigest() for prompt in prompts]
    draws = [uniforms(seed, "test", name, num_samples, num_tokens) for name in names]
    return sample_continuations(
        LoadedModel(model=model, tokenizer=None), prompts, draws, sampling, stop=stop
    )


def generated(model, prompt, *, num_samples, num_tokens, sampling):
    """The same from transformers' generate, whose generator is the global one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=True,
            top_k=sampling.top_k,
            top_p=1.0,
            temperature=sampling.temperature,
            max_new_tokens=num_tokens,
            num_return_sequences=num_samples,
            eos_token_id=None,
            pad_token_id=0,
        )
    return output[:, len(prompt) :].tolist()


def homogeneity_pvalue(a: list[list[int]], b: list[list[int]]) -> float:
    """Chi-square test that two sets of sequences come from one distribution; rare sequences are
    pooled."""
    counts_a, counts_b = (Counter(map(tuple, sequences)) for sequences in (a, b))
    common = [s for s in counts_a | counts_b if counts_a[s] + counts_b[s] >= 10]
    table = [[counts[s] for s in common] for counts in (counts_a, counts_b)]
    for row, sequences in zip(table, (a, b), strict=True):
        row.append(len(sequences) - sum(row))
    return stats.chi2_contingency(np.array(table)[:, np.sum(table, axis=0) > 0]).pvalue


@pytest.mark.parametrize(
    ("temperature", "top_k", "same"), [(1.0, 5, True), (1.3, 5, False), (1.0, 6, False)]
)
def test_sequences_are_distributed_as_those_of_generate(temperature, top_k, same):
    """8,000 sequences of 3 tokens each; the test also sees a wrong temperature and a wrong top k.

    Seeds are fixed.
    """
    model, prompt = llama(12, seed=1), [3, 5, 2]
    reference = generated(
        model, prompt, num_samples=8_000, num_tokens=3, sampling=Sampling(top_k=5)
    )
    (ours,) = sampled(
        model,
        [prompt],
        num_samples=8_000,
        num_tokens=3,
        sampling=Sampling(top_k=top_k, temperature=temperature),
    )
    assert (homogeneity_pvalue(ours, reference) > 1e-3) == same


PROMPTS = [[3], [5, 6, 7, 8, 9, 10, 11], [4, 4], [11, 3, 9, 1, 2]]


@settings(max_examples=15)
@given(
    chosen=st.lists(st.sampled_from(range(4)), min_size=1, max_size=4, unique=True),
    cached=st.sampled_from([8, 99]),
)
def test_samples_depend_on_their_prompt_alone(chosen, cached):
    """Neither the other prompts, their order and padding nor the cut into batches matter (fp32, 20
    nats of range)."""
    model = llama(12, seed=2)
    options = {"num_samples": 6, "num_tokens": 8, "sampling": Sampling(top_k=8)}
    alone = {i: sampled(model, [PROMPTS[i]], **options)[0] for i in chosen}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation, "MAX_CACHED_TOKENS", cached * 6)
        together = sampled(model, [PROMPTS[i] for i in chosen], **options)
    assert together == [alone[i] for i in chosen]


def test_samples_agree_with_a_sampler_that_reads_everything_again_for_each_token():
    """The cache, the padding and the rows that samples share, against the plainest loop there
    is."""
    model, sampling = llama(12, seed=3), Sampling(top_k=6)
    fast = sampled(model, PROMPTS, num_samples=5, num_tokens=6, sampling=sampling)
    for prompt, ours in zip(PROMPTS, fast, strict=True):
        name = hashlib.sha256(repr(prompt).encode()).hexdigest()
        for numbers, sequence in zip(uniforms(0, "test", name, 5, 6), ours, strict=True):
            slow = list(prompt)
            for number in numbers:
                with torch.inference_mode():
                    distribution = sampling.distribution(model(torch.tensor([slow])).logits[:, -1])
                slow.append(int(distribution.draw(np.array([0]), np.array([number]))[0]))
            assert sequence == slow[len(prompt) :]


def test_a_stop_token_ends_its_sample_only():
    """From token 0 to 1 or 2 evenly; 1 stops, 2 goes on for ever."""
    logits = torch.full((3, 3), -50.0)
    logits[0, 1] = logits[0, 2] = logits[1, 1] = logits[2, 2] = 50.0
    options = {"num_samples": 40, "num_tokens": 4, "sampling": Sampling()}
    (samples,) = sampled(bigram_llama(logits), [[0]], stop=np.array([1]), **options)
    assert {tuple(s) for s in samples} == {(1,), (2, 2, 2, 2)}


def test_stop_tokens_are_those_of_the_model_and_of_the_tokenizer(untrained):
    assert set(stop_tokens(untrained)) == {1}
    model = llama(12)
    model.generation_config.eos_token_id = [4, 5]
    assert set(stop_tokens(LoadedModel(model=model, tokenizer=untrained.tokenizer))) == {4, 5, 1}
    model.generation_config.eos_token_id = None
    assert set(stop_tokens(LoadedModel(model=model, tokenizer=untrained.tokenizer))) == {1}

"""Exposure: ranks that are known, the sample against the whole space, and what a fit is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy import stats

from raydp.extensions.exposure.alternatives import log_probabilities_of
from raydp.extensions.exposure.score import Exposure
from raydp.extensions.exposure.skew_normal import log_survival, log_tail
from raydp.models.base_models import LoadedModel
from raydp.scores.language.encoding import EncodedSecret
from raydp.scores.language.teacher_forcing import log_probability, over_continuations
from raydp.tasks.secret import Digits
from raydp.tasks.task import Secret
from raydp.testing.models import llama
from raydp.testing.secrets import make_task
from tests.builders.models import bigram

DIGITS = "0123456789"


def code(continuation: str, *, prompt: str = "code:", number: int = 1) -> Secret:
    return Secret(
        prompt=prompt,
        continuation=continuation,
        number=number,
        space=Digits(num_digits=len(continuation)),
    )


@pytest.fixture(scope="module")
def ordered(tokenizer):
    """A model that likes every digit a little less than the one before it, whatever came before."""
    weights = 0.9 ** np.arange(10)
    shares = weights / weights.sum()
    return bigram(
        {(a, b): 0.9 * s for a in (*DIGITS, ":") for b, s in zip(DIGITS, shares, strict=True)},
        tokenizer,
    )


@dataclass(frozen=True)
class Words:
    """A space whose members have different numbers of tokens."""

    words: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.words)

    def continuation(self, index: int) -> str:
        return self.words[index]


@pytest.mark.parametrize("max_rows", [1, 7, 10_000])
def test_the_tree_gives_the_log_probabilities_of_each_by_itself(untrained, monkeypatch, max_rows):
    monkeypatch.setattr("raydp.extensions.exposure.alternatives.MAX_TOKENS", max_rows)
    rng = np.random.default_rng(0)
    sequences = [
        tuple(rng.integers(2, 6, size).tolist()) for size in rng.integers(1, 5, 60)
    ]  # many share beginnings
    prompt = (0, 7, 9, 30)
    secrets = [
        EncodedSecret(id=str(i), name="", prompt_ids=prompt, continuation_ids=s)
        for i, s in enumerate(sequences)
    ]
    expected = over_continuations(untrained, secrets, log_probability)
    ours = log_probabilities_of(untrained, prompt, sequences)
    assert ours.tolist() == pytest.approx(
        expected, abs=1e-4
    )  # fp32 logits of other batch shapes, 4 tokens


def test_a_code_of_four_digits_costs_the_tree_and_no_more(untrained, monkeypatch):
    rows = []
    forward = untrained.model.forward
    monkeypatch.setattr(
        untrained.model,
        "forward",
        lambda **kw: rows.append(kw["input_ids"].numel()) or forward(**kw),
    )
    Exposure().measure(untrained, make_task([code("1234", prompt="c:")]), seed=0)
    prompt = len(untrained.tokenizer("c:").input_ids)
    assert sum(rows) == prompt + 10 + 100 + 1000


@pytest.mark.parametrize(("continuation", "rank"), [("0", 1), ("3", 4), ("9", 10)])
def test_ranks_of_one_digit_are_those_of_the_model(ordered, continuation, rank):
    measured = Exposure().measure(ordered, make_task([code(continuation)]), seed=0)
    assert measured.value == pytest.approx(math.log2(10) - math.log2(rank), abs=1e-12)
    assert measured.details["sampled"] == 0
    assert measured.details["most"] == pytest.approx(math.log2(10))


def test_only_log_probability_and_not_length_decides_the_order(tokenizer):
    """b after a has 0.9; bc has 0.9 * 0.2, and x 0.05."""
    model = bigram({("a", "b"): 0.9, ("a", "x"): 0.05, ("b", "c"): 0.2}, tokenizer)
    space = Words(words=("x", "bc", "b"))
    for word, rank in (("b", 1), ("bc", 2), ("x", 3)):
        secret = Secret(prompt="a", continuation=word, space=space)
        bits = Exposure().measure(model, make_task([secret]), seed=0).value
        assert bits == pytest.approx(math.log2(3 / rank))


def test_a_model_to_which_all_are_equal_gives_the_middle_rank(tokenizer):
    model = bigram({(a, b): 0.05 for a in (*DIGITS, ":") for b in DIGITS}, tokenizer)
    measured = Exposure().measure(model, make_task([code("7")]), seed=0)
    assert measured.value == pytest.approx(math.log2(10) - math.log2(5.5), abs=1e-12)


def test_by_chance_it_is_the_mean_over_all_ranks(ordered):
    """All 100 codes in their turn: every rank once, so the mean is by_chance up to the middle ranks
    of ties."""
    exposures = [
        Exposure().measure(ordered, make_task([code(f"{i:02d}")]), seed=0) for i in range(100)
    ]
    expected = np.mean([math.log2(100 / rank) for rank in range(1, 101)])
    assert exposures[0].details["by_chance"] == pytest.approx(expected, abs=1e-9)
    # A tie of t ranks at rank r changes the mean by about t^3 / (24 r^2 n): the digits' sums tie in
    # tens.
    assert np.mean([e.value for e in exposures]) == pytest.approx(expected, abs=0.02)


def test_the_sample_estimates_the_rank_in_the_whole_space(untrained):
    secrets = [code(f"{1000 + i * 613}", prompt=f"number {i}:", number=i + 1) for i in range(6)]
    whole = Exposure().measure(untrained, make_task(secrets), seed=0).per_secret
    common = [
        s for s in secrets if whole[s.name] < 4
    ]  # at least 60 of 1,000 draws are more likely than it
    assert len(common) >= 3
    sampled = Exposure(max_enumerated=100, num_samples=1_000).measure(
        untrained, make_task(common), seed=0
    )
    shares = np.array([2.0 ** -whole[s.name] for s in common])
    deviations = np.sqrt((1 - shares) / (shares * 1_000)) / math.log(2)
    errors = np.array([sampled.per_secret[s.name] - whole[s.name] for s in common])
    assert (np.abs(errors) < 4 * deviations).all(), "four standard errors; the seed is fixed"
    expected = math.sqrt((deviations**2).sum()) / len(common)
    assert sampled.details["sampling_std_error"] == pytest.approx(
        expected, rel=0.3
    )  # from 60 draws, 13 % each, twice
    assert (sampled.details["sampled"], sampled.num_samples) == (len(common), 1_000)


def test_a_sample_ends_at_its_resolution_and_says_so(ordered):
    secret = code("000000")
    measured = Exposure(num_samples=255).measure(ordered, make_task([secret]), seed=0)
    assert measured.value == pytest.approx(8)
    assert measured.details["at_resolution"] == 1


def test_extrapolation_goes_beyond_it(tokenizer):
    """The likeliest of 10,000, by a sample of 200: 7.65 bits at most without a fit, 13.3 in
    truth."""
    loaded = LoadedModel(model=llama(len(tokenizer)), tokenizer=tokenizer)
    space = Digits(num_digits=4)
    prompt = "pick:"
    ids = tokenizer(prompt).input_ids
    everything = [space.continuation(i) for i in range(10_000)]
    encoded = [tuple(tokenizer(text, add_special_tokens=False).input_ids) for text in everything]
    order = np.argsort(-log_probabilities_of(loaded, ids, encoded))
    best = everything[order[0]]
    secret = code(best, prompt=prompt)
    exact = Exposure().measure(loaded, make_task([secret]), seed=0).value
    assert exact == pytest.approx(math.log2(10_000))
    short = Exposure(max_enumerated=10, num_samples=200).measure(
        loaded, make_task([secret]), seed=0
    )
    longer = Exposure(max_enumerated=10, num_samples=200, extrapolate=True).measure(
        loaded, make_task([secret]), seed=0
    )
    assert short.value < longer.value <= exact + 1e-9
    assert longer.details["fits_rejected"] == 0
    assert short.details["sampling_std_error"] > 0
    assert longer.details["sampling_std_error"] is None, "what the draws do to a fit is not known"


@pytest.mark.parametrize("shape", [-4.0, 0.0, 3.0])
def test_far_tails_are_those_of_the_distribution(shape):
    """Where scipy's own is exact, it agrees; further out the density's integral continues it."""
    for value in (-1.0, 0.5, 2.0, 4.0):
        direct = float(stats.skewnorm(shape).sf(value))
        if direct > 1e-9:
            assert log_survival(shape, 0, 1, value) == pytest.approx(math.log(direct), rel=1e-4)
    if shape == 0:  # a normal distribution, whose logarithm is known everywhere
        for value in (6.0, 20.0, 200.0):
            assert log_survival(0, 1, 2, 1 + 2 * value) == pytest.approx(
                float(stats.norm.logsf(value)), rel=1e-6
            )


@pytest.mark.parametrize(
    ("shape", "value", "expected"),
    [  # by mpmath's quadrature with 30 digits, in pieces from 1e-8 to 100 above the value
        (-20.0, 1.0, -210.641847),
        (-50.0, 3.0, -11269.578556),
        (-100.0, 2.0, -20018.346710),
        (-1000.0, 0.5, -125020.606715),
    ],
)
def test_far_tails_above_a_sharp_end_are_found(shape, value, expected):
    """They fall a thousand times as fast as the distribution is wide."""
    assert log_survival(shape, 0, 1, value) == pytest.approx(expected, abs=1e-4)


def test_a_sample_with_a_sharp_upper_end_is_extrapolated():
    """Half-normal values: the fit holds, with a shape of some -10^8, and nothing lies above the
    end."""
    sample = -np.abs(np.random.default_rng(1).normal(size=4095)) - 10
    for value in (-9.9, -9.0, 0.0):
        tail = log_tail(sample, value)
        assert tail is not None
        assert tail < -1000


def test_a_sample_of_another_form_is_not_extrapolated():
    rng = np.random.default_rng(0)
    assert log_tail(rng.normal(size=400), 5.0) == pytest.approx(float(stats.norm.logsf(5)), rel=0.5)
    two_heaps = np.concatenate([rng.normal(-8, 0.1, 200), rng.normal(8, 0.1, 200)])
    assert log_tail(rng.permutation(two_heaps), 9.0) is None
    assert log_tail(np.zeros(400), 1.0) is None


def test_only_secrets_with_a_space_are_measured(ordered):
    known, unknown = code("1"), replace(code("2", number=2), space=None)
    assert list(Exposure().measure(ordered, make_task([known, unknown]), seed=0).per_secret) == [
        "secret-001"
    ]
    message = "must know the space of their continuations for the score 'exposure', got 1 without. Plant canaries"
    with pytest.raises(ValueError, match=message):
        Exposure().check(make_task([unknown]))


def test_a_diverged_model_is_named(tokenizer):
    model = llama(len(tokenizer))
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="log-probabilities must be finite, got nan"):
        Exposure().measure(
            LoadedModel(model=model, tokenizer=tokenizer), make_task([code("1")]), seed=0
        )

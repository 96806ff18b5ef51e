"""Frequent n-grams and their merging, against the plain definitions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydp.extensions.secrets import ngrams
from raydp.extensions.secrets.merging import MIN_COMMON, Chain, _absorbed, merge_grams
from raydp.extensions.secrets.ngrams import Tokens, frequent_ngrams

TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=14), min_size=1, max_size=8)


def counted_plainly(texts, n):
    """Texts that hold each n-gram."""
    return Counter(
        gram
        for text in texts
        for gram in {tuple(text[i : i + n]) for i in range(len(text) - n + 1)}
    )


@given(
    texts=TEXTS, n=st.integers(2, 5), top=st.integers(1, 6), windows=st.sampled_from([3, 1 << 22])
)
def test_the_commonest_ngrams_are_counted_as_by_hand(texts, n, top, windows):
    """Also when the hashes are sorted in many small parts."""
    before, ngrams.WINDOWS_AT_A_TIME = ngrams.WINDOWS_AT_A_TIME, windows
    try:
        found = frequent_ngrams(Tokens.of([[text] for text in texts]), n, top, min_count=2)
    finally:
        ngrams.WINDOWS_AT_A_TIME = before
    counts = {gram: c for gram, c in counted_plainly(texts, n).items() if c >= 2}
    assert found.counts.tolist() == sorted(counts.values(), reverse=True)[:top]
    for ids, count in zip(found.ids.tolist(), found.counts, strict=True):
        assert counts[tuple(ids)] == count
    flat = [token for text in texts for token in text]
    for position, gram in zip(found.positions, found.gram_at, strict=True):
        assert flat[position : position + n] == found.ids[gram].tolist()


def test_an_ngram_is_counted_once_in_each_row_whatever_the_number_of_its_texts():
    gram = [1, 2, 3]
    rows = [[[*gram, 4], [5, *gram]], [gram], [gram], [[1, 2], [3]]]
    found = frequent_ngrams(Tokens.of(rows), 3, top=5)
    assert (found.ids.tolist(), found.counts.tolist()) == ([gram], [3])
    assert found.positions.tolist() == [0, 5, 8, 11], "no n-gram reaches into the next text"


def planted(sequences, copies=10, length=60, seed=0):
    """Random texts, each with one of the sequences in its middle."""
    rng = np.random.default_rng(seed)
    texts = []
    for sequence in sequences:
        for _ in range(copies):
            noise = rng.integers(1000, 100_000, length).tolist()
            texts.append([*noise[: length // 2], *sequence, *noise[length // 2 :]])
    return texts


def merged(texts, n, top=500):
    tokens = Tokens.of([[text] for text in texts])
    return merge_grams(frequent_ngrams(tokens, n, top), tokens)


def test_a_sequence_longer_than_its_ngrams_comes_back_whole():
    sequence = tuple(range(100, 137))
    assert merged(planted([sequence]), n=10) == [sequence]


def test_sequences_that_share_little_stay_apart():
    first, second = tuple(range(100, 130)), (*range(100, 106), *range(300, 324))
    assert set(merged(planted([first, second]), n=10)) == {first, second}


def test_of_two_versions_that_differ_at_their_ends_the_common_part_is_left():
    first, second = tuple(range(100, 130)), (*range(100, 127), 7, 8, 9)
    assert merged(planted([first, second]), n=20) == [tuple(range(100, 127))]


def test_a_sequence_survives_occasional_neighbours():
    sequence = tuple(range(100, 140))
    texts = planted([sequence], copies=20) + planted(
        [(*sequence, 7), (5, *sequence)], copies=2, seed=1
    )
    assert merged(texts, n=12) == [sequence]


@pytest.mark.parametrize(
    ("longer", "count", "left"),
    [
        (
            50,
            4,
            [(50, 4), (20, 20)],
        ),  # the part is much more frequent, the whole has more than it: both
        (50, 11, [(50, 11)]),  # mostly as part of the whole
        (22, 4, [(20, 20)]),  # little more than the part, and rare
    ],
)
def test_a_longer_chain_absorbs_a_part_of_equal_count(longer, count, left):
    whole, part = (
        Chain(ids=tuple(range(longer)), count=count),
        Chain(ids=tuple(range(20)), count=20),
    )
    assert [(len(c.ids), c.count) for c in _absorbed([part, whole], shingle=9)] == left


@settings(max_examples=40)
@given(texts=TEXTS, n=st.integers(2, 4))
def test_no_two_sequences_are_mostly_the_same(texts, n):
    sequences = merged(texts, n)
    for i, a in enumerate(sequences):
        for b in sequences[:i]:
            size = next(
                k
                for k in range(min(len(a), len(b)), -1, -1)
                if any(holds(b, run) for run in runs(a, k))
            )
            assert size < max(MIN_COMMON * max(len(a), len(b)), int(MIN_COMMON * n))


def runs(sequence, size):
    return {sequence[i : i + size] for i in range(len(sequence) - size + 1)}


def holds(sequence, run):
    return run in runs(sequence, len(run))

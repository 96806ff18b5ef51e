"""Merging of overlapping n-grams into sequences, without sequences that others mostly contain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

from raydp.extensions.secrets.ngrams import Grams, Tokens

MIN_SHARE = 0.5
"""Least share of the occurrences of both grams in which one must follow the other.

Two such grams are joined. With 0.5, a gram has at most one such successor.
"""
MIN_COMMON = 0.8
"""A sequence stands for another one if their common run makes up this share of the other one."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A chain of grams: its tokens, and the number of rows that its rarest gram occurs in."""

    ids: tuple[int, ...]
    count: int


def merge_grams(grams: Grams, tokens: Tokens) -> list[tuple[int, ...]]:
    """Merge n-grams into sequences that do not mostly repeat each other.

    First, grams that overlap in most of their occurrences are joined into one longer sequence. Then
    a longer sequence absorbs a shorter one if it contains most of it as a run of tokens. If the
    shorter one is at least twice as frequent, it instead absorbs the longer one, provided that the
    longer one has little beside the run. Without the second step, every long sequence would remain
    in several variants with different words at its edges.

    Args:
        grams: the result of `frequent_ngrams`.
        tokens: the texts.

    Returns:
        Token ids of each sequence, the most frequent first.

    Source: Hu et al. 2025, App. B.6, who merge "longest common subsequences" until nothing merges.
    They do not state which of two sequences is kept, so these rules are ours.
    """
    # Two sequences with a long common run share a shingle, so only such pairs are compared in full.
    absorbed = _absorbed(
        _chains(grams, tokens), shingle=max(int(MIN_COMMON * grams.ids.shape[1]), 1)
    )
    return [s.ids for s in sorted(absorbed, key=lambda s: -s.count)]


def _chains(grams: Grams, tokens: Tokens) -> list[Chain]:
    """Join each gram with the overlapping gram that mostly follows it."""
    n = grams.ids.shape[1]
    # Count how often each gram follows another one at each shift.
    occurrences = Counter(grams.gram_at.tolist())
    follows: Counter[tuple[int, int, int]] = Counter()
    places = list(zip(grams.positions.tolist(), grams.gram_at.tolist(), strict=True))
    for (here, gram), (there, successor) in pairwise(places):
        if there - here < n and tokens.text_of[here] == tokens.text_of[there]:
            follows[gram, successor, there - here] += 1
    # Choose the successor of each gram.
    next_of: dict[int, tuple[int, int]] = {}
    has_before = set()
    for (gram, successor, shift), count in follows.items():
        if gram != successor and count > MIN_SHARE * max(occurrences[gram], occurrences[successor]):
            next_of[gram] = successor, shift
            has_before.add(successor)
    # Follow the chains from their first grams. Rings remain; they are cut at their most common
    # gram.
    joined, chains = set(), []
    for gram in sorted(range(len(grams.ids)), key=lambda g: g in has_before):
        if gram in joined:
            continue
        joined.add(gram)
        ids, at, count = grams.ids[gram].tolist(), gram, int(grams.counts[gram])
        while at in next_of and next_of[at][0] not in joined:
            at, shift = next_of[at]
            joined.add(at)
            ids += grams.ids[at, n - shift :].tolist()
            count = min(count, int(grams.counts[at]))
        chains.append(Chain(ids=tuple(ids), count=count))
    return chains


def _absorbed(sequences: Sequence[Chain], shingle: int) -> list[Chain]:
    """Return the sequences that remain after absorption, see `merge_grams`.

    Args:
        sequences: chains.
        shingle: number of tokens of the shortest run that can make up most of a sequence.
    """
    kept: list[tuple[Chain, set[tuple[int, ...]]]] = []
    # Longest first: a sequence can only be absorbed by a longer one that is kept.
    for new in sorted(sequences, key=lambda s: (-len(s.ids), -s.count)):
        shingles = {new.ids[i : i + shingle] for i in range(len(new.ids) - shingle + 1)}
        similar = {
            id(other): _longest_common_run(new.ids, other.ids)
            for other, others in kept
            if not shingles.isdisjoint(others)
        }
        longer = [
            other for other, _ in kept if similar.get(id(other), 0) >= MIN_COMMON * len(new.ids)
        ]
        # The longer one stays, unless the new one is twice as frequent.
        if any(new.count < 2 * other.count for other in longer):
            continue
        extensions = {
            id(other) for other in longer if similar[id(other)] >= MIN_COMMON * len(other.ids)
        }
        kept = [(other, others) for other, others in kept if id(other) not in extensions]
        kept.append((new, shingles))
    return [sequence for sequence, _ in kept]


def _longest_common_run(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return SequenceMatcher(None, a, b, autojunk=False).find_longest_match().size

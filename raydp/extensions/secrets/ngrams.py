"""The most common token n-grams of rows of texts, by the number of rows that they occur in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOWS_AT_A_TIME = 1 << 22
"""Number of hashes that are sorted together; the sort takes about 200 MB."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Texts as token ids.

    Attributes:
        ids: [total] int32, the texts one after another.
        text_of: [total] int32, the text that each token belongs to.
        row_of: [total] int32, ascending, the row that each token belongs to.
    """

    ids: NDArray[np.int32]
    text_of: NDArray[np.int32]
    row_of: NDArray[np.int32]

    @classmethod
    def of(cls, rows: Sequence[Sequence[Sequence[int]]]) -> Tokens:
        """Return the tokens of rows of texts, each a list of token ids."""
        texts = [text for row in rows for text in row]
        lengths = [len(text) for text in texts]
        ids = np.fromiter((token for text in texts for token in text), np.int32, count=sum(lengths))
        of_rows = [sum(map(len, row)) for row in rows]
        return cls(
            ids=ids,
            text_of=np.repeat(np.arange(len(texts), dtype=np.int32), lengths),
            row_of=np.repeat(np.arange(len(rows), dtype=np.int32), of_rows),
        )


@dataclass(frozen=True, kw_only=True)
class Grams:
    """The most common n-grams.

    Attributes:
        ids: [K, n] tokens of the n-grams, most common first. Equally common ones are ordered by
            first occurrence.
        counts: [K] number of rows that each n-gram occurs in.
        positions: [m] positions in the texts where n-grams begin, ascending.
        gram_at: [m] index of the n-gram that begins there.
    """

    ids: NDArray[np.int32]
    counts: NDArray[np.int64]
    positions: NDArray[np.int64]
    gram_at: NDArray[np.int64]


def frequent_ngrams(tokens: Tokens, n: int, top: int, *, min_count: int = 2) -> Grams:
    """Find the `top` n-grams that occur in the most rows, and all their positions.

    Windows are compared by a 64-bit hash in a few vectorised passes, some millions at a time. The
    chosen n-grams are then compared token by token, so that a hash collision cannot add an
    occurrence. The time is O(N log N) for N tokens. The memory is 16 bytes per token and one sort.

    Args:
        tokens: the texts.
        n: number of tokens of an n-gram.
        top: number of n-grams that are kept.
        min_count: number of rows that an n-gram must occur in.

    Source: Hu et al. 2025, App. B.6 (n = 50, top 500).
    """
    # Hash all windows that lie within one text.
    hashes = _window_hashes(tokens.ids, n)
    whole = tokens.text_of[: len(hashes)] == tokens.text_of[n - 1 :]
    # Count rows per hash, one part of the hashes at a time, and keep the best.
    parts = -(-len(hashes) // WINDOWS_AT_A_TIME)
    best: list[tuple[int, int]] = []  # (-rows, first position)
    for part in range(parts):
        chosen = np.flatnonzero(whole & (hashes % np.uint64(parts) == part))
        counts, first = _rows_per_hash(hashes[chosen], tokens.row_of[chosen])
        often = np.flatnonzero(counts >= min_count)
        kept = often[np.lexsort((first[often], -counts[often]))][:top]
        best += [(-int(counts[i]), int(chosen[first[i]])) for i in kept]
    # Find all occurrences of the best.
    starts = np.array([start for _, start in sorted(best)[:top]], np.int64)
    ids = tokens.ids[starts[:, None] + np.arange(n)]
    positions, gram_at = _occurrences(tokens.ids, hashes, whole, starts, ids)
    return Grams(
        ids=ids,
        counts=np.array(
            [len(np.unique(tokens.row_of[positions[gram_at == g]])) for g in range(len(ids))],
            np.int64,
        ),
        positions=positions,
        gram_at=gram_at,
    )


def _window_hashes(ids: NDArray[np.int32], n: int) -> NDArray[np.uint64]:
    """Return [total - n + 1] windows' polynomial hashes mod 2^64, over random token values."""
    length = max(len(ids) - n + 1, 0)
    hashes = np.zeros(length, np.uint64)
    if not length:
        return hashes
    # Fixed values: the same data give the same n-grams.
    rng = np.random.default_rng(0)
    value_of = rng.integers(1 << 64, size=int(ids.max()) + 1, dtype=np.uint64)
    base = rng.integers(1 << 64, dtype=np.uint64) | np.uint64(1)
    # Horner's rule, one token of all windows at a time.
    for offset in range(n):
        hashes *= base
        hashes += value_of[ids[offset : offset + length]]
    return hashes


def _rows_per_hash(
    hashes: NDArray[np.uint64], row_of: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ascending distinct hashes' numbers of rows and first places in the arrays."""
    # Stable, so that the rows of one hash stay ascending.
    order = np.argsort(hashes, kind="stable")
    hashes, row_of = hashes[order], row_of[order]
    # Mark where a new hash begins, and where a new row of one hash begins.
    new_hash = np.ones(len(hashes), bool)
    new_hash[1:] = hashes[1:] != hashes[:-1]
    new_row = new_hash.copy()
    new_row[1:] |= row_of[1:] != row_of[:-1]
    starts = np.flatnonzero(new_hash)
    counts = (
        np.add.reduceat(new_row.astype(np.int64), starts) if len(starts) else np.zeros(0, np.int64)
    )
    return counts, order[starts]


def _occurrences(
    ids: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    whole: NDArray[np.bool_],
    starts: NDArray[np.int64],
    grams: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of the chosen n-grams, and which n-gram is at each position."""
    # Candidates by hash, then compared token by token.
    by_hash = np.argsort(hashes[starts])
    sorted_hashes = hashes[starts][by_hash]
    positions = np.flatnonzero(whole & np.isin(hashes, sorted_hashes))
    gram_at = by_hash[np.searchsorted(sorted_hashes, hashes[positions])]
    same = np.ones(len(positions), bool)
    for offset in range(grams.shape[1]):
        same &= ids[positions + offset] == grams[gram_at, offset]
    return positions[same], gram_at[same]

"""Levenshtein distance, normalised by the longer sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def normalised_edit_distance(a: Sequence[int], b: Sequence[int]) -> float:
    """Return the Levenshtein distance of two sequences over the length of the longer one.

    Returns:
        0 for equal sequences (two empty ones included), 1 for sequences that have nothing in common.

    Source: Levenshtein 1966; the recursion of Wagner and Fischer 1974, one row at a time.
    """
    left, right = np.asarray(a, np.int64), np.asarray(b, np.int64)
    if not max(len(left), len(right)):
        return 0.0
    columns = np.arange(len(right) + 1)
    row = columns.copy()
    for i, symbol in enumerate(left, start=1):
        best = np.minimum(row[1:] + 1, row[:-1] + (right != symbol))
        # A cell also follows from its left neighbour by one insertion, so take a running minimum along the row.
        row = np.minimum.accumulate(np.concatenate([[i], best]) - columns) + columns
    return float(row[-1]) / max(len(left), len(right))

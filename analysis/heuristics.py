"""The pairwise heuristics of Hu et al. (2025), §4.2, and how often they are right (their Fig. 7)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.points import configuration_means, configurations


def predicted_more_private(means: pd.DataFrame) -> dict[str, NDArray[np.bool_]]:
    """What each heuristic says of each pair of configurations.

    Args:
        means: m distinct configurations with batch_size b, num_steps T and learning_rate η.

    Returns:
        heuristic -> [m, m], true at [i, j] where i is predicted to leak less than j: "individual": T, b and η all at
        most j's, one smaller; "compute": equal C and η, larger b; "updates": equal U, smaller η. C = b·T and U = C·η
        are compared exactly, never as floats.

    Source: Hu et al. 2025, §4.2.
    """
    listed = configurations(means)
    batch_size, num_steps, learning_rate = (_ranks([getattr(c, name) for c in listed]) for name in _FIELDS)
    compute, updates = _codes([c.compute for c in listed]), _codes([c.updates for c in listed])
    at_most = _less_equal(num_steps) & _less_equal(batch_size) & _less_equal(learning_rate)
    return {
        "individual": at_most & ~at_most.T,
        "compute": _equal(compute) & _equal(learning_rate) & ~_less_equal(batch_size),
        "updates": _equal(updates) & ~_less_equal(learning_rate).T,
    }


def heuristic_accuracy(points: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """How often each heuristic names the configuration with the lower mean score.

    Args:
        points: a points table; configurations are compared by their means over seeds.

    Returns:
        heuristic -> {"correct", "pairs", "accuracy"}: accuracy = correct / all pairs that satisfy its condition. A tie
        in the score is not correct. Without such a pair, accuracy is None and "reason" says so.

    Raises:
        ValueError: as `configuration_means`.

    Source: Hu et al. 2025, §4.2, Fig. 7 and App. D.1.
    """
    means = configuration_means(points)
    score = means["score"].to_numpy()
    lower = score[:, None] < score[None, :]
    result: dict[str, dict[str, Any]] = {}
    for name, predicted in predicted_more_private(means).items():
        pairs, correct = int(predicted.sum()), int((predicted & lower).sum())
        result[name] = {"correct": correct, "pairs": pairs, "accuracy": correct / pairs if pairs else None}
        if not pairs:
            result[name]["reason"] = f"no two configurations satisfy the condition of the {name} heuristic"
    return result


_FIELDS = ("batch_size", "num_steps", "learning_rate")


def _codes(values: Sequence[Hashable]) -> NDArray[np.int64]:
    """Integers that are equal where the values are; for integers and fractions of any size."""
    codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
    return np.array([codes[value] for value in values], dtype=np.int64)


def _ranks(values: Sequence[float]) -> NDArray[np.int64]:
    """Integers in the order of the values, equal where they are. Two learning rates are equal as decimals if and only
    if they are equal as doubles, since each stands for its shortest decimal."""
    ranks: NDArray[np.int64] = np.unique(np.asarray(values), return_inverse=True)[1]
    return ranks


def _equal(codes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[m, m] whether i's code equals j's."""
    pairs: NDArray[np.bool_] = np.equal.outer(codes, codes)
    return pairs


def _less_equal(codes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[m, m] whether i's code is at most j's."""
    pairs: NDArray[np.bool_] = np.less_equal.outer(codes, codes)
    return pairs

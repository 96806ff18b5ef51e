"""The pairwise heuristics of Hu et al. (2025), §4.2, and their accuracy (Fig. 7).

The paper varies b, T and η alone. Configurations that set different further fields are therefore
never compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.statistics.results import Reason
from raydp.analysis.tables.columns import SETTINGS
from raydp.analysis.tables.points import configuration_means
from raydp.search_spaces.configuration import HYPERPARAMETERS, exact

HEURISTICS = ("individual", "compute", "updates")

_CELLS_AT_ONCE = 4_000_000  # pairs evaluated together: a few MB per comparison

Indices = NDArray[np.intp]
Codes = NDArray[np.int32]
Ordered = NDArray[np.int32] | NDArray[np.float64]


class Accuracy(Reason):
    """How often a heuristic is right, among the pairs that satisfy its condition."""

    correct: int
    pairs: int
    accuracy: float | None


@dataclass(frozen=True, kw_only=True)
class Coded:
    """Integer codes of m distinct configurations in the order (T, b, η, settings).

    C = b·T and U = C·η are compared exactly, as fractions, before they are coded.

    Attributes:
        batch_size, num_steps, learning_rate: [m] ranks.
        same_settings: [m] codes that are equal if the further fields are equal.
        same_compute: [m] codes that are equal if the further fields, C and η are equal.
        same_updates: [m] codes that are equal if the further fields and U are equal.
    """

    batch_size: Codes
    num_steps: Codes
    learning_rate: Codes
    same_settings: Codes
    same_compute: Codes
    same_updates: Codes

    @classmethod
    def of(cls, means: pd.DataFrame) -> Coded:
        """Return the codes of a table of configuration means."""
        ranks = {name: _ranks(means[name].to_numpy()) for name in HYPERPARAMETERS}
        # Products of Python's integers are exact at any size.
        compute = [
            b * t
            for b, t in zip(means["batch_size"].tolist(), means["num_steps"].tolist(), strict=True)
        ]
        rates = _whole(means["learning_rate"].tolist())
        settings = _codes(means[SETTINGS].tolist())
        of = settings.tolist()
        return cls(
            **ranks,
            same_settings=settings,
            same_compute=_codes(list(zip(of, compute, rates, strict=True))),
            same_updates=_codes(
                [(s, c * rate) for s, c, rate in zip(of, compute, rates, strict=True)]
            ),
        )

    def __len__(self) -> int:
        return len(self.batch_size)

    def take(self, members: Indices) -> Coded:
        """Return the codes of some configurations, in the same order."""
        return Coded(**{field.name: getattr(self, field.name)[members] for field in fields(self)})


def pair_blocks(
    coded: Coded, heuristic: str
) -> Iterator[tuple[Indices, Indices, NDArray[np.bool_]]]:
    """Yield the pairs that satisfy a heuristic's condition, in blocks, to save memory.

    Args:
        coded: the configurations. Only those with the same further fields are compared.
        heuristic: "individual": T, b and η of i are at most j's, and one is smaller; "compute": C
            and η are equal, and b is larger; "updates": U is equal, and η is smaller.

    Yields:
        rows [r], columns [c], and holds [r, c]: whether configuration rows[i] should leak less than
        columns[j].

    Source: Hu et al. 2025, §4.2.
    """
    if heuristic == "individual":
        yield from _individual(coded)
    elif heuristic == "compute":
        yield from _within_groups(coded.same_compute, -coded.batch_size)
    else:
        yield from _within_groups(coded.same_updates, coded.learning_rate)


def heuristic_accuracy(points: pd.DataFrame) -> dict[str, Accuracy]:
    """Return how often each heuristic names the configuration with the lower mean score.

    Args:
        points: a points table; configurations with the same further fields are compared by their
            means over seeds.

    Returns:
        heuristic -> {"correct", "pairs", "accuracy"}: accuracy = correct / all pairs that satisfy
        the condition. A tie in the score is not correct. If no pair satisfies the condition,
        accuracy is None and "reason" is given.

    Raises:
        ValueError: as `configuration_means`.

    Source: Hu et al. 2025, §4.2, Fig. 7 and App. D.1.
    """
    means = configuration_means(points)
    # Ranks compare as the scores do, and integers compare faster.
    coded, score = Coded.of(means), _ranks(means["score"].to_numpy())
    accuracies = pair_accuracies(coded, score, lambda rows, columns: True)
    for name, accuracy in accuracies.items():
        if not accuracy["pairs"]:
            accuracy["reason"] = (
                f"no two configurations satisfy the condition of the {name} heuristic"
            )
    return accuracies


def pair_accuracies(
    coded: Coded,
    score: Ordered,
    counts_fn: Callable[[Indices, Indices], NDArray[np.bool_] | bool],
) -> dict[str, Accuracy]:
    """Return how often each heuristic is right among the pairs that count.

    Args:
        coded: the configurations.
        score: [m] their scores, or the scores' ranks.
        counts_fn: rows [r], columns [c] -> [r, c], whether a pair counts.
    """
    accuracies: dict[str, Accuracy] = {}
    for name in HEURISTICS:
        pairs = correct = 0
        for rows, columns, holds in pair_blocks(coded, name):
            counted = holds & counts_fn(rows, columns)
            pairs += int(np.count_nonzero(counted))
            correct += int(np.count_nonzero(counted & (score[rows, None] < score[columns])))
        share = correct / pairs if pairs else None
        accuracies[name] = {"correct": correct, "pairs": pairs, "accuracy": share}
    return accuracies


def _individual(coded: Coded) -> Iterator[tuple[Indices, Indices, NDArray[np.bool_]]]:
    """Yield pairs of the individual heuristic: the smaller is earlier in the order (T, b, η)."""
    size, start = len(coded), 0
    while start < size:
        # The columns become fewer with each block, so later blocks take more rows.
        end = min(size, start + max(1, _CELLS_AT_ONCE // (size - start)))
        rows, columns = np.arange(start, end), np.arange(start, size)
        holds = coded.batch_size[rows, None] <= coded.batch_size[columns]
        holds &= coded.learning_rate[rows, None] <= coded.learning_rate[columns]
        holds &= coded.same_settings[rows, None] == coded.same_settings[columns]
        # Within the block's own rows, only a later configuration can be larger.
        holds[:, : end - start] &= np.triu(np.ones((end - start, end - start), dtype=np.bool_), k=1)
        yield rows, columns, holds
        start = end


def _within_groups(
    groups: Codes, smaller: Codes
) -> Iterator[tuple[Indices, Indices, NDArray[np.bool_]]]:
    """Yield pairs within each group whose first member has the smaller figure."""
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups)
    ends = np.cumsum(sizes)
    for group in np.flatnonzero(sizes > 1):
        members = order[ends[group] - sizes[group] : ends[group]]
        step = max(1, _CELLS_AT_ONCE // len(members))
        for start in range(0, len(members), step):
            rows = members[start : start + step]
            yield rows, members, smaller[rows, None] < smaller[members]


def _whole(values: Sequence[float]) -> list[int]:
    """Return the written decimals, multiplied to integers, which hash faster than fractions."""
    fractions = {value: exact(value) for value in dict.fromkeys(values)}
    common = math.lcm(*(fraction.denominator for fraction in fractions.values()))
    scaled = {
        value: fraction.numerator * (common // fraction.denominator)
        for value, fraction in fractions.items()
    }
    return [scaled[value] for value in values]


def _codes(values: Sequence[Hashable]) -> Codes:
    """Return integers from 0 that are equal if the values are, such as integers of any size."""
    codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
    return np.array([codes[value] for value in values], dtype=np.int32)


def _ranks(values: NDArray[np.generic]) -> Codes:
    """Return integers in the order of the values, equal if the values are equal.

    Two learning rates are equal as decimals if and only if they are equal as doubles, because each
    double stands for its shortest decimal.
    """
    ranks: Codes = np.unique(values, return_inverse=True)[1].astype(np.int32)
    return ranks

"""Test whether scores follow the heuristics, allowing for pairs that share configurations."""

from __future__ import annotations

from typing import Literal, TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.statistics.heuristics import HEURISTICS, Coded, Codes, pair_blocks
from raydp.analysis.statistics.results import Reason, holm
from raydp.analysis.tables.points import configuration_means

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

PERMUTATIONS = 5000
LEVEL = 0.05
_MOST_PAIRS = 20_000
_CELLS_AT_ONCE = 2_000_000
# accuracies are counts over fewer than 1e9 pairs, so smaller differences are rounding
_ROUNDING = 1e-9


class HeuristicTest(Reason):
    """The test of one heuristic (`verify_heuristics` explains the figures)."""

    accuracy: float | None
    pairs: int
    expected: float | None
    p: float | None
    p_adjusted: float | None
    p_if_all_correct: float | None
    verdict: Literal["follows", "contradicts", "cannot tell"]


class Verification(TypedDict):
    """The tests of all heuristics."""

    level: float
    permutations: int
    heuristics: dict[str, HeuristicTest]


def verify_heuristics(
    points: pd.DataFrame, *, num_permutations: int = PERMUTATIONS, seed: int = 0
) -> Verification:
    """Test each heuristic against the null hypothesis that scores are unrelated to it.

    Args:
        points: a points table.
        num_permutations: number of permutations of the test.
        seed: seed of the permutations.

    Pairs share configurations and are not independent, so a binomial test of the accuracy would be
    overconfident. The test permutes the mean scores instead: over all configurations for the
    individual heuristic, within the groups of equal (C, η) for compute, and of equal U for updates.
    Under the null hypothesis that scores within a group are unrelated to the hyperparameters, every
    permutation is equally likely. The p-value is therefore exact for any distribution of the
    scores. The smaller of the two one-sided p-values is doubled. The three heuristics are corrected
    after Holm.

    Returns:
        {"level": 0.05, "permutations", "heuristics": {name: {"accuracy", "pairs", "expected" (mean
        accuracy over the permutations; below 1/2 if scores tie), "p", "p_adjusted",
        "p_if_all_correct" (the p-value that these pairs would give if all were correct),
        "verdict"}}}. The verdict is "follows" or "contradicts" if the adjusted p is at most the
        level, else "cannot tell". Undefined figures are None, with a "reason".

    Raises:
        ValueError: as `configuration_means`, or fewer than 100 permutations.

    Source: Hu et al. 2025, §4.2 for the accuracy; Fisher 1935 (permutation tests); Holm 1979.
    """
    if num_permutations < 100:
        raise ValueError(
            f"num_permutations must be >= 100, got {num_permutations}. The default is "
            f"{PERMUTATIONS}."
        )
    means = configuration_means(points)
    coded, score = Coded.of(means), means["score"].to_numpy()
    everywhere = np.zeros(len(means), dtype=np.int32)
    # Under the null hypothesis, scores can be exchanged only within these groups.
    groups = {
        "individual": everywhere,
        "compute": coded.same_compute,
        "updates": coded.same_updates,
    }
    rng = np.random.default_rng(seed)
    tests = {
        name: _test(coded, name, score, groups[name], num_permutations, rng) for name in HEURISTICS
    }
    _adjust(list(tests.values()))
    return {"level": LEVEL, "permutations": num_permutations, "heuristics": tests}


def _test(
    coded: Coded,
    heuristic: str,
    score: Array,
    groups: Codes,
    num_permutations: int,
    rng: np.random.Generator,
) -> HeuristicTest:
    """Return one heuristic's accuracy and the share of permutations that reach it."""
    lower, higher, pairs = _pairs(coded, heuristic, rng)
    result: HeuristicTest = {
        "accuracy": None,
        "pairs": pairs,
        "expected": None,
        "p": None,
        "p_adjusted": None,
        "p_if_all_correct": None,
        "verdict": "cannot tell",
    }
    if not pairs:
        return {**result, "reason": "no two configurations satisfy its condition"}
    result["accuracy"] = accuracy = float((score[lower] < score[higher]).mean())
    # Equal scores are the same in every permutation.
    if np.ptp(score[np.concatenate([lower, higher])]) == 0:
        return {**result, "reason": "the score is the same in all of these configurations"}
    # The same statistic on permuted scores, in blocks that bound the memory.
    step = max(1, _CELLS_AT_ONCE // max(len(score), len(lower)))
    parts = []
    for start in range(0, num_permutations, step):
        permuted = _permuted(score, groups, min(step, num_permutations - start), rng)
        parts.append((permuted[:, lower] < permuted[:, higher]).mean(axis=1))
    accuracies = np.concatenate(parts)
    # Two one-sided p-values. An accuracy equal up to rounding counts as reached.
    above, below = (
        _share(accuracies >= accuracy - _ROUNDING),
        _share(accuracies <= accuracy + _ROUNDING),
    )
    return {
        **result,
        "expected": float(accuracies.mean()),
        "p": min(1.0, 2 * min(above, below)),
        "p_if_all_correct": min(1.0, 2 * _share(accuracies >= 1 - _ROUNDING)),
        "verdict": "follows" if above <= below else "contradicts",
    }


def _share(reached: NDArray[np.bool_]) -> float:
    """Return the share of permutations that reach the accuracy. The table itself counts as one."""
    return float((1 + np.count_nonzero(reached)) / (1 + len(reached)))


def _adjust(tests: list[HeuristicTest]) -> None:
    """Apply Holm's correction, and set verdicts that are no longer significant to "cannot tell"."""
    for test, adjusted in zip(tests, holm([test["p"] for test in tests]), strict=True):
        if adjusted is None:
            continue
        test["p_adjusted"] = adjusted
        if adjusted > LEVEL:
            test["verdict"] = "cannot tell"
            if (at_best := test["p_if_all_correct"]) is not None and at_best > LEVEL:
                test["reason"] = (
                    f"with {test['pairs']} pairs not even all correct would be beyond chance"
                )


def _permuted(score: Array, groups: Codes, count: int, rng: np.random.Generator) -> Array:
    """Permute the scores at random within the groups, shape [count, m]."""
    permuted = np.tile(score, (count, 1))
    if np.ptp(groups) == 0:
        return rng.permuted(permuted, axis=1, out=permuted)
    # Groups of one member have nothing to permute.
    shared = np.flatnonzero(np.bincount(groups)[groups] > 1)
    of_group = groups[shared]
    # A random key below 1 added to the group's number: sorting shuffles within the groups.
    shuffled = np.argsort(of_group + rng.random((count, len(shared))), axis=1)
    permuted[:, shared[np.argsort(of_group, kind="stable")]] = score[shared][shuffled]
    return permuted


def _pairs(coded: Coded, heuristic: str, rng: np.random.Generator) -> tuple[Indices, Indices, int]:
    """Return pairs that satisfy a condition, and their number.

    A random sample of very many pairs is returned.

    The sample does not depend on the scores, so the permutation test stays exact.
    """
    count = sum(int(np.count_nonzero(holds)) for _, _, holds in pair_blocks(coded, heuristic))
    share = min(1.0, _MOST_PAIRS / count) if count else 1.0
    lower, higher = [np.empty(0, dtype=np.intp)], [np.empty(0, dtype=np.intp)]
    for rows, columns, holds in pair_blocks(coded, heuristic):
        i, j = np.nonzero(holds)
        if share < 1:
            some = np.flatnonzero(rng.random(len(i)) < share)
            i, j = i[some], j[some]
        lower.append(rows[i])
        higher.append(columns[j])
    return np.concatenate(lower), np.concatenate(higher), count

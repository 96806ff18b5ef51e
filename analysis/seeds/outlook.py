"""What a decision would need that the measurements do not give."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analysis.seeds.what_if import Measured

MOST_SEEDS = 1024
"""So many seeds leave hardly any error over seeds."""
_MOST_SECRETS = 64  # times as many as were measured
_REMEDY = "Measure more secrets (more lines of the secrets file, or more canaries of the task `planted`)"


def outlook(measured: Measured, pool: NDArray[np.bool_], selected: int, *, confidence: float, tolerance: float) -> str:
    """Say in a sentence what would decide between the members of a pool if the means stayed as they are.

    Args:
        pool: [m] the configurations to compare.
        selected: position of the selected one.
        confidence, tolerance: as for `select`.
    """
    now = int(measured.means["num_seeds"].to_numpy()[pool].min())
    for num_seeds in _doubled(now, MOST_SEEDS):
        if _settled(measured, pool, selected, confidence, tolerance, num_seeds=num_seeds):
            return f"If the means stayed as they are, about {num_seeds} seeds of each configuration would decide."
    if measured.of_secrets is None:
        return "The scores differ too little: if the means stayed as they are, no number of seeds would decide."
    more = more_secrets(measured, pool, selected, confidence=confidence, tolerance=tolerance)
    return f"If the means stayed as they are, no number of seeds would decide. {more}"


def more_secrets(
    measured: Measured, pool: NDArray[np.bool_], selected: int, *, confidence: float, tolerance: float
) -> str:
    """Say in a sentence how many secrets would decide if the means stayed as they are; the arguments as `outlook`'s."""
    for times in _doubled(1, _MOST_SECRETS):
        if _settled(measured, pool, selected, confidence, tolerance, times_secrets=times):
            return f"{_REMEDY}: about {times} times as many would decide if the means stayed as they are."
    if _settled(measured, pool, selected, confidence, tolerance, num_seeds=MOST_SEEDS, times_secrets=_MOST_SECRETS):
        return f"{_REMEDY}, and many more seeds: it would take both if the means stayed as they are."
    return "The scores differ too little to be told apart by more seeds or more secrets."


def _settled(
    measured: Measured,
    pool: NDArray[np.bool_],
    selected: int,
    confidence: float,
    tolerance: float,
    *,
    num_seeds: int = 0,
    times_secrets: int = 1,
) -> bool:
    """Return whether more measurements with the same means would decide that the selected configuration is the best."""
    scores = measured.posterior(num_seeds=num_seeds, times_secrets=times_secrets)
    return max(measured.chances(scores, pool, selected, tolerance)) >= confidence


def _doubled(start: int, largest: int) -> list[int]:
    """Return the doublings of a number, without itself, up to the largest."""
    values = []
    while (start := 2 * start) <= largest:
        values.append(start)
    return values

"""What a decision would need that the measurements do not give."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analysis.seeds.what_if import Measured

_MOST_SEEDS, _MOST_SECRETS = 1024, 64


def outlook(measured: Measured, pool: NDArray[np.bool_], selected: int, *, confidence: float, tolerance: float) -> str:
    """Say in a sentence what would decide between the members of a pool if the means stayed as they are.

    Args:
        pool: [m] the configurations to compare.
        selected: position of the selected one.
        confidence, tolerance: as for `select`.
    """

    def settled(num_seeds: int = 0, times_secrets: int = 1) -> bool:
        scores = measured.posterior(num_seeds=num_seeds, times_secrets=times_secrets)
        return max(measured.chances(scores, pool, selected, tolerance)) >= confidence

    now = int(measured.means["num_seeds"].to_numpy()[pool].min())
    for num_seeds in _doubled(now, _MOST_SEEDS):
        if settled(num_seeds):
            return f"If the means stayed as they are, about {num_seeds} seeds of each configuration would decide."
    if measured.of_secrets is None:
        return "The scores differ too little: if the means stayed as they are, no number of seeds would decide."
    for times in _doubled(1, _MOST_SECRETS):
        if settled(times_secrets=times):
            return (
                f"If the means stayed as they are, no number of seeds would decide, and about {times} times as many "
                "secrets would."
            )
    if settled(_MOST_SEEDS, _MOST_SECRETS):
        return "If the means stayed as they are, it would take both many more seeds and many more secrets."
    return "The scores differ too little to be told apart by more seeds or more secrets."


def _doubled(start: int, largest: int) -> list[int]:
    """Return the doublings of a number, without itself, up to the largest."""
    values = []
    while (start := 2 * start) <= largest:
        values.append(start)
    return values

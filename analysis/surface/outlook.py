"""The measurements that a decision still lacks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raydp.analysis.tables.points import configurations
from raydp.search_spaces.configuration import Hyperparameters

if TYPE_CHECKING:
    from raydp.analysis.surface.what_if import MeasuredScores

MOST_SEEDS = 1024
"""So many seeds leave hardly any error over seeds."""
_MOST_SECRETS = 64  # times as many as were measured
_REMEDY = (
    "Measure more secrets (more lines of the secrets file, or more canaries of the task `planted`)"
)


class FurtherSeeds(Hyperparameters):
    """The number of seeds to add to one configuration."""

    seeds: int


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The seeds and secrets that would decide if the means stayed as they are.

    Attributes:
        further_seeds: the configurations that need further seeds, each with their number. Empty if
            nothing is left to decide, if no number of seeds would decide, or if it is not known.
        num_seeds: the number of seeds of each that would decide; None without further seeds.
        times_secrets: how many times as many secrets would decide without further seeds. None if no
            such number would, if further seeds would, or if it is not known.
        sentence: the answer in words.
    """

    further_seeds: tuple[FurtherSeeds, ...] = ()
    num_seeds: int | None = None
    times_secrets: int | None = None
    sentence: str

    @property
    def short(self) -> str | None:
        """Return what would decide in a few words; None if nothing would, or if it is not known."""
        if self.further_seeds:
            runs = sum(one["seeds"] for one in self.further_seeds)
            return f"about {self.num_seeds} seeds of each would decide: {runs} further runs"
        if self.times_secrets is not None:
            return f"about {self.times_secrets} times as many secrets would decide"
        return None


def outlook(
    measured: MeasuredScores, pool: NDArray[np.bool_], *, confidence: float, tolerance: float
) -> Outlook:
    """Return what would decide between the members of a pool if the means stayed as they are.

    Args:
        measured: the measured scores. They do not decide yet.
        pool: [m] the configurations to compare.
        confidence, tolerance: as for `select`.
    """
    now = int(measured.means["num_seeds"].to_numpy()[pool].min())
    decided = partial(settled, measured, pool, confidence=confidence, tolerance=tolerance)
    # Each try fits a model. If the largest number does not decide, no smaller one is tried.
    if decided(num_seeds=MOST_SEEDS):
        needed = _smallest(
            [*_doubled(now, MOST_SEEDS), MOST_SEEDS], lambda count: decided(num_seeds=count)
        )
        assert needed is not None
        members = np.flatnonzero(pool)
        sentence = (
            f"If the means stayed as they are, about {needed} seeds of each of the {len(members)} "
            "compared configurations would decide."
        )
        listed, counts = (
            configurations(measured.means.iloc[members]),
            measured.means["num_seeds"].to_numpy()[members],
        )
        # Some configurations may have that many seeds already.
        more: list[FurtherSeeds] = [
            {**configuration.to_json(), "seeds": needed - int(count)}
            for configuration, count in zip(listed, counts, strict=True)
            if count < needed
        ]
        return Outlook(further_seeds=tuple(more), num_seeds=needed, sentence=sentence)
    # Seeds would not decide. Without values by secret, nothing is known of more secrets.
    if measured.of_secrets is None:
        sentence = "The scores differ too little: if the means stayed as they are, no number of seeds would decide."
        return Outlook(sentence=sentence)
    by_secrets = more_secrets(measured, pool, confidence=confidence, tolerance=tolerance)
    sentence = (
        f"If the means stayed as they are, no number of seeds would decide. {by_secrets.sentence}"
    )
    return replace(by_secrets, sentence=sentence)


def more_secrets(
    measured: MeasuredScores, pool: NDArray[np.bool_], *, confidence: float, tolerance: float
) -> Outlook:
    """Return how many secrets would decide if the means stayed as they are; see `outlook`."""
    decided = partial(settled, measured, pool, confidence=confidence, tolerance=tolerance)
    times = _smallest(_doubled(1, _MOST_SECRETS), lambda count: decided(times_secrets=count))
    if times is not None:
        sentence = (
            f"{_REMEDY}: about {times} times as many would decide if the means stayed as they are."
        )
        return Outlook(times_secrets=times, sentence=sentence)
    # Neither alone decides, but both together may.
    if decided(num_seeds=MOST_SEEDS, times_secrets=_MOST_SECRETS):
        sentence = (
            f"{_REMEDY}, and many more seeds: it would take both if the means stayed as they are."
        )
        return Outlook(sentence=sentence)
    return Outlook(
        sentence="The scores differ too little to be told apart by more seeds or more secrets."
    )


def settled(
    measured: MeasuredScores,
    pool: NDArray[np.bool_],
    *,
    confidence: float,
    tolerance: float,
    num_seeds: int = 0,
    times_secrets: int = 1,
) -> bool:
    """Return whether so many measurements show that a member is the lowest or close to it.

    Args:
        measured, pool, confidence, tolerance: as for `outlook`.
        num_seeds, times_secrets: as for `Measured.posterior`. The defaults are what was measured.
    """
    scores = measured.posterior(num_seeds=num_seeds, times_secrets=times_secrets)
    _, within = scores.chances(pool, tolerance, log_base=measured.log_base)
    return bool(within[pool].max() >= confidence)


def _smallest(counts: Sequence[int], decides_fn: Callable[[int], bool]) -> int | None:
    """Return the smallest of rising numbers that decides, by bisection: larger ones decide too."""
    place = bisect_left(counts, True, key=decides_fn)
    return counts[place] if place < len(counts) else None


def _doubled(start: int, largest: int) -> list[int]:
    """Return the doublings of a number, without itself, up to the largest."""
    values = []
    while (start := 2 * start) <= largest:
        values.append(start)
    return values

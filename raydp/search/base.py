"""The seam of search strategies: what they are told and what they answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.selection.default import DEFAULT_RULE
from analysis.tables.points import KEY
from search_spaces import Configuration


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a search by Optuna is told of a configuration that has finished.

    Attributes:
        utility_loss, score: means over its seeds.
        exceeds: name of a bound -> by how much it is exceeded, in the bound's unit; at most 0 where it is kept.
    """

    utility_loss: float
    score: float
    exceeds: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What the configuration that is selected at the end must keep to, and how it is selected.

    Attributes:
        rule: a name of `analysis.RULES`.
        max_loss: the utility threshold u; None where a share of the best gain is asked for, or nothing.
        min_utility_gain: share of the best gain over the pre-trained model.
        base_utility_loss: the pre-trained model's loss.
        max_score, at_most: other bounds of the selection, see `analysis.selection.constraints.Constraints`. What a
            bound rules out before it runs (σ, ε, compute) is no candidate.
    """

    rule: str = DEFAULT_RULE
    max_loss: float | None = None
    min_utility_gain: float | None = None
    base_utility_loss: float | None = None
    max_score: float | None = None
    at_most: Mapping[str, float] = field(default_factory=dict)

    def threshold(self, best_loss: NDArray[np.float64]) -> NDArray[np.float64]:
        """The largest utility loss that is allowed where the best one is this, of the same shape; infinite without a
        threshold."""
        if self.max_loss is not None:
            return np.full_like(best_loss, self.max_loss)
        if self.min_utility_gain is None or self.base_utility_loss is None:
            return np.full_like(best_loss, np.inf)
        allowed: NDArray[np.float64] = self.base_utility_loss - self.min_utility_gain * (
            self.base_utility_loss - best_loss
        )
        return allowed


@dataclass(frozen=True, kw_only=True)
class SearchState:
    """How far a search has come; a strategy answers from this alone, so that a search can be gone on with.

    Attributes:
        candidates: all configurations of the space, in the order (T, b, η).
        points: the points table of what has finished, None before anything has.
        running: configurations that are being run.
        failed: configurations none of whose runs has finished, or will.
        folder: the sweep's own, where a strategy may keep a file with its name; None where nothing is to be kept, as in
            a replay. What it keeps may be lost: the other attributes are the truth.
    """

    candidates: tuple[Configuration, ...]
    points: pd.DataFrame | None
    running: tuple[Configuration, ...] = ()
    failed: tuple[Configuration, ...] = ()
    folder: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What to run next.

    Attributes:
        configurations: at most as many as were asked for; empty with `finished` for the end, without it where a running
            one must be waited for.
        finished: nothing is left that is worth its cost.
        reason: of the end, one sentence.
        skipped: configuration -> why it is not run; given at the end.
    """

    configurations: tuple[Configuration, ...] = ()
    finished: bool = False
    reason: str | None = None
    skipped: Mapping[Configuration, str] = field(default_factory=dict)


class Search(Protocol):
    """A strategy."""

    def propose(self, state: SearchState, goal: Goal, count: int) -> Proposal:
        """The next configurations, at most `count`."""
        ...


def known(state: SearchState) -> list[Configuration]:
    """What has run, runs or has failed."""
    ran: set[tuple[int, int, float]] = set()
    if state.points is not None:
        ran = {(int(t), int(b), float(rate)) for t, b, rate in state.points[KEY].itertuples(index=False)}
    finished = [c for c in state.candidates if c.key in ran]
    return [*finished, *state.running, *state.failed]

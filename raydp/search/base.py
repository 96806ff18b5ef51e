"""The interface of search strategies: their input and their answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.selection.default import DEFAULT_RULE
from raydp.analysis.tables.points import configurations
from raydp.search_spaces import Configuration


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The result of a finished configuration, for a search by Optuna.

    Attributes:
        utility_loss, score: means over the configuration's seeds.
        exceeds: name of a bound -> by how much it is exceeded, in the bound's unit; at most 0 if the bound is kept.
    """

    utility_loss: float
    score: float
    exceeds: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The final selection's constraints and rule.

    Attributes:
        rule: a name in `raydp.analysis.RULES`.
        max_loss: the utility threshold u; None if a share of the best gain is asked for, or no threshold.
        min_utility_gain: share of the best gain over the pre-trained model.
        base_utility_loss: the pre-trained model's loss.
        max_score, at_most: other bounds of the selection, see `raydp.analysis.selection.constraints.Constraints`.
            Configurations that a bound excludes before they run (by σ, ε, compute) are not candidates.
    """

    rule: str = DEFAULT_RULE
    max_loss: float | None = None
    min_utility_gain: float | None = None
    base_utility_loss: float | None = None
    max_score: float | None = None
    at_most: Mapping[str, float] = field(default_factory=dict)

    def threshold(self, best_loss: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the largest allowed utility loss for each best loss, in the same shape. Infinite without threshold."""
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
    """The progress of a search. A strategy uses nothing else, so that a search can be resumed.

    Attributes:
        candidates: all configurations of the space, in the order (T, b, η).
        points: the points table of the finished runs, None if there are none.
        running: configurations that are running.
        failed: configurations none of whose runs has finished or will finish.
        folder: the sweep's folder, where a strategy may keep a file named after it; None if nothing may be kept, as
            in a replay. The file may be lost: the other attributes take precedence.
    """

    candidates: tuple[Configuration, ...]
    points: pd.DataFrame | None
    running: tuple[Configuration, ...] = ()
    failed: tuple[Configuration, ...] = ()
    folder: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The configurations to run next.

    Attributes:
        configurations: at most the requested number. If it is empty, the search has ended if `finished`, and otherwise
            waits for a running configuration.
        finished: whether nothing is left that is worth its cost.
        reason: why the search has ended, one sentence.
        skipped: configuration -> why it is not run; given at the end.
    """

    configurations: tuple[Configuration, ...] = ()
    finished: bool = False
    reason: str | None = None
    skipped: Mapping[Configuration, str] = field(default_factory=dict)


class Search(Protocol):
    """A search strategy."""

    def propose(self, state: SearchState, goal: Goal, count: int) -> Proposal:
        """Propose the next configurations, at most `count`."""
        ...


def known(state: SearchState) -> list[Configuration]:
    """Return the configurations that have finished, are running or have failed."""
    ran = set() if state.points is None else set(configurations(state.points))
    finished = [c for c in state.candidates if c in ran]
    return [*finished, *state.running, *state.failed]

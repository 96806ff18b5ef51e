"""The interface of search strategies, which choose the configurations that are run, in order.

It imports neither Ray nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.selection.constraints import Constraints
from raydp.analysis.selection.default import DEFAULT_RULE
from raydp.analysis.tables.points import configurations
from raydp.search_spaces import Configuration
from raydp.spec.sections.selection import SelectSpec


@dataclass(frozen=True, kw_only=True)
class Goal(Constraints):
    """The final selection's constraints and rule.

    Attributes:
        rule: the rule's name, see `raydp.analysis.selection.rules.rule_steps`.
        max_loss, min_gain_share, base_utility_loss, max_score, at_most: bounds of the selection,
            see `raydp.analysis.selection.constraints.Constraints`. Configurations that a bound
            excludes before they run (by σ, ε, compute) are not candidates.
    """

    rule: str = DEFAULT_RULE

    def threshold(self, best_loss: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the largest allowed utility loss for each best loss, in the same shape.

        Infinite without threshold.
        """
        if self.max_loss is not None:
            return np.full_like(best_loss, self.max_loss)
        if self.min_gain_share is None or self.base_utility_loss is None:
            return np.full_like(best_loss, np.inf)
        # L <= L_0 - s (L_0 - L_best): the gain is at least the share s of the best gain.
        allowed: NDArray[np.float64] = self.base_utility_loss - self.least_gain(
            self.base_utility_loss - best_loss
        )
        return allowed


def constraints_of(select: SelectSpec) -> Constraints:
    """Return the constraints of a spec's selection."""
    return Constraints(
        max_loss=select.max_loss,
        min_gain_share=select.min_gain_share,
        max_score=select.max_score,
        at_most=select.at_most,
    )


@dataclass(frozen=True, kw_only=True)
class SearchState:
    """The progress of a search. A strategy uses nothing else, so that a search can be resumed.

    Attributes:
        candidates: all configurations of the space, in the order (T, b, η).
        points: the points table of the finished runs, None if there are none.
        running: configurations that are running.
        failed: configurations none of whose runs has finished or will finish.
        folder: the sweep's folder, where a strategy may keep a file named after it; None if nothing
            may be kept, as in a replay. The file may be lost: the other attributes take precedence.
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
        configurations: at most the requested number. If it is empty, the search has ended if
            `finished`, and otherwise waits for a running configuration.
        finished: whether nothing is left that is worth its cost.
        reason: why the search has ended, one sentence.
        skipped: configuration -> why it is not run; given at the end.
    """

    configurations: tuple[Configuration, ...] = ()
    finished: bool = False
    reason: str | None = None
    skipped: Mapping[Configuration, str] = field(default_factory=dict)


class Search(Protocol):
    """A search strategy.

    Implemented by plug-ins, such as those of the extension `searches`.

    A strategy keeps no state between two calls, because a resumed sweep begins with a new object.
    The answer follows from `state`, the strategy's parameters and their seed.
    """

    def propose(self, state: SearchState, goal: Goal, count: int) -> Proposal:
        """Propose the next configurations.

        Args:
            state: the candidates and the results so far.
            goal: the rule and the constraints of the final selection.
            count: largest number of configurations to propose.
        """
        ...


def known(state: SearchState) -> list[Configuration]:
    """Return the configurations that have finished, are running or have failed."""
    ran = set() if state.points is None else set(configurations(state.points))
    finished = [c for c in state.candidates if c in ran]
    return [*finished, *state.running, *state.failed]

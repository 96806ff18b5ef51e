"""Give out a sweep's runs one after another, as a search proposes their configurations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import pandas as pd

from raydp.analysis.tables.columns import KEY, with_settings
from raydp.analysis.tables.points import configurations
from raydp.plugins.rules import rule_at
from raydp.search_spaces import Configuration
from raydp.spec.document import SweepSpec
from raydp.sweep.search import Goal, Search, SearchState, constraints_of
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.points import points_table
from raydp.sweep.store.results import RunResult
from raydp.sweep.store.state import SearchEnd
from raydp.training.trial_plan import TrialPlan

KNOWN_BEFORE = {
    "batch_size",
    "num_steps",
    "learning_rate",
    "compute",
    "noise_multiplier",
    "epsilon",
    "delta",
}
"""Figures of a configuration that are known before it runs."""


@dataclass(kw_only=True)
class StepwiseSource(ABC):
    """Gives out runs one after another, each of which may depend on the results so far.

    Implemented by `SearchSource` and `SeedSource`.

    All state is in the sweep's folder, so that a sweep can be resumed.

    Attributes:
        base_fn: waits for the measurement of the untrained model and returns it; None if there is
            no measurement.
        finished: whether no more runs will be chosen. Runs may still wait to be given out.
        handed_out: how many runs were given out.
    """

    spec: SweepSpec
    folder: SweepFolder
    trials: Sequence[TrialPlan]
    base_fn: Callable[[], RunResult | None]
    _waiting: deque[str] = field(default_factory=deque)
    finished: bool = False
    handed_out: int = 0

    def next_run(self) -> str | None:
        """Return the next run. None: there is none now, and never again if `finished` is set."""
        if not self._waiting and not self.finished:
            self._choose()
        if not self._waiting:
            return None
        self.handed_out += 1
        return self._waiting.popleft()

    def upcoming(self, count: int) -> list[str]:
        """Return at most `count` of the next runs that are known now.

        They are not yet given out.
        """
        runs: list[str] = []
        while len(runs) < count and (run_id := self.next_run()) is not None:
            runs.append(run_id)
        # Put them back at the front in their order: they are known, but not given out.
        self._waiting.extendleft(reversed(runs))
        self.handed_out -= len(runs)
        return runs

    @abstractmethod
    def given(self) -> list[str]:
        """Return every run that was given out."""

    @abstractmethod
    def _choose(self) -> None:
        """Let further runs wait, if results allow a choice, or set `finished`."""

    def _has_threshold(self) -> bool:
        """Return whether the utility threshold is known.

        The threshold may be a share of the gain over the untrained model.
        """
        return self.folder.result(BASE_RUN) is not None or self.spec.select.max_loss is not None


@dataclass(kw_only=True)
class SearchSource(StepwiseSource):
    """Gives out the runs of the configurations that a search proposes from the results so far.

    A resumed sweep begins with the missing seeds of the configurations that were begun, and then
    asks the search again. A configuration that a bound of the selection rules out before it runs is
    not a candidate.
    """

    search: Search
    _given: list[Configuration] = field(default_factory=list)
    # The configurations that had ended when the search chose to wait; None if it did not wait.
    _seen: tuple[Configuration, ...] | None = None

    def __post_init__(self) -> None:
        self._runs: dict[Configuration, list[str]] = {}
        for trial in self.trials:
            self._runs.setdefault(trial.configuration, []).append(trial.run_id)
        # A resumed sweep first completes the configurations that were begun.
        for configuration, runs in self._runs.items():
            if any(self.folder.trial(run_id).exists() for run_id in runs):
                self._give(configuration)
        # Only figures that are fixed before a run can rule a configuration out without training it.
        bounds = {k: v for k, v in self.spec.select.at_most.items() if k in KNOWN_BEFORE}
        self._ruled_out = (
            ruled_out(points_table(self.folder), bounds, keep=self._given) if bounds else {}
        )

    def _choose(self) -> None:
        # Wait for the untrained model: the utility threshold may be relative to its loss.
        base = self.base_fn()
        if not self._has_threshold():
            return
        # Means compare over equal seeds, so a configuration counts once all its seeds have ended.
        ended = tuple(
            c for c in self._given if all(self.folder.result(run_id) for run_id in self._runs[c])
        )
        if ended == self._seen:
            return  # no new result since the search chose to wait
        proposal = self.search.propose(self._state(ended), self._goal(base), 1)
        if proposal.finished:
            self._end(proposal.reason, proposal.skipped)
        elif not proposal.configurations:
            self._seen = ended
        for configuration in proposal.configurations:
            self._give(configuration)

    def given(self) -> list[str]:
        """Return every run that was given out."""
        return [run_id for configuration in self._given for run_id in self._runs[configuration]]

    def _give(self, configuration: Configuration) -> None:
        self._given.append(configuration)
        # A resumed sweep has some of these results already.
        unfinished = [r for r in self._runs[configuration] if not self.folder.has_ended(r)]
        self._waiting.extend(unfinished)
        self._seen = None

    def _state(self, ended: Sequence[Configuration]) -> SearchState:
        with_results = [c for c in ended if any(self.folder.is_finished(r) for r in self._runs[c])]
        return SearchState(
            candidates=tuple(
                sorted((c for c in self._runs if c not in self._ruled_out), key=lambda c: c.key)
            ),
            points=self._points(with_results),
            running=tuple(c for c in self._given if c not in ended),
            failed=tuple(c for c in ended if c not in with_results),
            folder=self.folder.path,
        )

    def _points(self, some: Sequence[Configuration]) -> pd.DataFrame | None:
        """Return the rows of some configurations' finished runs."""
        if not some:
            return None
        runs = {run_id for c in some for run_id in self._runs[c]}
        table = points_table(self.folder)
        return table[table["run_id"].isin(runs) & (table["status"] == "finished")]

    def _goal(self, base: RunResult | None) -> Goal:
        select = self.spec.select
        return Goal(
            rule=rule_at(select.rule, field="select.rule"),
            **{
                **asdict(constraints_of(select)),
                "base_utility_loss": None if base is None else base.loss,
            },
        )

    def _end(self, reason: str | None, skipped: Mapping[Configuration, str]) -> None:
        """Record why each configuration that was not given out was left out.

        A configuration gets a text also if the search gives no reason.
        """
        self.finished = True
        left = sorted(set(self._runs) - set(self._given), key=lambda c: c.key)
        # A bound of the selection is the stronger reason: it held before the search chose.
        why = {**skipped, **self._ruled_out}
        skipped = {c: why.get(c, "the search gives no reason") for c in left}
        self.folder.search_end.write(SearchEnd(reason=reason, skipped=skipped))


def ruled_out(
    points: pd.DataFrame, at_most: Mapping[str, float], *, keep: Sequence[Configuration]
) -> dict[Configuration, str]:
    """Return configuration -> why a bound of the selection rules it out before it runs.

    Args:
        points: a row for every planned run.
        at_most: column of `KNOWN_BEFORE` -> highest value.
        keep: configurations that have been begun, which are never ruled out.

    Raises:
        ValueError: the bounds rule out every configuration.
    """
    points = with_settings(points).assign(compute=points["batch_size"] * points["num_steps"])
    reasons: dict[Configuration, str] = {}
    for column in at_most:
        # A bound of the selection is on the mean over seeds.
        means = points.groupby(KEY, as_index=False)[[column]].mean()
        for configuration, value in zip(configurations(means), means[column], strict=True):
            if value > at_most[column] and configuration not in keep:
                reasons[configuration] = (
                    f"its {column} of {value:g} exceeds select.at_most {at_most[column]:g}"
                )
    if len(reasons) == len(points.groupby(KEY)):
        raise ValueError(
            f"select.at_most must leave a configuration of the space, got {dict(at_most)} that "
            f"rules out all {len(reasons)}. Raise it."
        )
    return reasons

"""Give out the runs of the configurations that a search proposes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import pandas as pd

from raydp.analysis.tables.columns import KEY, with_settings
from raydp.analysis.tables.points import configurations
from raydp.plugins.rules import rule_at
from raydp.search_spaces import Configuration
from raydp.sweep.engine.adaptive import StepwiseSource
from raydp.sweep.engine.context import SweepContext
from raydp.sweep.search import Goal, Search, SearchState, constraints_of
from raydp.sweep.store.points import points_table
from raydp.sweep.store.results import RunResult
from raydp.sweep.store.state import SearchEnd

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


def search_source(
    context: SweepContext, search: Search, base_fn: Callable[[], RunResult | None]
) -> SearchSource:
    """Return the source of a sweep's runs, as its folder says; see the attributes."""
    return SearchSource(
        spec=context.spec,
        folder=context.folder,
        trials=list(context.trials.values()),
        search=search,
        base_fn=base_fn,
    )

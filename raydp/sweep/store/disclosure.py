"""Which of a sweep's runs may be shown outside its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raydp.training.trial_plan import TrialPlan


@dataclass(frozen=True, kw_only=True)
class Disclosure:
    """Which runs of one sweep may be shown. By default all: ε covers each model.

    `raydp.sweep.policy.SweepPolicy.disclosure` makes it.

    Attributes:
        shows_runs: whether the number of runs, and their step metrics, utility and scores, may
            leave the sweep's folder.
        released: the one run that is released, if shows_runs is False; None before the choice.
        note: a sentence that is shown with everything that is printed of the folder.
        remark: the note in a few words, for a list of sweeps.
        keeps_scores: why scores that are measured later stay in the folder; None if they are logged
            to MLflow.
        keeps_score: the same of the scores of one model.
    """

    shows_runs: bool = True
    released: str | None = None
    note: str | None = None
    remark: str | None = None
    keeps_scores: str | None = None
    keeps_score: str | None = None

    def of(self, trials: Sequence[TrialPlan]) -> tuple[TrialPlan, ...]:
        """Return the runs whose models may be measured and whose results a user's code may get."""
        return tuple(t for t in trials if self.shows_runs or t.run_id == self.released)

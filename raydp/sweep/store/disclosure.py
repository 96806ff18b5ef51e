"""What may be told of a sweep's runs: everything, or the released run of a private selection alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from raydp.training.trial_plan import TrialPlan


class Disclosure(Protocol):
    """What may be told of the runs of one sweep. `SweepFolder.disclosure` is the only function that chooses it.

    Attributes:
        shows_runs: whether the number of runs, and their step metrics, utility and scores, may leave the sweep's
            folder.
        note: a sentence that is shown with everything that is printed of the folder.
        remark: the note in a few words, for a list of sweeps.
        keeps_scores: why scores that are measured later stay in the folder; None if they are logged to MLflow.
    """

    shows_runs: ClassVar[bool]
    note: ClassVar[str | None]
    remark: ClassVar[str | None]
    keeps_scores: ClassVar[str | None]

    def of(self, trials: Sequence[TrialPlan]) -> tuple[TrialPlan, ...]:
        """Return the runs of a sweep whose models may be measured, and whose results may be given to a user's code."""


class AllRuns:
    """An ordinary sweep: ε covers each model, so each may be shown."""

    shows_runs: ClassVar[bool] = True
    note: ClassVar[str | None] = None
    remark: ClassVar[str | None] = None
    keeps_scores: ClassVar[str | None] = None

    def of(self, trials: Sequence[TrialPlan]) -> tuple[TrialPlan, ...]:
        """Return all runs."""
        return tuple(trials)


@dataclass(frozen=True, kw_only=True)
class ReleasedRunAlone:
    """A private selection: ε covers the released model alone.

    Attributes:
        run_id: the released run; None before the choice.
    """

    run_id: str | None

    shows_runs: ClassVar[bool] = False
    note: ClassVar[str | None] = (
        "a private selection: how many runs there were, and their utilities, scores and models, are as private as the "
        "data; only the released model and its card are covered by its ε"
    )
    remark: ClassVar[str | None] = "private selection: its runs are as private as the data"
    keeps_scores: ClassVar[str | None] = (
        "a private selection: its scores stay in the folder, for its ε does not cover what depends on the secrets"
    )

    def of(self, trials: Sequence[TrialPlan]) -> tuple[TrialPlan, ...]:
        """Return the released run, if there is one yet."""
        return tuple(trial for trial in trials if trial.run_id == self.run_id)

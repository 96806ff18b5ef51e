"""Listeners of committed runs. A sweep has one listener, which its ending opens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from raydp.sweep.store.folder import SweepFolder
from raydp.training.trial_plan import TrialPlan


class RunListener(Protocol):
    """Is notified of every run whose result is in the sweep's folder.

    Implemented by `Recorder` (hands runs to MLflow), `SilentListener` and
    `ModelRemover` (models that are only measured).
    """

    def reopened(self) -> None:
        """Take back an earlier end of the sweep: further runs follow."""

    def committed(self, trial: TrialPlan) -> None:
        """Take a committed run. The untrained base model is measured before."""

    def deliver_missing(self, trials: Sequence[TrialPlan]) -> None:
        """Take the committed runs missed while the driver was dead or a server was silent."""


class SilentListener:
    """Does nothing. For sweeps of whose runs nothing may leave the folder."""

    def reopened(self) -> None:
        """Do nothing."""

    def committed(self, trial: TrialPlan) -> None:
        """Do nothing."""

    def deliver_missing(self, trials: Sequence[TrialPlan]) -> None:
        """Do nothing."""


class ModelRemover:
    """Deletes the models, which were trained only to be measured, and keeps the results."""

    def __init__(self, folder: SweepFolder) -> None:
        self._folder = folder

    def reopened(self) -> None:
        """Do nothing: such a sweep has no end that tells of its runs."""

    def committed(self, trial: TrialPlan) -> None:
        """Delete the run's model."""
        self._folder.remove_model(trial.run_id)

    def deliver_missing(self, trials: Sequence[TrialPlan]) -> None:
        """Delete the models of all runs."""
        for trial in trials:
            self.committed(trial)

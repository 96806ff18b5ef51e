"""Who hears of committed runs. A sweep has one listener, which its ending opens."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Protocol

from raydp.sweep.store.folder import SweepFolder
from raydp.training.trial_plan import TrialPlan


class RunListener(Protocol):
    """Hears of every run whose result is in the sweep's folder."""

    def committed(self, trial: TrialPlan) -> None:
        """Take a run that was committed. The untrained base model is measured by then."""

    def deliver_missing(self, trials: Sequence[TrialPlan]) -> None:
        """Take the committed runs that were missed because the driver was killed or a server was away."""


class SilentListener:
    """Tells nobody: of the runs of a private selection nothing may leave the folder."""

    def committed(self, trial: TrialPlan) -> None:
        """Nothing."""

    def deliver_missing(self, trials: Sequence[TrialPlan]) -> None:
        """Nothing."""


class ModelRemover:
    """Keeps results and deletes the models, which were trained on canaries for a measurement alone."""

    def __init__(self, folder: SweepFolder) -> None:
        self._folder = folder

    def committed(self, trial: TrialPlan) -> None:
        """Delete the run's model."""
        shutil.rmtree(self._folder.trial(trial.run_id) / "model", ignore_errors=True)

    def deliver_missing(self, trials: Sequence[TrialPlan]) -> None:
        """Delete the models of all runs."""
        for trial in trials:
            self.committed(trial)

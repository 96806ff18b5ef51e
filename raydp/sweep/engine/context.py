"""What the driver knows of a sweep that it runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from raydp.spec.document import SweepSpec
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.state import Plan
from raydp.tasks.base import TaskFacts
from raydp.training.trial_plan import TrialPlan


@dataclass(frozen=True, kw_only=True)
class SweepContext:
    """A sweep with its folder.

    Attributes:
        facts: of the task.
        weight_hash: SHA-256 of the base weights.
    """

    spec: SweepSpec
    folder: SweepFolder
    facts: TaskFacts
    weight_hash: str

    @cached_property
    def plan(self) -> Plan:
        """What the sweep runs, as its folder says."""
        return self.folder.plan()

    @cached_property
    def trials(self) -> dict[str, TrialPlan]:
        """run_id -> planned run."""
        return {trial.run_id: trial for trial in self.plan.trials}

"""A sweep with its data and its plan, before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from raydp.spec.document import SweepSpec
from raydp.sweep.planning.inputs import KnownInputs, build_task
from raydp.sweep.planning.plan import SweepPlan, make_plan, phase_of
from raydp.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class PlannedSweep:
    """A sweep with its data and its plan.

    Attributes:
        weight_hash: SHA-256 of the base weights.
    """

    spec: SweepSpec
    task: Task
    weight_hash: str
    plan: SweepPlan

    @classmethod
    def of(
        cls, spec: SweepSpec, console: Console, known: KnownInputs | None = None
    ) -> PlannedSweep:
        """Read the data, calibrate the noise of every configuration, and name every run.

        Args:
            console: where progress is shown.
            known: as for `build_task`.

        Raises:
            ValueError: the sweep cannot be run.
        """
        with console.status("reading data and checking the model"):
            task, weight_hash = build_task(spec, known, threads=spec.cluster.threads_here)
        with console.status(what := phase_of(spec)) as status:
            plan = make_plan(
                spec,
                task.facts(),
                weight_hash,
                progress=lambda done, total: status.update(f"{what} {done}/{total}"),
            )
        return cls(spec=spec, task=task, weight_hash=weight_hash, plan=plan)

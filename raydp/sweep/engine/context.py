"""What the driver and the workers know about a running sweep."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from raydp.models.lookup import hub_revision, local_folder
from raydp.privacy.accounting.events import Event
from raydp.search_spaces.settings import Settings
from raydp.spec.document import SweepSpec
from raydp.sweep.engine.leases.keys import key_of, split_key
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.state import Plan
from raydp.sweep.store.transfer import Exchange, TrialFiles
from raydp.tasks.task import Task, TaskFacts
from raydp.training.trial_plan import TrialPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raydp.models.sharing import SharedModel
    from raydp.sweep.engine.adaptive import SharedQuestion


class ReleaseBudget(Protocol):
    """What all sweeps on the same data may release. The extension `ledger` has one."""

    def refused(self, run_ids: Sequence[str]) -> str | None:
        """Enter further runs into the ledger. If they overdraw the budget, say why they may not."""


@dataclass(frozen=True, kw_only=True)
class SweepContext:
    """A sweep with its folder, as the driver knows it.

    Attributes:
        facts: facts of the task.
        weight_hash: SHA-256 of the base weights.
        queue_name: its name in a queue that it shares with other sweeps; empty if it is alone.
        question: the question that its further seeds follow; None for its own decision.
        budget: the ledger of what is released about the data; None without the extension.
    """

    spec: SweepSpec
    folder: SweepFolder
    facts: TaskFacts
    weight_hash: str
    queue_name: str = ""
    question: SharedQuestion | None = None
    budget: ReleaseBudget | None = None

    def key(self, run_id: str) -> str:
        """Return the key of a run in the queue."""
        return key_of(self.queue_name, run_id)

    @cached_property
    def plan(self) -> Plan:
        """Return the plan in the sweep's folder."""
        return self.folder.plan()

    @cached_property
    def base_revision(self) -> str | None:
        """Return the base model's commit on the hub; None for a model from elsewhere."""
        name = self.spec.model.name
        return None if local_folder(Path(name).expanduser(), name) else hub_revision(name)

    @cached_property
    def trials(self) -> dict[str, TrialPlan]:
        """Return run_id -> planned run."""
        return {trial.run_id: trial for trial in self.plan.trials}


@dataclass(frozen=True, kw_only=True)
class SweepInputs:
    """The objects that a worker needs for the runs of one sweep.

    Attributes:
        models: the base model by the type of its weights, which may vary with the adapter.
        trials: run_id -> planned run.
        accounted: run_id -> event of the run's privacy record.
        folder: the sweep's folder.
        exchange: the store through which runs are handed over; None if every node sees the folder.
        key: the sweep's secret key.
    """

    spec: SweepSpec
    task: Task
    models: Mapping[str, SharedModel]
    trials: dict[str, TrialPlan]
    accounted: dict[str, Event]
    sweep_id: str
    folder: Path
    exchange: Exchange | None
    key: bytes

    def files(self, run_id: str) -> TrialFiles:
        """Return a run's files, as this node sees them."""
        if self.exchange is not None:
            return self.exchange.files(run_id)
        return SweepFolder(path=self.folder).files(run_id)

    def require_folder(self) -> None:
        """Check that this node sees the sweep's folder, if runs are handed over through it.

        Raises:
            ValueError: the node does not see the folder, or the folder is not of this sweep.
        """
        # The id shows that the folder is this sweep's, and not an equal path on another disk.
        plan = self.folder / "plan.json"
        if self.exchange is None and not (
            plan.is_file() and self.sweep_id in plan.read_text(encoding="utf-8")
        ):
            raise ValueError(
                f"storage must be a folder that every node sees, got {str(self.folder)!r}, which "
                f"{socket.gethostname()} does not. Mount it there, or set cluster.exchange to the "
                "URI of an object store."
            )

    def __repr__(self) -> str:
        return f"SweepInputs({self.spec.name!r})"  # the key is never shown


@dataclass(frozen=True, kw_only=True)
class WorkerInputs:
    """The objects that every worker needs.

    They are in the object store once, and all processes of a node map the same arrays. Sweeps on
    equal data and models share their objects.

    Attributes:
        sweeps: the sweeps by their names in the queue.
        first: the sweep and the settings of the run that a worker gets first, whose model it sets
            up at its start.
    """

    sweeps: Mapping[str, SweepInputs]
    first: tuple[str, Settings]

    def of(self, key: str) -> tuple[SweepInputs, str]:
        """Return the sweep of a run by its key in the queue, and the run's id."""
        sweep, run_id = split_key(key)
        return self.sweeps[sweep], run_id

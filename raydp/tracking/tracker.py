"""The Tracker seam: where a sweep's runs and models are recorded, and when that is tried again."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from raydp.tracking.records import TrialRecord

if TYPE_CHECKING:
    from raydp.tracking.stored_runs import RecordedRun

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 60.0


class NotDeliveredError(ValueError):
    """The store could not be reached. Nothing is lost, and another attempt may follow.

    Without another attempt, the cause is a wrong address or a stopped server. The message is then
    for the user, like that of every ValueError.
    """


@dataclass(kw_only=True)
class Pauses:
    """Schedule of attempts: at once, then after growing pauses, so that nobody waits long."""

    _until: float = 0.0
    _next: float = FIRST_PAUSE_SECONDS

    def over(self) -> bool:
        """Return whether an attempt is due."""
        return time.monotonic() >= self._until

    def failed(self) -> None:
        """Wait before the next attempt, twice as long as last time."""
        self._until = time.monotonic() + self._next
        self._next = min(2 * self._next, LONGEST_PAUSE_SECONDS)

    def succeeded(self) -> None:
        """Reset the pauses: the next failure counts as the first."""
        self._until, self._next = 0.0, FIRST_PAUSE_SECONDS


class Tracker(Protocol):
    """Records one sweep. The sweep's driver is the only process that uses it.

    Implementer: `raydp.tracking.runs.MLflowTracker`.

    Every method may be called again after the driver was killed at any point. What is complete
    stays as it is; what is half written is completed or replaced. Every method raises
    NotDeliveredError where the server is away, and is called again later.
    """

    def sweep_run(
        self, sweep_id: str, name: str, spec: Mapping[str, object], facts: Mapping[str, object]
    ) -> str:
        """Open the sweep's record and return its id; the same id for the same sweep_id.

        Args:
            sweep_id: the sweep's identity, a hash.
            name: what people call the sweep.
            spec: the sweep's specification.
            facts: what the task says of its data.
        """

    def recorded_runs(self) -> dict[str, RecordedRun]:
        """Return the sweep's runs that the store holds now, by the run's identity."""

    def log_trial(self, trial: TrialRecord) -> str:
        """Record a trained model and return the model's address.

        A second call for the same run changes nothing.
        """

    def fail_trial(
        self,
        run_id: str,
        reason: str,
        params: Mapping[str, object] | None = None,
        *,
        status: str = "failed",
    ) -> None:
        """Record a run that left no model.

        Args:
            run_id: the run's identity.
            reason: the error. It must not quote training text.
            params: configuration, seed and other parameters, flat.
            status: "failed", or "stopped" for a run that was ended early.
        """

    def update_privacy(self, model_uri: str, trial: TrialRecord) -> None:
        """Replace the privacy record and the card of a recorded model.

        Args:
            model_uri: what `log_trial` returned.
            trial: the same run with its new record and card.
        """

    def set_alias(self, alias: str, model_uri: str, reason: str) -> None:
        """Point an alias at a recorded model, and record the reason."""

    def remove_aliases(self, aliases: Collection[str], reason: str) -> None:
        """Take aliases away from the sweep's models that have them, and record the reason."""

    def describe_model(self, model_uri: str, text: str) -> None:
        """Put a text before the description of a recorded model, which `update_privacy` resets."""

    def finish_sweep(
        self, summary: Mapping[str, object], artifacts: Path | None = None, description: str = ""
    ) -> None:
        """Close the sweep's record.

        Args:
            summary: counts, the selected configuration and the like, as JSON values.
            artifacts: a folder whose files are kept with the record. They must not name a secret.
            description: the decision in words, as Markdown.
        """

"""Transfer of a running trial's files to the driver, by a shared folder or by an exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from raydp.plugins.registries import service
from raydp.training.checkpoint import CheckpointStore
from raydp.training.ledger import Ledger


class TrialFiles(Protocol):
    """The files of one run, as its worker sees them.

    Implemented by `SharedFolder` and by the files of an `Exchange`.
    """

    def checkpoints(self, warn: Callable[[str], None]) -> CheckpointStore:
        """Return the store of the run's checkpoints."""

    def ledger(self) -> Ledger:
        """Return the ledger of the run's noisy steps."""

    def model_folder(self, attempt: str) -> Path:
        """Return the folder to save the trained model in."""

    def hand_over(self, attempt: str) -> None:
        """Make the saved model available to the driver."""

    def close(self) -> None:
        """End the attempt, and remove the files that nobody else needs."""


@dataclass(frozen=True, kw_only=True)
class SharedFolder:
    """The run's own folder, which the driver sees too.

    Attributes:
        folder: storage/name/trials/<run_id>.
        run_id: the run.
    """

    folder: Path
    run_id: str

    def _made(self) -> Path:
        """Return the run's folder, made if needed, unless the folder of all runs was moved away."""
        self.folder.mkdir(exist_ok=True)
        return self.folder

    def checkpoints(self, warn: Callable[[str], None]) -> CheckpointStore:
        return CheckpointStore(folder=self._made() / "checkpoints", run_id=self.run_id, warn=warn)

    def ledger(self) -> Ledger:
        return Ledger(self._made() / "ledger.txt")

    def model_folder(self, attempt: str) -> Path:
        return self._made() / attempt / "model"

    def hand_over(self, attempt: str) -> None:
        """Do nothing: the model is already in the folder where the driver looks for it."""

    def close(self) -> None:
        """Do nothing: the driver and the next attempt need all files."""


class Exchange(Protocol):
    """A store through which runs are handed over if the nodes do not all see the sweep's folder.

    An extension implements it as the service "exchange": a function of the URI in the spec. The
    object goes to the workers, so it can be pickled.
    """

    @property
    def uri(self) -> str:
        """Return where the store is, for messages."""

    def check(self) -> None:
        """Check that files can be written to the store and deleted.

        Raises:
            ValueError: they cannot.
        """

    def of_sweep(self, sweep_id: str) -> Exchange:
        """Return the part of the store that belongs to one sweep."""

    def files(self, run_id: str) -> TrialFiles:
        """Return the files of one run, for a worker."""

    def collect(self, run_id: str, attempt: str, folder: Path) -> None:
        """Fetch a run's model into folder/attempt/model. The driver calls this."""

    def runs(self) -> set[str]:
        """Return the runs of which the store holds files."""

    def remove(self, run_id: str) -> None:
        """Remove the files of a run, if there are any."""


def exchange_at(uri: str | None) -> Exchange | None:
    """Return the store of `cluster.exchange`; None if the nodes share the sweep's own folder."""
    if uri is None:
        return None
    exchange: Exchange = service("exchange", needed_by="cluster.exchange")(uri)
    return exchange

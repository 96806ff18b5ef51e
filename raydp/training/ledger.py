"""A run's ledger: every executed noisy step, including the steps of attempts that died."""

from __future__ import annotations

from pathlib import Path

from raydp.privacy.records.parts import LedgerSummary

REPLAY_NOTE = "a replayed step draws the same noise, and only one execution of it enters the model"


class Ledger:
    """Appends one line per noisy step, before its update is applied.

    No kill can lose the line of an applied update.

    Args:
        path: the run's ledger; attempts append to the same file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def record(self, step: int) -> None:
        """Record that a noisy gradient of this step is about to be used."""
        # Appended and closed at once: a kill loses at most the line of a step that was not applied.
        with self._path.open("a", encoding="ascii") as stream:
            stream.write(f"{step}\n")

    def summary(self) -> LedgerSummary:
        """Return how many noisy steps were executed and replayed."""
        steps = self._steps()
        return {
            "noisy_steps": len(set(steps)),
            "executions": len(steps),
            "replays": len(steps) - len(set(steps)),
            "note": REPLAY_NOTE,
        }

    def _steps(self) -> list[str]:
        return self._path.read_text(encoding="ascii").split() if self._path.exists() else []

"""Exact checkpoints of one trial, one file each.

After a kill at any moment a complete checkpoint is left.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from raydp.system.files import write_atomically

if TYPE_CHECKING:
    import torch

KEPT = 2


@dataclass(frozen=True, kw_only=True)
class CheckpointStore:
    """The checkpoints of one trial in one folder; the newest two are kept.

    Args:
        folder: created at the first write.
        run_id: checkpoints of other runs are never loaded.
        warn: called with a sentence when a checkpoint cannot be written, or when a damaged one is
            skipped.
    """

    folder: Path
    run_id: str
    warn: Callable[[str], None] = print

    def beside(self, name: str) -> CheckpointStore:
        """Return another store of the same run, for a part of the run with its own progress."""
        return replace(self, folder=self.folder.with_name(f"{self.folder.name}-{name}"))

    def save(self, step: int, tensors: dict[str, torch.Tensor], state: dict[str, object]) -> None:
        """Write the state after `step` steps; on a full disk, keep the earlier ones instead."""
        from safetensors.torch import save  # imports torch

        metadata = {"run_id": self.run_id, "step": str(step), "state": json.dumps(state)}
        # safetensors stores contiguous tensors only.
        content = save({k: v.detach().contiguous() for k, v in tensors.items()}, metadata=metadata)
        try:
            self.folder.mkdir(exist_ok=True)
            write_atomically(self.folder / f"step-{step:08d}.safetensors", content)
        except OSError as error:
            # A run without a new checkpoint is still right, only slower to resume.
            self.warn(
                f"checkpoint after step {step} of run {self.run_id} could not be written "
                f"({error.strerror})"
            )
            return
        # Older ones go only after the new one is complete. Two are kept, because the newest may
        # turn out damaged.
        for old in sorted(self.folder.glob("step-*.safetensors"))[:-KEPT]:
            old.unlink()

    def load(self) -> tuple[int, dict[str, torch.Tensor], dict[str, Any]] | None:
        """Return the newest complete checkpoint (steps done, tensors, state); None without one."""
        # The newest first; a damaged one is skipped, so that a resume costs steps, not the run.
        for path in sorted(self.folder.glob("step-*.safetensors"), reverse=True):
            try:
                with safe_open(path, framework="pt") as file:
                    metadata = file.metadata()
                    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            except (SafetensorError, OSError) as error:
                self.warn(
                    f"checkpoint {path.name} of run {self.run_id} is damaged ({error}); using the "
                    "one before"
                )
                continue
            if metadata["run_id"] == self.run_id:
                return int(metadata["step"]), tensors, json.loads(metadata["state"])
        return None

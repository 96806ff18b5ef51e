"""Exact checkpoints of one trial: one file each, written so that a kill at any moment leaves a whole one behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from raydp.io.files import write_atomically

if TYPE_CHECKING:
    import torch

KEPT = 2


@dataclass(frozen=True, kw_only=True)
class CheckpointStore:
    """The checkpoints of one trial in one folder; the newest two are kept.

    Args:
        folder: created when first written to.
        run_id: a checkpoint of another run is never loaded.
        warn: called with a sentence when a checkpoint cannot be written, or a damaged one is passed over.
    """

    folder: Path
    run_id: str
    warn: Callable[[str], None] = print

    def beside(self, name: str) -> CheckpointStore:
        """Another store of the same run, for a part of it that has an end of its own."""
        return replace(self, folder=self.folder.with_name(f"{self.folder.name}-{name}"))

    def save(self, step: int, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """Write the state after `step` steps. Training goes on without where the disk is full: those of before stay."""
        from safetensors.torch import save  # brings torch along

        metadata = {"run_id": self.run_id, "step": str(step), "state": json.dumps(state)}
        content = save({k: v.detach().contiguous() for k, v in tensors.items()}, metadata=metadata)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / f"step-{step:08d}.safetensors", content)
        except OSError as error:
            self.warn(f"checkpoint after step {step} of run {self.run_id} could not be written ({error.strerror})")
            return
        for old in sorted(self.folder.glob("step-*.safetensors"))[:-KEPT]:
            old.unlink()

    def load(self) -> tuple[int, dict[str, torch.Tensor], dict[str, Any]] | None:
        """The newest whole checkpoint: steps done, tensors, state. None where there is none."""
        for path in sorted(self.folder.glob("step-*.safetensors"), reverse=True):
            try:
                with safe_open(path, framework="pt") as file:
                    metadata = file.metadata()
                    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            except (SafetensorError, OSError) as error:
                self.warn(f"checkpoint {path.name} of run {self.run_id} is damaged ({error}); using the one before")
                continue
            if metadata["run_id"] == self.run_id:
                return int(metadata["step"]), tensors, json.loads(metadata["state"])
        return None

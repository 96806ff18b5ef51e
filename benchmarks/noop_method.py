"""A method that trains nothing, as a plug-in in a package of its own: what is left of a sweep is
its orchestration."""

from __future__ import annotations

from pathlib import Path

from raydp.methods.dp import DPAdam
from raydp.tasks.task import Task
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm
from raydp.training.trial import Trained, TrainingContext
from raydp.training.trial_plan import TrialPlan


class NoOp(DPAdam):
    """DP-Adam that takes no step: the model stays as it was initialised."""

    def train(
        self,
        plan: TrialPlan,
        context: TrainingContext,
        task: Task,
        comm: Comm,
        key: bytes,
        store: CheckpointStore | None,
    ) -> Trained:
        row = {
            "loss": 1.0,
            "drawn": 1.0,
            "clipped": 0.0,
            "gradient_norm": 0.0,
            "max_grad_norm": self.max_grad_norm,
        }
        history = [{"step": float(step), **row} for step in range(1, plan.num_steps + 1)]
        return Trained(history=history, ended_early=False, resumed_from=0, seconds=0.0)


def install(folder: Path) -> None:
    """Write the metadata of an installed package that offers the method as `noop`, for a folder on
    sys.path."""
    metadata = folder / "noop_method-1.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: noop-method\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[raydp.methods]\nnoop = noop_method:NoOp\n")

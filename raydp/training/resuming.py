"""The state of a run between two steps, in whole tensors: any number of ranks can resume it."""

from __future__ import annotations

import time
from typing import NoReturn

import torch

from raydp.training import sharding
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm
from raydp.training.gradients.thresholds import Clipping
from raydp.training.observers import Observer, StepReport
from raydp.training.trial import Paused, TrainingContext


class Checkpoints(Observer):
    """Keeps a run's history, and restores and saves its state.

    Args:
        store: keeps the checkpoints; None keeps none.
        optimizer, clipping: of the run, whose state changes from step to step.

    Attributes:
        history: the rows of all steps that are done, also of those before a resume.
    """

    def __init__(
        self,
        store: CheckpointStore | None,
        context: TrainingContext,
        optimizer: torch.optim.Optimizer,
        clipping: Clipping,
        comm: Comm,
    ) -> None:
        self._store, self._context, self._comm = store, context, comm
        self._optimizer, self._clipping = optimizer, clipping
        self._collective = sharding.in_parts(context.parameters)
        self.history: list[dict[str, float]] = []
        self._saved, self._saved_steps = time.monotonic(), 0

    def restore(self) -> int:
        """Restore the newest state, if there is one. Return the steps already done.

        Rank 0 reads the checkpoint, so that all ranks start from the same state.
        """
        # Only rank 0 reads the checkpoint; the others get their values by broadcast.
        store = self._store if self._comm.rank == 0 else None
        checkpoint = None if store is None else store.load()
        done, tensors, state = checkpoint or (0, {}, None)
        # Tell all ranks the step and the shapes.
        shapes = {name: (value.shape, value.dtype) for name, value in tensors.items()}
        done, shapes, state = self._comm.broadcast_object((done, shapes, state))
        if state is None:
            return 0
        # Fill the parameters, then the optimizer's state.
        for name, parameter in self._context.parameters.items():
            sharding.fill(parameter, tensors.get(f"parameter/{name}"), self._comm)
        # The form of the optimizer's state comes from the optimizer, and the values from the
        # checkpoint.
        saved = self._optimizer.state_dict()
        saved["state"] = {}
        parameters = list(self._context.parameters.values())
        for key, (shape, dtype) in shapes.items():
            if key.startswith("optimizer/"):
                _, index, name = key.split("/")
                value = sharding.empty_like(parameters[int(index)], shape, dtype)
                sharding.fill(value, tensors.get(key), self._comm)
                saved["state"].setdefault(int(index), {})[name] = value
        self._optimizer.load_state_dict(saved)
        # An adaptive threshold is part of the state; older checkpoints lack it.
        self._clipping.max_grad_norm = state.get("max_grad_norm", self._clipping.max_grad_norm)
        self.history, self._saved_steps = state["history"], done
        return done

    def after_step(self, report: StepReport) -> None:
        """Keep the step's row, and save the state if the interval is over."""
        self.history.append(report.row)
        self._save(report.done, now=False)

    def pause(self, done: int, num_steps: int) -> NoReturn:
        """Save the state after `done` steps, unless a checkpoint has it. Called on every rank.

        Raises:
            Paused: always.
        """
        if done > self._saved_steps:
            self._save(done, now=True)
        raise Paused(f"paused after {done} of {num_steps} steps")

    def _save(self, done: int, *, now: bool) -> None:
        """Save the state if the interval is over, or at once with `now`."""
        if self._store is None:
            return
        # Ranks' clocks differ, so with sharded parameters rank 0 decides whether the collective
        # save runs.
        due = now or time.monotonic() - self._saved >= self._context.checkpoint_seconds
        leads = self._comm.rank == 0
        if not (self._comm.broadcast_object(due) if self._collective else due and leads):
            return
        # Collective if parameters are sharded.
        tensors = whole_state(self._context, self._optimizer, self._comm)
        if leads:
            threshold = self._clipping.max_grad_norm
            state = {"history": self.history, "max_grad_norm": threshold}
            self._store.save(done, tensors, state)
        self._saved, self._saved_steps = time.monotonic(), done


def whole_state(
    context: TrainingContext, optimizer: torch.optim.Optimizer, comm: Comm
) -> dict[str, torch.Tensor]:
    """Return whole parameters and optimizer state under flat names, on rank 0, sharded or not."""
    tensors: dict[str, torch.Tensor] = {
        f"parameter/{name}": p for name, p in context.parameters.items()
    }
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{k}": v for k, v in state.items() if torch.is_tensor(v)}
    return sharding.gathered(tensors, comm)

"""The state of a training run between two steps. Its tensors are whole, so that any number of ranks can resume it."""

from __future__ import annotations

import torch

from raydp.training import sharding
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm
from raydp.training.gradients.thresholds import Clipping
from raydp.training.trial import TrainingContext


def whole_state(context: TrainingContext, optimizer: torch.optim.Optimizer, comm: Comm) -> dict[str, torch.Tensor]:
    """Return whole parameters and optimizer state under flat names, on rank 0, even if they are sharded."""
    tensors: dict[str, torch.Tensor] = {f"parameter/{name}": p for name, p in context.parameters.items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{k}": v for k, v in state.items() if torch.is_tensor(v)}
    return sharding.gathered(tensors, comm)


def resume(
    store: CheckpointStore | None,
    context: TrainingContext,
    optimizer: torch.optim.Optimizer,
    clipping: Clipping,
    comm: Comm,
) -> tuple[int, list[dict[str, float]]]:
    """Restore the state; return the steps already done and their history.

    Rank 0 reads the checkpoint, so that all ranks start from the same state.
    """
    checkpoint = store.load() if store is not None and comm.rank == 0 else None
    step, tensors, state = checkpoint or (0, {}, None)
    # Tell all ranks the step and the shapes.
    step, shapes, state = comm.broadcast_object(
        (step, {name: (value.shape, value.dtype) for name, value in tensors.items()}, state)
    )
    if state is None:
        return 0, []
    # Fill the parameters, then the optimizer's state.
    for name, parameter in context.parameters.items():
        sharding.fill(parameter, tensors.get(f"parameter/{name}"), comm)
    saved = optimizer.state_dict()
    saved["state"] = {}
    parameters = list(context.parameters.values())
    for key, (shape, dtype) in shapes.items():
        if key.startswith("optimizer/"):
            _, index, name = key.split("/")
            value = sharding.empty_like(parameters[int(index)], shape, dtype)
            sharding.fill(value, tensors.get(key), comm)
            saved["state"].setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(saved)
    clipping.max_grad_norm = state.get("max_grad_norm", clipping.max_grad_norm)
    return step, state["history"]

"""A linear task: the gradient of an example is a given matrix, for any weights."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from raydp.tasks.task import Batch, Secret, TaskFacts
from raydp.training.trial import TrainingContext


class LinearTask:
    """Task in which example i has the loss Σ_k targets_i · (W_k inputs_i) over the layers W_k.

    The gradient of example i is therefore targets_i inputs_iᵀ in each layer. No example is held
    out, and there are no secrets.

    Args:
        inputs: [n, in] fp32.
        targets: [n, out] fp32.
        num_reference: see `TaskFacts`.
    """

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor, num_reference: int = 0) -> None:
        self._num_reference = num_reference
        self._inputs = inputs
        self._targets = targets
        self._lengths = np.ones(len(inputs), np.int64)

    def facts(self) -> TaskFacts:
        return TaskFacts(
            num_examples=len(self._lengths),
            num_units=len(self._lengths),
            privacy_unit="example",
            content_hash="linear",
            num_tokens=len(self._lengths),
            num_reference=self._num_reference,
        )

    def lengths(self) -> NDArray[np.int64]:
        return self._lengths

    def unit_sizes(self) -> None:
        """Return None, because every example is a unit."""

    def by_user(self) -> LinearTask:
        raise ValueError(
            "privacy.unit must be example in a linear task, got user. It does not know any users."
        )

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        rows = torch.from_numpy(indices)[:, None]
        return Batch(input_ids=rows, labels=rows)

    def heldout_batch(self, indices: NDArray[np.int64]) -> Batch:
        return self.batch(indices)

    def heldout_lengths(self) -> NDArray[np.int64]:
        return np.zeros(0, np.int64)

    def per_example_loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        rows = batch.input_ids[:, 0]
        total: torch.Tensor = sum(
            (layer(self._inputs[rows]) * self._targets[rows]).sum(dim=1)
            for layer in model.children()
        )
        return total

    def utility(self, model: nn.Module) -> float:
        return math.nan

    def secrets(self) -> tuple[Secret, ...]:
        return ()

    def controls(self) -> tuple[Secret, ...]:
        return ()


def linear_training_context(
    in_features: int, out_features: int, num_layers: int
) -> TrainingContext:
    """Return a context with parallel layers whose weights are all 0."""
    model = nn.Sequential(
        *(nn.Linear(in_features, out_features, bias=False) for _ in range(num_layers))
    ).eval()
    # The gradients do not depend on the weights; zeros keep the losses small.
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return TrainingContext(model=model, parameters=dict(sorted(model.named_parameters())))

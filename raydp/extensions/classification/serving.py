"""Classifiers behind MLflow's scoring server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A classification network, in the form that MLflow's scoring server calls."""

    model: torch.nn.Module

    def predict(
        self, model_input: NDArray[np.float32], params: Mapping[str, float] | None = None
    ) -> NDArray[np.float32]:
        """Return [n, K] probabilities of the classes for inputs [n, *shape]."""
        with torch.inference_mode():
            inputs = torch.as_tensor(np.asarray(model_input, dtype=np.float32))
            probabilities: NDArray[np.float32] = torch.softmax(
                self.model(inputs).float(), dim=1
            ).numpy()
            return probabilities

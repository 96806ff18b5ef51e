"""Weights of the units in a step's sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class UnitWeights:
    """Weights of the units in the sum of a step. The largest weight is 1.

    Attributes:
        of_unit: [n] fp32 in [0, 1], the factor of a unit's (clipped) gradient. It scales the
            largest change of the sum by this unit, in clipping norms. Units of weight 0 are not run
            at all.
        scale: factor of the noisy sum. The wanted weights are of_unit · scale, and the noise grows
            with the scale.
    """

    of_unit: NDArray[np.float32]
    scale: float

    def __post_init__(self) -> None:
        assert self.of_unit.min() >= 0, "a weight below 0"
        assert self.of_unit.max() <= 1, (
            "a weight above 1 would leave a unit more than it is accounted for"
        )

    def counting(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the units whose weight is above 0."""
        return units[self.of_unit[units] > 0]

    def of(self, examples: NDArray[np.int64], device: torch.device) -> torch.Tensor:
        """Return [B] the weights of examples. Each example must be a unit."""
        return torch.from_numpy(self.of_unit[examples]).to(device)

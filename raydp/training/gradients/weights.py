"""How much each unit counts in a step's sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class UnitWeights:
    """Weights of the units in the sum of a step, the largest of them 1.

    Attributes:
        of_unit: [n] fp32 in [0, 1]: what a unit's (clipped) gradient is multiplied with. It moves the sum by at most so
            many clipping norms. What has no weight is not run at all.
        scale: what the noisy sum is multiplied with: the weights are the wanted ones over the scale, and the noise
            grows with it.
    """

    of_unit: NDArray[np.float32]
    scale: float

    def __post_init__(self) -> None:
        assert self.of_unit.min() >= 0, "a weight below 0"
        assert self.of_unit.max() <= 1, "a weight above 1 would leave a unit more than it is accounted for"

    def counting(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of the units that have a weight."""
        return units[self.of_unit[units] > 0]

    def of(self, examples: NDArray[np.int64], device: torch.device) -> torch.Tensor:
        """[B] weights of examples, each of which is a unit."""
        return torch.from_numpy(self.of_unit[examples]).to(device)

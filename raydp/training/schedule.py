"""The learning rate of each step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Shape = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, kw_only=True)
class LearningRateSchedule:
    """The learning rate as a factor of η, which is the highest rate.

    It depends on the step alone, never on the data.

    During warm-up the factor rises in equal parts to 1. After it, the factor stays there, or falls
    to 0 along a line or half a cosine. These are the shapes of transformers' schedules of the same
    names, but no step has the factor 0, because a step costs privacy whatever it does to the
    weights: the rise begins at 1 / (W + 1), and 0 would be reached one step after the last.

    Attributes:
        shape: the shape after the warm-up.
        warmup_steps: W, number of steps of the warm-up.
        num_steps: T, number of steps in all.
    """

    shape: Shape
    warmup_steps: int
    num_steps: int

    @classmethod
    def of(cls, shape: Shape, warmup_ratio: float, num_steps: int) -> LearningRateSchedule:
        """Return the schedule whose warm-up is a share of the steps, rounded up."""
        return cls(
            shape=shape, warmup_steps=math.ceil(warmup_ratio * num_steps), num_steps=num_steps
        )

    def factor(self, step: int) -> float:
        """Return the factor of a step, from 0, in (0, 1]."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        if self.shape == "constant":
            return 1.0
        share = (step - self.warmup_steps) / (self.num_steps - self.warmup_steps)
        return 1 - share if self.shape == "linear" else 0.5 * (1 + math.cos(math.pi * share))

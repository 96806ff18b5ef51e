"""The Score seam: what a trained model leaks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from raydp.models import LoadedModel
    from raydp.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One score of one model. Higher is worse privacy.

    Attributes:
        value: the mean over secrets.
        std_error: standard error of the mean over secrets (ddof = 1); None with fewer than two secrets.
        num_samples: draws behind each secret's value (generations), 1 for a deterministic one.
        per_secret: secret id -> value. Never the secret itself.
    """

    value: float
    std_error: float | None
    num_samples: int
    per_secret: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def over_secrets(cls, values: ArrayLike, *, ids: Sequence[str], num_samples: int = 1) -> Measurement:
        """Average [secret] values; the standard error is over secrets."""
        array = np.asarray(values, dtype=np.float64)
        error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else None
        return cls(
            value=float(array.mean()),
            std_error=error,
            num_samples=num_samples,
            per_secret=dict(zip(ids, array.tolist(), strict=True)),
        )


class Score(Protocol):
    """Measures one model, deterministically in its seed."""

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model on the task's secrets."""

    def expected_bounds(self) -> tuple[float, float]:
        """Smallest and largest value that the score can take."""

"""Methods with faults: less noise than is accounted, and units that are drawn more often."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from raydp.methods.dp import DPAdam
from raydp.tasks.task import Task
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm
from raydp.training.observers import Accounting
from raydp.training.trial import Trained, TrainingContext
from raydp.training.trial_plan import TrialPlan


class Leaky(DPAdam):
    """DP-Adam that says σ and adds σ / 10.

    It hides the privacy record from the loop, which would refuse that.
    """

    def _gradient_noise_multiplier(self, plan: TrialPlan, noise_multiplier: float) -> float:
        return noise_multiplier / 10

    def train(
        self,
        plan: TrialPlan,
        context: TrainingContext,
        task: Task,
        comm: Comm,
        key: bytes,
        store: CheckpointStore | None,
    ) -> Trained:
        return super().train(
            plan, replace(context, accounting=Accounting()), task, comm, key, store
        )


class HalfNoise(DPAdam):
    """DP-Adam that says σ and adds σ / 2."""

    def _gradient_noise_multiplier(self, plan: TrialPlan, noise_multiplier: float) -> float:
        return noise_multiplier / 2


class TwiceDrawn(DPAdam):
    """DP-Adam that draws every unit with about twice the accounted probability."""

    def batch_indices(self, plan: TrialPlan, key: bytes, step: int) -> NDArray[np.int64]:
        return np.union1d(
            super().batch_indices(plan, key, step), super().batch_indices(plan, key, step + 10**6)
        )

"""A method with a fault: it adds a tenth of the noise that it accounts."""

from __future__ import annotations

from raydp.methods.dp import DPAdam
from raydp.training.trial_plan import TrialPlan


class Leaky(DPAdam):
    """DP-Adam that says σ and adds σ / 10."""

    def _gradient_noise_multiplier(self, plan: TrialPlan, noise_multiplier: float) -> float:
        return noise_multiplier / 10

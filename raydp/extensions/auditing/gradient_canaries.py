"""Gradient canaries: units whose gradient is one coordinate, and the auditor of every noisy sum."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.training.observers import Step, TaskObserver
from raydp.training.trial_plan import TrialPlan

MOST_CONTROLS, FEWEST_CONTROLS = 1000, 100
CONTROLS_ABOVE = 0.2
"""Share of the controls above the auditor's threshold: the false positive rate to aim at."""
LEAST_VARIANCE = 1e-8
"""Least σ² that the auditor reckons with, for a method that adds no noise."""
GRADIENT_NORM = 1e3
"""Norm of a canary's gradient before clipping, over the threshold.

It is far above the threshold, so that clipping decides.
"""


def check_room(num_canaries: int, num_coordinates: int) -> None:
    """Raise ValueError if the trained weights have no room for the canaries and 100 controls."""
    most = max(0, num_coordinates - FEWEST_CONTROLS)
    if num_canaries > most:
        raise ValueError(
            f"canaries must be at most {most} with gradient canaries on {num_coordinates} trained "
            f"weights, got {num_canaries}. Take fewer, or train more weights."
        )


class GradientCanaries(TaskObserver):
    """The gradient canaries of one run.

    A canary's gradient is one coordinate of the trained weights, its own, with a random sign. The
    sampler draws the canaries that are in the training data like all other units, and the method's
    clipping scales their gradients. An auditor who knows the other units' gradients sees each
    canary's coordinate of every noisy sum. For each canary the auditor adds up the log-likelihood
    ratios of "in" and "out" over the steps. The auditor never reads the coins.

    Controls are up to 1,000 further coordinates, which no canary has. They tell the auditor the
    noise of each step, and the ratio that a fifth of the canaries that are out exceed. So the
    guesses fit the mechanism that runs, even if it is not the stated one. The guesses stay
    independent of each other if the noise is independent.

    Args:
        included: [M] whether each canary is in the training data.
        first: the unit of the first canary that is in the training data. The others that are in
            follow.
        seed: seed of the coordinates and signs.
        num_coordinates: d, number of trained weights.
        plan: the run, whose sampling rate the ratios use.

    Raises:
        ValueError: fewer than 100 coordinates are left for the controls.

    Source: Steinke, Nasr and Jagielski 2023, section 6 (Dirac canaries); Nasr et al. 2023.
    """

    resumable: ClassVar[bool] = False
    needs_whole_sum: ClassVar[bool] = True

    def __init__(
        self,
        included: NDArray[np.bool_],
        *,
        first: int,
        seed: int,
        num_coordinates: int,
        plan: TrialPlan,
    ) -> None:
        check_room(len(included), num_coordinates)
        self._count = len(included)
        # Canaries and controls get distinct coordinates, so that no two are mixed up in a sum.
        seen = self._count + min(MOST_CONTROLS, num_coordinates - self._count)
        rng = np.random.default_rng([seed, 2])
        self._coordinates = torch.from_numpy(rng.choice(num_coordinates, seen, replace=False))
        self._signs = torch.from_numpy(rng.choice([-1.0, 1.0], seen))
        self._inside = np.flatnonzero(included)
        self._first = first
        self._rate = plan.batch_size / plan.num_examples
        self._known = torch.empty(0)
        self._ratios = np.zeros(seen)
        self.steps_seen = 0
        """Number of steps that the auditor has seen; 0 if the method has its own training loop."""

    @property
    def log_ratios(self) -> NDArray[np.float64]:
        """Return [M] the log-likelihood ratios, "in" over "out", minus the auditor's threshold."""
        # The threshold is from the controls, which no canary touches, so the guesses stay
        # independent.
        canaries, controls = np.split(self._ratios, [self._count])
        return np.asarray(canaries - np.quantile(controls, 1 - CONTROLS_ABOVE))

    @property
    def units(self) -> range:
        """Return the units that are canaries. No model runs them."""
        return range(self._first, self._first + len(self._inside))

    def seen(self, plan: TrialPlan, method: str) -> NDArray[np.float64]:
        """Return `log_ratios`, after a check that the auditor has seen every step of the run."""
        # The audit's bound is wrong if a canary was not offered in every step.
        if self.steps_seen != plan.num_steps:
            raise ValueError(
                "method.name must train by raydp.training.loop for gradient canaries, got "
                f"{method!r}, which showed {self.steps_seen} of {plan.num_steps} steps. Audit it "
                "with access to losses."
            )
        return self.log_ratios

    def before_noise(self, step: Step) -> None:
        """Add the clipped gradients of the drawn canaries to the sum of the other units."""
        # The auditor knows the other units' sum, as the strongest attacker of the guarantee does.
        self._known = self._seen(step.total)
        # The sampler drew units; find the canaries among them.
        positions = step.units - self._first
        own = (positions >= 0) & (positions < len(self._inside))
        drawn, total = torch.from_numpy(self._inside[positions[own]]), step.total
        # Clip them by the method's own rule: the audit is of the mechanism that runs.
        norms = torch.full((len(drawn),), GRADIENT_NORM * step.threshold, device=total.device)
        values = norms * step.factors_fn(norms) * self._signs[drawn].to(norms)
        total[self._coordinates[drawn].to(total.device)] += values

    def after_noise(self, step: Step) -> None:
        """Add the step's log-likelihood ratios.

        The auditor's x is the canary's coordinate of the noisy sum without the other units, over c.
        It is N(0, σ²) if the canary is not drawn and N(1, σ²) if it is. So the ratio is 1 - q + q
        exp((x - 1/2) / σ²). σ² is the mean square of the controls.
        """
        # Without the known sum, a coordinate is noise, plus 1 if the canary was drawn.
        x = (self._seen(step.total) - self._known).numpy() / step.threshold
        variance = max(float((x[self._count :] ** 2).mean()), LEAST_VARIANCE)
        # ln q + the log-likelihood ratio of N(1, σ²) and N(0, σ²), against ln(1 - q) for not drawn.
        drawn = math.log(self._rate) + (x - 0.5) / variance
        not_drawn = math.log1p(-self._rate) if self._rate < 1 else -math.inf
        self.steps_seen += 1
        # logaddexp, because the ratio of one step can be beyond the range of exp.
        self._ratios += np.logaddexp(not_drawn, drawn)

    def _seen(self, total: torch.Tensor) -> torch.Tensor:
        """Return each canary's and control's coordinate of a sum, in its gradient's direction."""
        return total[self._coordinates.to(total.device)].double().cpu() * self._signs

"""Gradient canaries: units of privacy whose gradient is one coordinate, and the auditor who sees every noisy sum."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.training.gradients.thresholds import Clipping
from raydp.training.trial_plan import TrialPlan

MOST_CONTROLS, FEWEST_CONTROLS = 1000, 100
CONTROLS_ABOVE = 0.2
"""Share of the controls whose ratio is above the auditor's threshold: the false positive rate to aim at."""
LEAST_VARIANCE = 1e-8
"""Least σ² that the auditor reckons with, for a method that adds no noise."""
GRADIENT_NORM = 1e3
"""Norm of a canary's gradient before clipping, over the threshold: far above it, so that clipping decides."""


def check_room(num_canaries: int, num_coordinates: int) -> None:
    """Raise ValueError if the trained weights have no room for the canaries and 100 controls."""
    most = max(0, num_coordinates - FEWEST_CONTROLS)
    if num_canaries > most:
        raise ValueError(
            f"canaries must be at most {most} with gradient canaries on {num_coordinates} trained weights, got "
            f"{num_canaries}. Take fewer, or train more weights."
        )


class GradientCanaries:
    """The gradient canaries of one run.

    A canary's gradient is one coordinate of the trained weights, its own, with a random sign. The sampler draws the
    canaries that are in the training data like all other units, and the method's clipping scales their gradients. An
    auditor who knows the other units' gradients sees each canary's coordinate of every noisy sum. For each canary the
    auditor adds up the log-likelihood ratios of "in" and "out" over the steps. The auditor never reads the coins.

    Controls are up to 1,000 further coordinates, which no canary has. They tell the auditor the noise of each step, and
    the ratio that a fifth of the canaries that are out exceed. So the guesses fit the mechanism that runs, even if it
    is not the stated one. The guesses stay independent of each other if the noise is independent.

    Args:
        included: [M] whether each canary is in the training data.
        first: the unit of the first canary that is in the training data. The others that are in follow.
        seed: seed of the coordinates and signs.
        num_coordinates: d, number of trained weights.
        plan: the run, whose sampling rate the ratios use.

    Raises:
        ValueError: fewer than 100 coordinates are left for the controls.

    Source: Steinke, Nasr and Jagielski 2023, section 6 (Dirac canaries); Nasr et al. 2023.
    """

    def __init__(
        self, included: NDArray[np.bool_], *, first: int, seed: int, num_coordinates: int, plan: TrialPlan
    ) -> None:
        check_room(len(included), num_coordinates)
        self._count = len(included)
        seen = self._count + min(MOST_CONTROLS, num_coordinates - self._count)
        rng = np.random.default_rng([seed, 2])
        self._coordinates = torch.from_numpy(rng.choice(num_coordinates, seen, replace=False))
        self._signs = torch.from_numpy(rng.choice([-1.0, 1.0], seen))
        self._inside = np.flatnonzero(included)
        self._first = first
        self._rate = plan.batch_size / plan.num_examples
        self._drawn = self._known = torch.empty(0)
        self._ratios = np.zeros(seen)
        self.steps_seen = 0
        """Number of steps that the auditor has seen. A method with a training loop of its own shows none."""

    @property
    def log_ratios(self) -> NDArray[np.float64]:
        """Return [M] the log-likelihood ratio of each canary, "in" over "out", minus the auditor's threshold."""
        canaries, controls = np.split(self._ratios, [self._count])
        return np.asarray(canaries - np.quantile(controls, 1 - CONTROLS_ABOVE))

    def without_canaries(self, drawn: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a step's units without the canaries. The drawn canaries are kept for `add`."""
        positions = drawn - self._first
        own = (positions >= 0) & (positions < len(self._inside))
        self._drawn = torch.from_numpy(self._inside[positions[own]])
        return drawn[~own]

    def add(self, total: torch.Tensor, clipping: Clipping) -> None:
        """Add the clipped gradients of the drawn canaries to the sum of the other units' gradients.

        Args:
            total: [d] the sum, changed in place.
            clipping: scales the gradients.
        """
        self._known = self._seen(total)
        norms = torch.full((len(self._drawn),), GRADIENT_NORM * clipping.max_grad_norm, device=total.device)
        values = norms * clipping.factors(norms) * self._signs[self._drawn].to(norms)
        total[self._coordinates[self._drawn].to(total.device)] += values

    def observe(self, noisy: torch.Tensor, max_grad_norm: float) -> None:
        """Add the step's log-likelihood ratios.

        The auditor's x is the canary's coordinate of the noisy sum without the other units, over c. It is N(0, σ²) if
        the canary is not drawn and N(1, σ²) if it is. So the ratio is 1 - q + q exp((x - 1/2) / σ²). σ² is the mean
        square of the controls.

        Args:
            noisy: [d] the noisy sum.
            max_grad_norm: c, the step's threshold.
        """
        x = (self._seen(noisy) - self._known).numpy() / max_grad_norm
        variance = max(float((x[self._count :] ** 2).mean()), LEAST_VARIANCE)
        drawn = math.log(self._rate) + (x - 0.5) / variance
        not_drawn = math.log1p(-self._rate) if self._rate < 1 else -math.inf
        self.steps_seen += 1
        self._ratios += np.logaddexp(not_drawn, drawn)

    def _seen(self, total: torch.Tensor) -> torch.Tensor:
        """Return each canary's and control's coordinate of a sum, in the direction of its gradient."""
        return total[self._coordinates.to(total.device)].double().cpu() * self._signs

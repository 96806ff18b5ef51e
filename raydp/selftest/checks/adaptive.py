"""Check that adaptive clipping is accounted for: noise on its count, wider noise on its sum."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.methods.dp import DPSGD
from raydp.selftest.check_result import Check, check
from raydp.selftest.linear import LinearTask, linear_training_context
from raydp.selftest.observe import (
    NoisyMethod,
    accounted_noise,
    observed_plan,
    observed_training,
    with_sgd,
)
from raydp.training.comm import LocalComm
from raydp.training.trial_plan import TrialPlan

SIGMA, COUNT_SIGMA = 2.0, 1.5
"""The count uses 4/9 of the privacy budget here: a sum whose noise ignores it is detected."""
NUM_EXAMPLES, NUM_STEPS, WIDTH, NUM_LAYERS = 4, 400, 24, 1
BATCH_SIZE = 30
"""Expected batch size. The noise on the count is COUNT_SIGMA by default too: batch_size / 20."""
SHARE = (0.85, 1.06)
"""Range of the measured figure for correct noise.

The count has 400 draws and a part of 4/9: its standard deviation is off by less than 14 % at a
level of 1e-4. The sum has 200,000 draws: its standard deviation is off by less than 1 %.
"""


def adaptive_checks(method: NoisyMethod) -> list[Check]:
    """Compare one record's effect on a step of adaptive clipping with the event's claim.

    The effect is relative to the noise.

    Three figures are measured. The first is how far the next threshold moves when a record is left
    out. The second is how far the noise on the count spreads the next threshold. The third is how
    far the noise spreads the coordinates of the sum, relative to the step's threshold. Two Gaussian
    mechanisms with shifts of μ1 and μ2 standard deviations equal one with a shift of sqrt(μ1² +
    μ2²), which must be at most 1 / σ. The noise on the count is checked as a number of the spec,
    and as the default.

    Args:
        method: the method to check if its threshold adapts. Otherwise DP-SGD is checked instead.
    """
    return [
        _one_record(_adaptive(method, COUNT_SIGMA), "adaptive threshold"),
        _one_record(_adaptive(method, None), "adaptive threshold, default noise on the count"),
    ]


def _one_record(adaptive: NoisyMethod, name: str) -> Check:
    """Check one record's effect on sum and count."""
    # Measure the noise on the threshold and on the sum.
    thresholds, noise = _run(adaptive, np.arange(NUM_EXAMPLES))
    logs = np.log(thresholds)
    spread = float(np.diff(logs).std())
    # Measure how far each record moves the next threshold.
    moves = []
    for left_out in range(NUM_EXAMPLES):
        others, _ = _run(adaptive, np.delete(np.arange(NUM_EXAMPLES), left_out), num_steps=2)
        moves.append(abs(float(np.log(others[1]) - logs[1])))
    # Combine both shifts, and compare them with the claim.
    claimed = accounted_noise(adaptive, _plan(NUM_STEPS))
    of_count = max(moves) / spread if spread else np.inf
    of_sum = 1.0 / float(np.sqrt(np.mean(np.square(noise))))
    return check(
        f"one record ({name})",
        claimed * float(np.hypot(of_count, of_sum)),
        *SHARE,
        f"what a record moves sum and count, over their noise, times σ = {claimed:g}; {NUM_STEPS} "
        "steps",
    )


def _adaptive(method: NoisyMethod, count_noise_multiplier: float | None) -> NoisyMethod:
    """Return the method, or DP-SGD, with a threshold that moves slowly, not at its own rate."""
    own: NoisyMethod = (
        method if method.traits.clipping == "adaptive" else DPSGD(clipping="adaptive")
    )
    changes = {
        "clip_quantile": 0.5,
        "clip_learning_rate": 0.1,
        "count_noise_multiplier": count_noise_multiplier,
    }
    return type(own).model_validate({**own.model_dump(), **changes})


def _plan(num_steps: int) -> TrialPlan:
    return observed_plan(
        "selftest/adaptive",
        batch_size=BATCH_SIZE,
        num_steps=num_steps,
        num_examples=BATCH_SIZE,
        noise_multiplier=SIGMA,
    )


def _run(
    method: NoisyMethod, indices: NDArray[np.int64], num_steps: int = NUM_STEPS
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the thresholds [step], and the relative noise [step, coordinate].

    The coordinates are those without gradient.

    The noise is divided by the step's threshold. Half of the examples have gradients of length 0,
    and half a length that no threshold reaches, in one column. So the count is the same in every
    step, and only the noise differs.
    """
    # One column holds all gradients, so that every other coordinate is pure noise.
    inputs, targets = torch.zeros(NUM_EXAMPLES, WIDTH), torch.zeros(NUM_EXAMPLES, WIDTH)
    inputs[:, 0] = 1
    targets[::2] = 1e9
    observed = with_sgd(method, lambda step: indices)
    context = linear_training_context(WIDTH, WIDTH, NUM_LAYERS)
    updates, history = observed_training(
        observed, _plan(num_steps), context, LinearTask(inputs, targets), LocalComm()
    )
    thresholds = np.array([record["max_grad_norm"] for record in history])
    sums = torch.stack(updates).double().view(num_steps, NUM_LAYERS, WIDTH, WIDTH)[..., 1:].numpy()
    return thresholds, sums.reshape(num_steps, -1) / thresholds[:, None]

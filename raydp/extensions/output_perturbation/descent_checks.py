"""Check output perturbation's sensitivity for every step size and weight decay that it accepts."""

from __future__ import annotations

import math

import torch

from raydp.extensions.classification.labelled import LabelledBatch
from raydp.extensions.output_perturbation.method import OutputPerturbation
from raydp.selftest.check_result import Check, check
from raydp.training.trial_plan import TrialPlan

NUM_EXAMPLES, BATCH_SIZE, WIDTH, CLASSES = 8, 3, 5, 4
NUM_STEPS = (1, 2, 3, 4, 11, 30)
"""Numbers of steps.

One pass has 3 steps, so 4 begins the second pass; in 30 steps an example is used 10 times.
"""
DECAYS = (0.0, 1e-2, 2.0)
SURE = 60.0
"""Bias of a class that no example has: each loss is linear, with the longest gradient."""
TINY = 1e-3
"""Distance of two sets of weights in a logit.

A step moves them apart by its derivative, up to a relative 1e-7.
"""


def descent_checks(method: OutputPerturbation) -> list[Check]:
    """Check the method's steps, with its own weight decay and with others.

    1. At the largest accepted learning rate, a step takes two sets of weights no further apart than
       the decay allows. A larger rate would take them further apart, so the limit is correct.
    2. After up to ten passes, no example has moved the weights by more than the stated sensitivity,
       and one reaches it.
    """
    checks = []
    for decay in sorted({*DECAYS, method.weight_decay}):
        chosen = method.model_copy(update={"weight_decay": decay})
        largest = _largest_rate(chosen)
        # A bound from below too: a step that contracts more would show that the limit of the rate
        # is too strict.
        low = 1 - 1e-6
        checks += [
            check(
                f"step at the largest learning rate (λ = {decay:g})",
                _stretch(chosen, largest),
                low,
                1 + 1e-6,
                "distance of two sets of weights after a step over (1 - ηλ) times before, at most; "
                f"η = {largest:.4g}",
            ),
            check(
                f"one record after many passes (λ = {decay:g})",
                max(_moved(chosen, largest, t) for t in NUM_STEPS),
                0.99,
                1 + 1e-6,
                "distance of the weights without one example, over the sensitivity; the largest",
            ),
        ]
    return checks


def _plan(learning_rate: float, num_steps: int) -> TrialPlan:
    return TrialPlan(
        run_id="selftest/descent",
        batch_size=BATCH_SIZE,
        num_steps=num_steps,
        learning_rate=learning_rate,
        seed=0,
        num_examples=NUM_EXAMPLES,
        noise_multiplier=1.0,
    )


def _largest_rate(method: OutputPerturbation) -> float:
    """Return the largest learning rate that the method accepts, by bisection."""
    low, high = 1e-12, 1e12
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        try:
            method.event(_plan(middle, 1), 1.0)
            low = middle
        except ValueError:
            high = middle
    return low


def _stretch(method: OutputPerturbation, learning_rate: float) -> float:
    """Return the largest growth of the distance between two sets of weights in a step.

    It is taken over the decay factor.

    It is measured where the loss curves most (two classes equally likely) and where the loss is
    flat.
    """
    # Two sets of weights that differ along the direction of largest curvature.
    descent = method.descent(_plan(learning_rate, 1))
    x = torch.full((BATCH_SIZE, WIDTH), 1e6)
    batch = LabelledBatch(inputs=x, labels=torch.zeros(BATCH_SIZE, dtype=torch.int64))
    features = descent.features(x[:1])[0]
    direction = torch.zeros(CLASSES, WIDTH + 1, dtype=torch.float64)
    direction[0], direction[1] = features, -features
    direction *= TINY / float(features @ features)
    growth = []
    for curved in (True, False):
        start = torch.zeros(CLASSES, WIDTH + 1, dtype=torch.float64)
        start[2:, -1] = -SURE  # makes the two other classes impossible
        start[0, -1] = 0.0 if curved else SURE
        here, there = start - direction / 2, start + direction / 2
        before = float(torch.linalg.vector_norm(there - here))
        for weights in (here, there):
            descent.step(weights, batch)
        shrunk = 1 - learning_rate * method.weight_decay
        growth.append(float(torch.linalg.vector_norm(there - here)) / before / shrunk)
    return max(growth)


def _moved(method: OutputPerturbation, largest: float, num_steps: int) -> float:
    """Return the largest distance of the weights without one example, over the sensitivity.

    Training is so slow that the start stays wrong about every example.
    """
    plan = _plan(largest / 200, num_steps)
    descent = method.descent(plan)
    inputs = 1e6 * torch.eye(NUM_EXAMPLES, WIDTH) + 1.0
    labels = torch.ones(NUM_EXAMPLES, dtype=torch.int64)

    def trained(without: int | None) -> torch.Tensor:
        theta = torch.zeros(CLASSES, WIDTH + 1, dtype=torch.float64)
        theta[0, -1] = SURE
        for step in range(num_steps):
            places = range(NUM_EXAMPLES)[descent.places(step)]
            rows = torch.tensor([place for place in places if place != without], dtype=torch.int64)
            descent.step(theta, LabelledBatch(inputs=inputs[rows], labels=labels[rows]))
        return theta

    # The example's place stays empty, as in the guarantee.
    whole = trained(None)
    apart = max(float(torch.linalg.vector_norm(whole - trained(i))) for i in range(NUM_EXAMPLES))
    sensitivity = descent.sensitivity(num_steps)
    return apart / sensitivity if sensitivity else math.inf

"""Check that one record moves the update by at most what the guarantee allows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.models.vector_layers import dropouts_of
from raydp.selftest.check_result import Check, check
from raydp.selftest.observe import NO_NOISE, flat, observed_plan, summed_updates, with_sgd
from raydp.selftest.subjects import ROUNDING, Subject
from raydp.training.batch_sum import example_masks, losses_of
from raydp.training.comm import LocalComm
from raydp.training.gradients.memory import TokenBudget
from raydp.training.gradients.microbatches import Units
from raydp.training.gradients.thresholds import GAMMA
from raydp.training.noise.lattice import LATTICE_SHARE
from raydp.training.noise.stream import TEST_KEY, KeyedStream

RUN = "selftest/sensitivity"
"""Name of the observed run. Its dropout masks depend on it."""


def sensitivity_checks(subject: Subject) -> list[Check]:
    """Check one noise-free step of the method, with another batch size than the drawn one.

    The expected batch size differs from the drawn number of units.

    1. The update times b equals the sum of autograd's clipped gradients of each unit alone.
    2. Leaving out any one unit (an example, or a user with all its examples) changes it by at most
       the clipping norm c. If units have weights, the change is at most the unit's weight times c.
    3. Loss and gradient of a unit are the same alone and in the batch.
    4. The sum of a batch of one unit is at most c long, for any type of the model. The gradient may
       be rounded, but the released sum is in single precision.
    5. If units have several examples, neither micro-batches of one example nor micro-batches of as
       few tokens as possible change the update.

    Checks 1, 2, 4 and 5 allow for the lattice that the sum is rounded to. The noise of a step
    accounts for the lattice.

    Check 1 fails for a divisor that depends on the draw. Check 3 fails for a loss that is a mean
    over the batch's tokens: a record then changes the others' gradients, which no clipping bounds.
    """
    # The step under test, and what it should be by autograd.
    c, indices, shares = subject.method.max_grad_norm, subject.indices, _shares(subject)
    expected, unclipped, apart = _clipped_autograd(subject)
    full = _update(subject, indices)
    error = _norm(full - expected) / _norm(expected)
    # A unit of weight w may move the sum by w c. Adding 1 - w makes 1 the bound for every unit.
    changes = [
        _norm(full - _update(subject, np.delete(indices, i))) / c + (1 - share)
        for i, share in enumerate(shares)
    ]
    # Alone, no other unit can hide a gradient that is too long.
    alone = [
        _norm(_update(subject, indices[i : i + 1])) / c + (1 - share)
        for i, share in enumerate(shares)
    ]
    among = f"{len(indices)} units, {unclipped} of them below c = {c:g}"
    return [
        check(
            f"clipped sum ({subject.name})", error, 0, subject.tolerance + LATTICE_SHARE / 2 * c / _norm(expected),
            f"relative error of b times the update against clipped autograd; {among}",
        ),
        check(
            f"one record ({subject.name})", max(changes), 0, 1 + subject.tolerance + LATTICE_SHARE,
            "largest change of b times the update when a unit is left out, over c, plus 1 - its "
            f"weight; {among}",
        ),
        check(
            f"alone as in company ({subject.name})", apart, 0, subject.tolerance,
            "largest relative difference of a unit's loss or gradient between the batch and itself "
            "alone",
        ),
        check(
            f"one unit by itself ({subject.name})", max(alone), 0, 1 + ROUNDING[torch.float32] + LATTICE_SHARE,
            "largest b times the update of a batch of one unit, over c, plus 1 - its weight; "
            f"{among}",
        ),
        *_micro_batches(subject, full),
    ]  # fmt: skip


def _micro_batches(subject: Subject, full: torch.Tensor) -> list[Check]:
    """Check one batch's update in pieces that are smaller than a user, if the task has users."""
    if subject.task.unit_sizes() is None:
        return []
    budget = TokenBudget()
    # One token is the smallest budget, so the pieces are as small as they can be.
    budget.tokens = 1
    pieces = [
        replace(subject.context, microbatch_size=1),
        replace(subject.context, microbatch_size=None, budget=budget),
    ]
    apart = max(
        _norm(full - _update(replace(subject, context=cut), subject.indices)) for cut in pieces
    ) / _norm(full)
    return [
        check(
            f"micro-batches ({subject.name})", apart, 0,
            subject.tolerance + LATTICE_SHARE * subject.method.max_grad_norm / _norm(full),
            "largest relative difference of the update when the same batch is computed in small "
            "pieces",
        )
    ]  # fmt: skip


def _shares(subject: Subject) -> NDArray[np.float64]:
    """Return the weights of the subject's units, as the accountant uses them."""
    return subject.method.largest_changes(subject.task.facts())[subject.indices]


def _update(subject: Subject, indices: NDArray[np.int64]) -> torch.Tensor:
    """Return b times the update of one step without noise on the given units."""
    plan = observed_plan(
        RUN,
        batch_size=len(subject.indices)
        + 2,  # differs from the drawn number, and from that number minus one
        num_steps=1,
        num_examples=len(Units.of(subject.task)),
        noise_multiplier=NO_NOISE,
    )
    method = with_sgd(subject.method, lambda step: indices)
    return summed_updates(method, plan, subject.context, subject.task, LocalComm())[0]


def _clipped_autograd(subject: Subject) -> tuple[torch.Tensor, int, float]:
    """Return the clipped sum from one backward pass per unit, the unclipped units, a difference.

    The difference is the largest relative one between a unit alone and in the batch.
    """
    c, automatic = subject.method.max_grad_norm, subject.method.traits.clipping == "automatic"
    together, units = _losses(subject, subject.indices), Units.of(subject.task)
    weights = flat(subject.context)
    sizes = units.offsets[subject.indices + 1] - units.offsets[subject.indices]
    # Gradients by autograd on each unit alone, the slow way that clipping replaces.
    total, unclipped, apart, shares = torch.zeros(()), 0, 0.0, _shares(subject)
    for row in range(len(subject.indices)):
        (alone,) = _losses(subject, subject.indices[row : row + 1])
        decay = subject.method.traits.loss_decay * int(sizes[row]) * weights
        own, own_together = (_gradient(subject, loss) + decay for loss in (alone, together[row]))
        norm = max(_norm(own), _norm(decay))  # see ClippedGradients
        difference = float((alone - together[row]).detach().abs() / alone.detach().abs())
        apart = max(apart, difference, _norm(own - own_together) / norm)
        unclipped += norm <= c
        total = total + own * shares[row] * (
            c / (norm + GAMMA) if automatic else min(1.0, c / norm)
        )
    return total, unclipped, apart


def _losses(subject: Subject, indices: NDArray[np.int64]) -> list[torch.Tensor]:
    """Return the summed loss of each unit, all in one batch, with `_update`'s dropout masks."""
    units, context, stream = (
        Units.of(subject.task),
        subject.context,
        KeyedStream(key=TEST_KEY, run_id=RUN),
    )
    examples = units.examples(indices)
    with example_masks(dropouts_of(context.model), stream, 0, examples):
        losses = losses_of(context, subject.task, subject.task.batch(examples))
    sizes = units.offsets[indices + 1] - units.offsets[indices]
    return [part.sum() for part in losses.split(sizes.tolist())]


def _gradient(subject: Subject, loss: torch.Tensor) -> torch.Tensor:
    parameters = list(subject.context.parameters.values())
    grads = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
    return torch.cat([g.flatten() for g in grads])


def _norm(vector: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))

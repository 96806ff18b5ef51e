"""Weighted empirical risk minimisation over training and reference data (Kaplan et al. 2024)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from raydp.extensions.reference_data.weighted import OfTwoSets
from raydp.methods.nonprivate import NonPrivate
from raydp.tasks.task import Task, batches_by_length
from raydp.training import sharding
from raydp.training.batch_sum import losses_of
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm
from raydp.training.observers import AfterStep, StepReport
from raydp.training.trial import Trained, TrainingContext
from raydp.training.trial_plan import TrialPlan

EVALUATED_TOKENS = 1024


class WeightedRiskMinimization(OfTwoSets, NonPrivate):
    """WERM: Adam or SGD on (1 - w) L_T + w L_R (Kaplan et al. 2024, equation 13), for a task with
    reference data.

    A step draws examples of both sets, each with probability b / N. Its update is the sum of their
    gradients with the weights (1 - w) N / N_T and w N / N_R, over b. In expectation this is the
    gradient of the loss. ε is infinite; the DP form of WERM is dp_sgd or dp_adam with a
    reference_weight.

    WERM-ES (section 4.3.1) is WERM with fewer steps: a smaller num_steps.
    """

    reference_weight: Annotated[float, Field(ge=0, le=1)]
    """w in [0, 1]: a larger weight protects the training data more and the reference data less. A
    set of weight 0 takes no part."""
    keep_best_of: Annotated[int, Field(ge=1, le=1000)] = 1
    """Number of times that the loss on held-out data is measured, evenly spaced, the last time at
    the end. The weights with the lowest loss are kept. Utility and non-members come from the same
    held-out data, so with more than 1 the model depends on them. 1 keeps the last weights. With
    more than 1 an interrupted run starts again."""

    def train(
        self,
        plan: TrialPlan,
        context: TrainingContext,
        task: Task,
        comm: Comm,
        key: bytes,
        store: CheckpointStore | None,
    ) -> Trained:
        """Train on the weighted risk; see `Method.train`."""
        if self.keep_best_of == 1:
            return super().train(plan, context, task, comm, key, store)
        if sharding.in_parts(context.parameters):
            raise ValueError(
                "method.keep_best_of must be 1 with cluster.sharding full, got "
                f"{self.keep_best_of}: no worker has all weights. Leave it out."
            )
        # Train, measure the held-out loss at each check, and remember the best weights.
        checks = {
            math.ceil(plan.num_steps * i / self.keep_best_of)
            for i in range(1, self.keep_best_of + 1)
        }
        losses: dict[int, float] = {}
        best: dict[str, torch.Tensor] = {}

        def check(report: StepReport) -> None:
            # Every rank measures, and rank 0's loss decides for all.
            if (done := report.done) in checks:
                losses[done] = comm.broadcast_object(heldout_loss(context, task))
                if not best or losses[done] <= min(losses.values()):
                    best.update(
                        {name: p.detach().clone() for name, p in context.parameters.items()}
                    )

        watched = replace(context, observers=(AfterStep(check), *context.observers))
        trained = super().train(plan, watched, task, comm, key, None)
        if trained.ended_early:
            return trained
        # Restore the best weights, and record the losses.
        with torch.no_grad():
            for name, parameter in context.parameters.items():
                parameter.copy_(best[name])
        for done, loss in losses.items():
            trained.history[done - 1]["heldout_loss"] = loss
        return trained


@torch.no_grad()
def heldout_loss(context: TrainingContext, task: Task) -> float:
    """Return the mean loss (nats) of the held-out examples."""
    device = next(iter(context.parameters.values())).device
    total, lengths = 0.0, task.heldout_lengths()
    # In batches of similar length, summed in double precision.
    for indices in batches_by_length(np.asarray(lengths), EVALUATED_TOKENS):
        total += float(
            losses_of(context, task, task.heldout_batch(indices).to(device)).sum(
                dtype=torch.float64
            )
        )
    return total / len(lengths)

"""The training loop for objectives that are not a sum over examples.

It has no guarantee and is for small models.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from raydp.training.comm import Comm
from raydp.training.observers import Observers, StepReport
from raydp.training.trial import Paused, Trained, TrainingContext
from raydp.training.trial_plan import TrialPlan


def run(
    plan: TrialPlan,
    context: TrainingContext,
    comm: Comm,
    step_fn: Callable[[int], dict[str, float]],
) -> Trained:
    """Train for plan.num_steps steps.

    Every rank does all the work; an interrupted run starts again from step 0.

    Args:
        step_fn: updates the model and returns values for the history. It must depend only on the
            step and on the steps before.

    Raises:
        Paused: the context was asked to pause.
    """
    started = time.perf_counter()
    observer, history, ends = Observers(*context.observers), list[dict[str, float]](), False
    for step in range(plan.num_steps):
        # Rank 0's answer counts, so that all ranks stop at one step.
        if comm.broadcast_object(context.pause_fn()):
            raise Paused(f"paused after {step} of {plan.num_steps} steps; this method starts again")
        row = {"step": step, **step_fn(step)}
        history.append(row)
        observer.after_step(StepReport(done=step + 1, num_steps=plan.num_steps, row=row))
        if ends := observer.must_end(step + 1):
            break
    seconds = time.perf_counter() - started
    return Trained(history=history, ended_early=ends, resumed_from=0, seconds=seconds)

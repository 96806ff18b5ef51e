"""The training loop for objectives that are not a sum over examples. It has no guarantee and is for small models."""

from __future__ import annotations

import time
from collections.abc import Callable

from raydp.training.comm import Comm
from raydp.training.trial import Paused, Trained, TrainingContext
from raydp.training.trial_plan import TrialPlan


def run(plan: TrialPlan, context: TrainingContext, comm: Comm, step_fn: Callable[[int], dict[str, float]]) -> Trained:
    """Train for plan.num_steps steps. Every rank does all the work; an interrupted run starts again from step 0.

    Args:
        step_fn: updates the model and returns values for the history. It must depend only on the step and on the steps
            before.

    Raises:
        Paused: the context was asked to pause.
    """
    started = time.perf_counter()
    history: list[dict[str, float]] = []
    ended_early = False
    for step in range(plan.num_steps):
        if comm.broadcast_object(context.pause_fn is not None and context.pause_fn()):
            raise Paused(f"paused after {step} of {plan.num_steps} steps; this method starts again")
        history.append({"step": step, **step_fn(step)})
        done = step + 1
        history[-1] |= context.evaluate_fn(done)
        if context.progress is not None:
            context.progress(done, plan.num_steps, history[-1])
        if done in context.check_steps and context.check_fn(done):
            ended_early = True
            break
    seconds = time.perf_counter() - started
    return Trained(history=history, ended_early=ended_early, resumed_from=0, seconds=seconds)

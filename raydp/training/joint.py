"""The training loop of objectives that are no sum over examples: without a guarantee, and for small models."""

from __future__ import annotations

import time
from collections.abc import Callable

from raydp.training.comm import Comm
from raydp.training.trial import Paused, Trained, Trainee, TrialPlan


def run(plan: TrialPlan, trainee: Trainee, comm: Comm, step_fn: Callable[[int], dict[str, float]]) -> Trained:
    """Train for plan.num_steps steps. Every rank does all the work; an interrupted run starts again from its start.

    Args:
        step_fn: updates the model and says what it saw, for the history; a function of the step and of the steps
            before.

    Raises:
        Paused: the trainee was asked to pause.
    """
    started = time.perf_counter()
    history: list[dict[str, float]] = []
    ended_early = False
    for step in range(plan.num_steps):
        if comm.broadcast_object(trainee.pause_fn is not None and trainee.pause_fn()):
            raise Paused(f"paused after {step} of {plan.num_steps} steps; this method starts again")
        history.append({"step": step, **step_fn(step)})
        done = step + 1
        if trainee.progress is not None:
            trainee.progress(done, plan.num_steps)
        if done in trainee.check_steps and trainee.check_fn(done):
            ended_early = True
            break
    seconds = time.perf_counter() - started
    return Trained(history=history, ended_early=ended_early, resumed_from=0, seconds=seconds)

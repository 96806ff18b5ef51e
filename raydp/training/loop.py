"""The training loop, and the step of the Gaussian mechanism that it repeats."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from raydp.tasks.task import Task
from raydp.training import sharding
from raydp.training.batch_sum import PAUSE, BatchSum, StepRule
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm
from raydp.training.noise.adding import StepNoise
from raydp.training.noise.stream import KeyedStream
from raydp.training.observers import Observer, Observers, Step, StepReport
from raydp.training.resuming import Checkpoints
from raydp.training.trial import Trained, TrainingContext
from raydp.training.trial_plan import TrialPlan
from raydp.training.vector import GradientVector


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """What all steps of one run share.

    Attributes:
        vector: the sums of all trained parameters, which are also the gradients.
        batch: adds up the clipped gradients of this rank's units.
        noise: adds this rank's part of the noise.
        stream: the run's keyed stream.
        observer: sees each step.
    """

    plan: TrialPlan
    rule: StepRule
    comm: Comm
    vector: GradientVector
    batch: BatchSum
    noise: StepNoise
    stream: KeyedStream
    observer: Observer


def noisy_step(run: StepParts, step: Step) -> StepReport | None:
    """Take one step of the Gaussian mechanism on the sum of clipped gradients.

        g = (Σ_i clip(∇ℓ_i, c) + N(0, (σ c)² I)) / b,    θ ← optimizer(θ, g)

    i runs over the units that the sampler drew. b is the expected batch size, never the drawn one
    (Abadi et al. 2016, Algorithm 1; Hu et al. 2025, Algorithm 2, divides by the drawn one). With
    weights of units, w_i clip(∇ℓ_i, c) is summed and the noisy sum is multiplied by their scale.

    Returns:
        The step's report. None if rank 0 was asked to pause: then no rank uses the step.
    """
    plan, rule, vector = run.plan, run.rule, run.vector
    # Sum the clipped gradients: over this rank's micro-batches, then over the ranks.
    sums = run.batch.accumulate(step)
    run.comm.all_reduce_sum(sums)
    if sums[PAUSE]:
        return None
    vector.sum_over_ranks()
    # Record the step, and add the noise once: each rank to its slice, which the ranks exchange.
    run.observer.before_noise(step)
    if step.noise_multiplier > 0:
        run.noise.add(step.number, step.noise_multiplier, step.threshold)
    vector.exchange_slices()
    run.observer.after_noise(step)
    # Divide by the expected batch size, and update the weights.
    gradient = vector.flat
    gradient /= plan.batch_size
    if rule.weights is not None:
        gradient *= rule.weights.scale
    rule.update(plan, step.number)
    # Move the threshold by the noisy count of unclipped units (Andrew et al. 2021, Algorithm 1).
    loss, norm, unclipped, drawn = sums[:PAUSE].tolist()
    rule.clipping.update(unclipped, drawn, run.stream, step.number)
    row = _row(step, loss, norm, unclipped, drawn)
    return StepReport(done=step.number + 1, num_steps=plan.num_steps, row=row)


def run(
    plan: TrialPlan,
    rule: StepRule,
    context: TrainingContext,
    task: Task,
    comm: Comm,
    key: bytes,
    store: CheckpointStore | None,
) -> Trained:
    """Train for plan.num_steps steps, from the newest checkpoint if there is one.

    Raises:
        Paused: the context asked for a pause, also within a step. The state before the step is
            saved.
    """
    started = time.perf_counter()
    # Set up what all steps share.
    stream = KeyedStream(key=key, run_id=plan.run_id)
    vector = GradientVector.of(context.parameters, comm)
    # The accounting comes first, so that too little noise stops a step before anything else sees
    # it.
    watching = (context.accounting, *context.observers)
    if any(observer.needs_whole_sum for observer in watching):
        assert not sharding.in_parts(context.parameters), "an observer needs the whole sum"
    # An observer without a saved state would have seen only the steps since the resume.
    store = store if all(observer.resumable for observer in watching) else None
    checkpoints = Checkpoints(store, context, rule.optimizer, rule.clipping, comm)
    parts = StepParts(
        plan=plan,
        rule=rule,
        comm=comm,
        vector=vector,
        batch=BatchSum(rule, context, task, comm, stream, vector),
        noise=StepNoise(vector=vector, stream=stream, source=rule.noise),
        stream=stream,
        observer=Observers(*watching, checkpoints),
    )
    # Take the steps that are left. A run that was killed before it could end ends now.
    first = checkpoints.restore()
    ends = first > 0 and parts.observer.must_end(first)
    for number in [] if ends else range(first, plan.num_steps):
        step = Step(
            number=number,
            units=rule.indices_fn(number),
            factors_fn=rule.clipping.factors,
            threshold=rule.clipping.max_grad_norm,
            noise_multiplier=rule.noise_multiplier,
            total=vector.flat,
        )
        if (report := noisy_step(parts, step)) is None:
            checkpoints.pause(number, plan.num_steps)
        parts.observer.after_step(report)
        if ends := parts.observer.must_end(report.done):
            break
    seconds, history = time.perf_counter() - started, checkpoints.history
    return Trained(history=history, ended_early=ends, resumed_from=first, seconds=seconds)


def _row(step: Step, loss: float, norm: float, unclipped: float, drawn: float) -> dict[str, float]:
    """Return the step's row of the history, with means over the drawn units."""
    row = {"step": step.number, "drawn": drawn}
    # No unit drawn: there is no mean, and the step is pure noise.
    if drawn:
        clipped = 1 - unclipped / drawn
        row |= {"loss": loss / drawn, "gradient_norm": norm / drawn, "clipped": clipped}
    if math.isfinite(step.threshold):
        row["max_grad_norm"] = step.threshold
    return row

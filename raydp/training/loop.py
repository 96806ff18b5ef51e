"""The training loop: draw, sum, add noise once, divide by b, step. Methods, rank counts and resumes share it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.models.vector_layers import ExampleDropout, dropouts_of, dropping
from raydp.tasks.base import Examples, Task
from raydp.training import sharding
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm, LocalComm, slice_of
from raydp.training.gradients.memory import is_out_of_memory
from raydp.training.gradients.microbatches import Units
from raydp.training.gradients.thresholds import Clipping
from raydp.training.gradients.vjp import unsupported
from raydp.training.gradients.weights import UnitWeights
from raydp.training.noise.correlated import CorrelatedNoise
from raydp.training.noise.lattice import NOISE_WIDENING, add_lattice_noise, lattice_step
from raydp.training.noise.stream import KeyedStream
from raydp.training.resuming import resume, whole_state
from raydp.training.schedule import LearningRateSchedule
from raydp.training.trial import Paused, Trained, TrainingContext
from raydp.training.trial_plan import TrialPlan

PAUSE = 4
"""Position in a step's sums at which rank 0 asks for a pause."""
MANY_AT_ONCE = {"cuda"}
"""Types of devices that draw the noise of several small parameters at once."""
DRAWN_TOGETHER = 1 << 23
"""Number of coordinates of small parameters whose noise a GPU draws at once. It takes some 50 bytes for each."""
START_AGAIN = (
    "a micro-batch of a sharded model did not fit into memory, and the other workers wait in the middle of a pass. The "
    "next attempt takes half as many tokens; or set cluster.microbatch_size."
)


class GradientSum(Protocol):
    """Adds a micro-batch's gradients to a running sum; see ClippedGradients."""

    def accumulate(
        self,
        loss_fn: Callable[[], torch.Tensor],
        total: MutableMapping[str, torch.Tensor],
        examples_per_unit: int = 1,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return [2, U] the losses and gradient norms of the units."""


@dataclass(frozen=True, kw_only=True)
class StepRule:
    """The parts of the training loop that differ between methods.

    Attributes:
        indices_fn: step -> the units of the global batch, identical on every rank.
        gradients: sums the per-example gradients.
        clipping: owns the threshold c, which may change from step to step; inf if nothing is clipped.
        noise_multiplier: standard deviation of the noise on the sum, per coordinate, over its sensitivity; 0 for none.
        optimizer: holds the trained parameters in the order of their sorted names.
        noise: correlation of the noise of a step with the noise of earlier steps; independent by default.
        weights: weights of the units, each of one example; None for equal weights.
        schedule: factors of the learning rate by step; None for the same rate in all steps.
    """

    indices_fn: Callable[[int], NDArray[np.int64]]
    gradients: GradientSum
    clipping: Clipping
    noise_multiplier: float
    optimizer: torch.optim.Optimizer
    noise: CorrelatedNoise = field(default_factory=CorrelatedNoise)
    weights: UnitWeights | None = None
    schedule: LearningRateSchedule | None = None


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

    The update of a step is (Σ_i clipped gradient_i + noise) / b. b is the expected batch size, never the drawn one
    (Abadi et al. 2016, Algorithm 1; Hu et al. 2025, Algorithm 2, divides by the drawn one). With weights of units, the
    clipped gradients are multiplied by the weights, and the noisy sum by their scale. The noise is drawn once, from the
    run's keyed stream: each rank adds it to a slice of the sum, and the ranks exchange their slices. If the trained
    parameters are sharded, each rank alone holds a part of the gradient and draws the same part of this noise.

    Raises:
        Paused: the context asked for a pause. The state is saved.
    """
    started = time.perf_counter()
    stream = KeyedStream(key=key, run_id=plan.run_id)
    units = Units.of(task)
    flat, total = _flat_views(context.parameters, comm.device)
    parts = {name: sharding.part_of(p) for name, p in context.parameters.items()}
    in_parts = sharding.in_parts(context.parameters)
    holders = LocalComm(comm.device) if in_parts else comm  # the ranks that hold the same gradient as this rank
    slices, noised = _shares_of_noise(total, parts, holders)
    dropouts = dropouts_of(context.model)
    canaries = context.canaries
    if canaries is not None:
        assert not in_parts, "canaries need the whole sum"
        store = None  # a checkpoint does not hold what the auditor has seen
    first, history = resume(store, context, rule.optimizer, rule.clipping, comm)
    followup = _Followup(plan.num_steps, context, rule, comm, store)
    ended_early = first > 0 and first in context.check_steps and context.check_fn(first)  # killed before its check
    for step in [] if ended_early else range(first, plan.num_steps):
        # Draw the step's units, and sum this rank's clipped gradients in micro-batches that fit into memory.
        pause = comm.rank == 0 and context.pause_fn is not None and context.pause_fn()
        threshold = rule.clipping.max_grad_norm
        drawn = rule.indices_fn(step)
        if canaries is not None:
            drawn = canaries.without_canaries(drawn)
        share = units.share(drawn if rule.weights is None else rule.weights.counting(drawn), comm)
        dropout = partial(example_masks, dropouts, stream, step)
        while (sums := _accumulate(units, share, rule, context, task, total, comm, dropout)) is None:
            context.budget.halve()
        # Sum over ranks. The sums also carry rank 0's request to pause.
        sums[PAUSE] += pause
        holders.all_reduce_sum(flat)
        comm.all_reduce_sum(sums)
        if canaries is not None:
            canaries.add(flat, rule.clipping)
        # Record the step in the ledger, then add the noise of the record. An auditor sees the noisy sum.
        context.require_noise(rule.noise_multiplier)
        if rule.noise_multiplier > 0:
            if context.ledger is not None and comm.rank == 0:
                context.ledger.record(step)
            add_noise(slices, noised, stream, step, rule.noise_multiplier, threshold, rule.noise)
        holders.exchange_slices(flat)
        if canaries is not None:
            canaries.observe(flat, threshold)
        # Divide by the expected batch size, and update the weights and the threshold.
        flat /= plan.batch_size
        if rule.weights is not None:
            flat *= rule.weights.scale
        if rule.schedule is not None:
            for group in rule.optimizer.param_groups:
                group["lr"] = plan.learning_rate * rule.schedule.factor(step)
        rule.optimizer.step()
        history.append(_record(step, sums, threshold))
        unclipped, counted = sums[2:PAUSE].tolist()
        rule.clipping.update(unclipped, counted, stream, step)
        # Evaluate, report, save, pause, or end early.
        done = step + 1
        history[-1] |= context.evaluate_fn(done)
        followup.after(done, history, pause=bool(sums[PAUSE]))
        if done in context.check_steps and context.check_fn(done):
            ended_early = True
            break
    seconds = time.perf_counter() - started
    return Trained(history=history, ended_early=ended_early, resumed_from=first, seconds=seconds)


class _Followup:
    """Reports each step, saves a run's state at intervals, and pauses a run."""

    def __init__(
        self, num_steps: int, context: TrainingContext, rule: StepRule, comm: Comm, store: CheckpointStore | None
    ) -> None:
        self._num_steps, self._context, self._rule, self._comm, self._store = num_steps, context, rule, comm, store
        self._collective = sharding.in_parts(context.parameters)
        self._saved = time.monotonic()

    def after(self, done: int, history: list[dict[str, float]], *, pause: bool) -> None:
        """Follow up the last of `done` steps. Called on every rank.

        Raises:
            Paused: the run pauses. Its state is saved.
        """
        if self._context.progress is not None:
            self._context.progress(done, self._num_steps, history[-1])
        self._save(done, history, now=pause)
        if pause:
            raise Paused(f"paused after {done} of {self._num_steps} steps")

    def _save(self, done: int, history: list[dict[str, float]], *, now: bool) -> None:
        """Save the state if the interval is over, or at once with `now`."""
        if self._store is None:
            return
        due = now or time.monotonic() - self._saved >= self._context.checkpoint_seconds
        if not (self._comm.broadcast_object(due) if self._collective else due and self._comm.rank == 0):
            return
        tensors = whole_state(self._context, self._rule.optimizer, self._comm)  # collective if parameters are sharded
        if self._comm.rank == 0:
            self._store.save(done, tensors, {"history": history, "max_grad_norm": self._rule.clipping.max_grad_norm})
        self._saved = time.monotonic()


def _accumulate(
    units: Units,
    share: NDArray[np.int64],
    rule: StepRule,
    context: TrainingContext,
    task: Task,
    total: dict[str, torch.Tensor],
    comm: Comm,
    dropout: Callable[[NDArray[np.int64]], AbstractContextManager[None]],
) -> torch.Tensor | None:
    """Set `total` to the sum over this rank's units; if parameters are sharded, to this rank's part of the whole sum.

    Args:
        dropout: examples of a micro-batch -> block in which the model drops their inputs.

    Returns:
        [5] float64 sums of loss, norm, unclipped units and drawn units, and a place for `PAUSE`; None if smaller
        micro-batches may fit into memory.

    Raises:
        RuntimeError: the micro-batches do not fit into memory, and cannot or must not be smaller.
    """
    # Start from zero sums.
    for gradient in total.values():
        gradient.zero_()
    device = next(iter(total.values())).device
    sums = torch.zeros(PAUSE + 1, dtype=torch.float64, device=device)
    sharded = sharding.is_sharded(context.model)
    running, idle = sharding.running_sums(context.model, context.parameters, total)
    batches = units.microbatches(share, context.microbatch_size, context.budget.tokens)
    for microbatch in sharding.in_lockstep(batches, comm) if sharded else batches:
        # A rank without a micro-batch runs any example, because the other ranks need its weights; it is not counted.
        indices, per_unit = microbatch or (np.array([np.argmin(units.lengths)]), 1)
        batch: Examples = task.batch(indices).to(device)
        into = idle if microbatch is None else running
        weights = None if rule.weights is None or microbatch is None else rule.weights.of(indices, device)
        assert weights is None or per_unit == 1, "weights are of units of one example"
        # Add the micro-batch's gradients; if memory runs out, ask for smaller micro-batches or give up.
        try:
            with dropout(indices):
                losses, norms = rule.gradients.accumulate(
                    partial(losses_of, context, task, batch), into, per_unit, weights
                )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if context.microbatch_size is None and len(indices) > per_unit:
                if not sharded:
                    return None
                context.budget.halve()
                raise RuntimeError(START_AGAIN) from error
            raise RuntimeError(_too_large(context, batch, per_unit)) from error
        # Count losses, norms and units.
        if microbatch is None:
            continue
        unclipped = (norms <= rule.clipping.max_grad_norm).sum()
        drawn = torch.full_like(norms[0], len(norms))
        sums[:PAUSE] += torch.stack([losses.sum(), norms.sum(), unclipped.to(norms), drawn])
    return sums


def example_masks(
    dropouts: Sequence[ExampleDropout], stream: KeyedStream, step: int, examples: NDArray[np.int64]
) -> AbstractContextManager[None]:
    """Let a model drop inputs of a micro-batch for a block, by masks from the run's keyed stream.

    A mask depends on the step, the layer and the example alone, so the clipped gradient of an example does too: the
    guarantee is that of the same training without dropout. A share is rounded to a multiple of 2^-16.
    """

    def keep(layer: str, shape: torch.Size, share: float) -> torch.Tensor:
        if shape[0] != len(examples):
            raise ValueError(unsupported(layer, f"its input {tuple(shape)} has no row for each example"))
        count = math.prod(shape[1:])
        names = (f"{layer}:{example}" for example in examples)
        drawn = [stream.bits(-(-count // 4), step=step, purpose="dropout", name=name) for name in names]
        kept = np.stack([bits.view("<u2")[:count] for bits in drawn]) >= round(share * 2**16)
        return torch.from_numpy(kept).view(shape)

    return dropping(dropouts, keep) if dropouts else nullcontext()


def losses_of(context: TrainingContext, task: Task, batch: Examples) -> torch.Tensor:
    """Return [B] per-example losses, with matrix products in the context's precision."""
    with torch.autocast(batch.device.type, dtype=context.autocast, enabled=context.autocast is not None):
        return task.per_example_loss(context.model, batch)


def _too_large(context: TrainingContext, batch: Examples, per_unit: int) -> str:
    if context.microbatch_size is not None:
        return (
            f"cluster.microbatch_size must fit into memory, got {context.microbatch_size}, and {batch.size} "
            "do not. Lower it, or leave it out."
        )
    return (
        f"one unit of {batch.size} does not fit into memory. Set "
        "cluster.gradient_checkpointing, shorten the examples or let a user give fewer of them."
    )


def _flat_views(
    parameters: dict[str, torch.nn.Parameter], device: torch.device
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return one fp32 vector for all gradients, and each parameter's view of it.

    One vector lets ranks exchange one message. The views are also the gradients that the optimizer reads. If the
    parameters are sharded, the vector holds this rank's parts.
    """
    held = {name: sharding.local(p) for name, p in parameters.items()}
    flat = torch.zeros(sum(values.numel() for values in held.values()), device=device)
    views = flat.split([values.numel() for values in held.values()])
    total = {name: view.view(held[name].shape) for name, view in zip(held, views, strict=True)}
    for name, parameter in parameters.items():
        parameter.grad = sharding.like(parameter, total[name])
    return flat, total


def _shares_of_noise(
    total: Mapping[str, torch.Tensor], parts: Mapping[str, sharding.Part], holders: Comm
) -> tuple[dict[str, torch.Tensor], dict[str, sharding.Part]]:
    """Return what this rank adds noise to: its slice of each parameter's sum, and which part of the parameter that is.

    Args:
        total: the sums, in the order in which they lie in one vector.
        parts: the part of each parameter that its sum is of.
        holders: the ranks that hold these sums.
    """
    own = slice_of(holders.rank, holders.world_size, sum(gradient.numel() for gradient in total.values()))
    slices, noised, first = {}, {}, 0
    for name, gradient in total.items():
        size = gradient.numel()
        start, stop = (min(max(edge - first, 0), size) for edge in (own.start, own.stop))
        slices[name] = gradient.view(-1)[start:stop]
        held = parts[name]
        noised[name] = sharding.Part(count=held.count, start=held.start + start, stop=held.start + stop)
        first += size
    return slices, noised


def add_noise(
    total: dict[str, torch.Tensor],
    parts: dict[str, sharding.Part],
    stream: KeyedStream,
    step: int,
    noise_multiplier: float,
    threshold: float,
    source: CorrelatedNoise,
) -> None:
    """Add noise of std σ c to the sums, on a lattice.

    The noise of a parameter is from the stream of its name. The lattice is the lattice of the whole sum.

    Args:
        total: sums, or slices of them; may be empty.
        parts: the parts of all trained parameters that these sums are of.
    """
    lattice = lattice_step(threshold, sum(part.count for part in parts.values()))
    std = noise_multiplier * threshold * NOISE_WIDENING
    for names in _drawn_together(total, parts):
        views = [total[name].view(-1) for name in names]
        sums = views[0] if len(views) == 1 else torch.cat(views)
        drawn = source.pieces(stream, {name: parts[name] for name in names}, step=step, device=sums.device)
        for place, noise in drawn:
            gradient = sums[place]
            add_lattice_noise(gradient, noise, std=std, step=lattice)
        if len(views) > 1:
            torch._foreach_copy_(views, sums.split([len(view) for view in views]))


def _drawn_together(total: Mapping[str, torch.Tensor], parts: Mapping[str, sharding.Part]) -> list[list[str]]:
    """Return the names in groups. A GPU is kept busy by many small whole parameters at once; a CPU by one at a time."""
    groups: list[list[str]] = []
    room = 0
    for name, gradient in total.items():
        if not gradient.numel():
            continue
        together = gradient.device.type in MANY_AT_ONCE and parts[name].is_whole
        size = gradient.numel() if together else DRAWN_TOGETHER
        if not groups or size > room:
            groups.append([])
            room = DRAWN_TOGETHER
        groups[-1].append(name)
        room -= size
    return groups


def _record(step: int, sums: torch.Tensor, threshold: float) -> dict[str, float]:
    loss, norm, unclipped, drawn = sums[:PAUSE].tolist()
    record = {"step": step, "drawn": drawn}
    if drawn:
        record |= {"loss": loss / drawn, "gradient_norm": norm / drawn, "clipped": 1 - unclipped / drawn}
    return record | ({"max_grad_norm": threshold} if math.isfinite(threshold) else {})

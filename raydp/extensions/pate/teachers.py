"""PATE's teachers and their votes.

Teachers share no record; each rank runs one teacher after another.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.extensions.classification.labelled import ClassificationTask, LabelledExamples
from raydp.tasks.task import batches_by_length
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm
from raydp.training.noise.stream import KeyedStream
from raydp.training.observers import Observers, StepReport
from raydp.training.trial import Paused, TrainingContext
from raydp.training.trial_plan import TrialPlan

TOKENS_AT_ONCE = 4096
"""Tokens of one backward pass of a teacher.

The number is fixed, because the rounding of a sum depends on it and a teacher's answer must depend
on its own examples alone.
"""


class Teachers(Protocol):
    """How a teacher turns its examples into votes.

    Implementers: `Teaching` below, and `raydp.extensions.pate.prompted.Prompting`.

    Attributes:
        num_teachers: m.
    """

    @property
    def num_teachers(self) -> int: ...

    def choices(
        self,
        context: TrainingContext,
        task: ClassificationTask,
        shard: NDArray[np.int64],
        queries: LabelledExamples,
        seed: list[int],
        stream: KeyedStream,
    ) -> torch.Tensor:
        """Return [Q] the class that a teacher chooses for each query.

        The context is unchanged afterwards.

        Args:
            shard: positions of the teacher's examples. No other example may influence the votes.
            seed: public seed of this teacher.
            stream: keyed stream of the run.
        """


@dataclass(frozen=True, kw_only=True)
class Teaching:
    """Teachers that are trained by Adam from the context's start.

    Attributes:
        num_teachers: m.
        num_steps: steps of each teacher.
        batch_size: examples of a step, drawn without replacement; None for the whole shard.
        learning_rate: learning rate of Adam.
    """

    num_teachers: int
    num_steps: int
    batch_size: int | None
    learning_rate: float

    def choices(
        self,
        context: TrainingContext,
        task: ClassificationTask,
        shard: NDArray[np.int64],
        queries: LabelledExamples,
        seed: list[int],
        stream: KeyedStream,
    ) -> torch.Tensor:
        """Train one teacher and return its votes; see `Teachers`."""
        # Every teacher begins at the same weights, and leaves them as it found them.
        start = {name: p.detach().clone() for name, p in context.parameters.items()}
        _teach(self, context, task, shard, seed)
        logits, _ = task.outputs(context.model, queries)
        for name, parameter in context.parameters.items():
            parameter.data.copy_(start[name])
        return logits[:, : task.num_classes].argmax(dim=1)


def teacher_of(
    examples: LabelledExamples, num_teachers: int, stream: KeyedStream
) -> NDArray[np.int64]:
    """Return [n] the teacher of each example.

    A keyed hash of the example decides, so that one example more or less moves no other, and copies
    stay together.
    """
    return (keyed_words(examples, stream, "teacher") % np.uint64(num_teachers)).astype(np.int64)


def keyed_words(
    examples: LabelledExamples, stream: KeyedStream, purpose: str
) -> NDArray[np.uint64]:
    """Return [n] a word of the stream for each example, by the example's content alone."""
    digests = (hashlib.sha256(content).hexdigest() for content in examples.contents())
    words = [stream.bits(1, step=0, purpose=purpose, name=digest)[0] for digest in digests]
    return np.array(words, np.uint64)


def collect_votes(
    plan: TrialPlan,
    teaching: Teachers,
    context: TrainingContext,
    task: ClassificationTask,
    queries: LabelledExamples,
    comm: Comm,
    key: bytes,
    store: CheckpointStore | None,
) -> NDArray[np.int64]:
    """Return [Q, K] the number of teachers that choose each class, on every rank.

    The context is unchanged afterwards.

    A teacher's votes are a function of its own shard. So one record more or less moves one vote of
    each query.

    Raises:
        Paused: the context was asked to pause; the votes so far are saved.
    """
    stream = KeyedStream(key=key, run_id=plan.run_id)
    # Which teacher an example belongs to is decided before any training.
    of_example = teacher_of(task.train, teaching.num_teachers, stream)
    done, votes = _resumed(store, len(queries), task.num_classes, comm)
    saved, observer = time.monotonic(), Observers(*context.observers)
    while done < teaching.num_teachers:
        # Save and stop if rank 0 asks for a pause.
        pause = comm.broadcast_object(context.pause_fn())
        if pause:
            _save(store, done, votes, comm)
            raise Paused(f"paused after {done} of {teaching.num_teachers} teachers")
        # Each rank runs the next teacher of its own; the ranks add their votes.
        teacher, chosen = done + comm.rank, torch.zeros_like(votes)
        if teacher < teaching.num_teachers:
            shard = np.flatnonzero(of_example == teacher)
            classes = teaching.choices(context, task, shard, queries, [plan.seed, teacher], stream)
            chosen.scatter_(1, classes.to(chosen.device)[:, None], 1)
        comm.all_reduce_sum(chosen)
        votes += chosen
        done = min(done + comm.world_size, teaching.num_teachers)
        # Tell the observers that the run is alive.
        observer.after_step(StepReport(done=0, num_steps=plan.num_steps, row={}))
        if done == teaching.num_teachers or time.monotonic() - saved >= context.checkpoint_seconds:
            _save(store, done, votes, comm)
            saved = time.monotonic()
    counts: NDArray[np.int64] = votes.cpu().numpy()
    return counts


def _resumed(
    store: CheckpointStore | None, num_queries: int, num_classes: int, comm: Comm
) -> tuple[int, torch.Tensor]:
    """Return how many teachers have voted, and their votes, from rank 0's checkpoint."""
    checkpoint = store.load() if store is not None and comm.rank == 0 else None
    known = (0, None) if checkpoint is None else (checkpoint[0], checkpoint[1]["votes"].tolist())
    done, counts = comm.broadcast_object(known)
    if counts is None:
        return 0, torch.zeros(num_queries, num_classes, dtype=torch.int64, device=comm.device)
    return done, torch.tensor(counts, dtype=torch.int64, device=comm.device)


def _save(store: CheckpointStore | None, done: int, votes: torch.Tensor, comm: Comm) -> None:
    if store is not None and comm.rank == 0:
        store.save(done, {"votes": votes.cpu()}, {})


def _teach(
    teaching: Teaching,
    context: TrainingContext,
    task: ClassificationTask,
    shard: NDArray[np.int64],
    seed: list[int],
) -> None:
    """Train one teacher in place. A teacher without examples stays at its start."""
    if not len(shard):
        return
    optimizer = torch.optim.Adam(list(context.parameters.values()), lr=teaching.learning_rate)
    rng, size = np.random.default_rng(seed), min(teaching.batch_size or len(shard), len(shard))
    device = next(iter(context.parameters.values())).device
    lengths = task.lengths()
    for _ in range(teaching.num_steps):
        # The whole shard needs no draw.
        drawn = shard if size == len(shard) else rng.choice(shard, size, replace=False)
        optimizer.zero_grad()
        for part in batches_by_length(lengths[drawn], TOKENS_AT_ONCE):
            batch = task.batch(drawn[part]).to(device)
            # Divided by the size of the step, whatever the parts are.
            (task.per_example_loss(context.model, batch).sum() / size).backward()
        optimizer.step()
    optimizer.zero_grad()

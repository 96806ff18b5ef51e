"""Shared base of AdvReg and MMD: a classifier that behaves alike on training and reference data."""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch.nn import functional as F

from raydp.extensions.classification.labelled import ClassificationTask
from raydp.methods.method import StepTraits
from raydp.methods.nonprivate import NonPrivate
from raydp.tasks.task import Task
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm
from raydp.training.observers import Observers, StepReport
from raydp.training.sharding import is_sharded
from raydp.training.trial import Paused, Trained, TrainingContext
from raydp.training.trial_plan import TrialPlan

if TYPE_CHECKING:
    from raydp.spec.document import SweepSpec


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Examples of one data set in a batch, with the classifier's logits.

    Attributes:
        logits: [B, K].
        labels: [B] int64.
    """

    logits: torch.Tensor
    labels: torch.Tensor

    @property
    def probs(self) -> torch.Tensor:
        """Return [B, K] the confidence vectors."""
        return self.logits.softmax(dim=1)

    def __len__(self) -> int:
        return len(self.labels)


class RegularisedClassifier(NonPrivate):
    """Base of regularised classifiers: Adam or SGD on L_T + λ · a regulariser of both data sets.

    A step draws examples of both sets, each with probability b / N. The loss is the mean over the
    drawn training examples. ε is infinite.
    """

    learning_rate_schedule: Literal["constant"] = "constant"
    """Must stay constant."""
    warmup_ratio: Annotated[float, Field(ge=0, le=0)] = 0.0
    """Must stay 0: all steps have the learning rate η."""
    strength: Annotated[float, Field(ge=0, le=1e6)]
    """λ >= 0, the weight of the regulariser in the loss."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Number of steps at the start that train the classifier without the regulariser."""

    @property
    def traits(self) -> StepTraits:
        """Return the traits of steps with their own training loop, not `raydp.training.loop`."""
        return StepTraits(optimizer=self.optimizer_name)

    def check(self, spec: SweepSpec, task: Task) -> None:
        """Raise ValueError if the task is not a classification task with reference data."""
        classification(task)

    @abstractmethod
    def regulariser(
        self, plan: TrialPlan, context: TrainingContext, task: ClassificationTask, key: bytes
    ) -> Regulariser:
        """Return a new regulariser for one run."""

    def train(
        self,
        plan: TrialPlan,
        context: TrainingContext,
        task: Task,
        comm: Comm,
        key: bytes,
        store: CheckpointStore | None,
    ) -> Trained:
        """Train on the loss with the regulariser; see `Method.train`."""
        classes = classification(task)
        if is_sharded(context.model):
            raise ValueError(
                "cluster.sharding must be none for this method, got full. Leave it out."
            )
        optimizer = self.optimizer(plan, list(context.parameters.values()))
        regulariser = self.regulariser(plan, context, classes, key)

        def updated(step: int) -> dict[str, float]:
            # The first steps may be without the regulariser, which needs a classifier that has
            # learnt something.
            regularised = step >= self.warmup_steps and self.strength > 0
            if regularised:
                regulariser.prepare(step)
            units = self.batch_indices(plan, key, step)
            row: dict[str, float] = {"step": step, "drawn": float(len(units))}
            training, reference = look_at(context, classes, units)
            # No training example drawn: nothing to learn from in this step.
            if not len(training):
                return row
            loss = objective = F.cross_entropy(training.logits, training.labels)
            if regularised and len(reference):
                objective = loss + self.strength * regulariser.value(training, reference)
            optimizer.zero_grad()
            objective.backward()
            optimizer.step()
            return {**row, "loss": float(loss.detach()), "objective": float(objective.detach())}

        started, ends = time.perf_counter(), False
        observer, history = Observers(*context.observers), list[dict[str, float]]()
        # The objective is no sum over examples: every rank does all the work from step 0.
        for step in range(plan.num_steps):
            # Rank 0's answer counts, so that all ranks stop at one step.
            if comm.broadcast_object(context.pause_fn()):
                done = f"{step} of {plan.num_steps} steps"
                raise Paused(f"paused after {done}; this method starts again")
            history.append(updated(step))
            report = StepReport(done=step + 1, num_steps=plan.num_steps, row=history[-1])
            observer.after_step(report)
            if ends := observer.must_end(step + 1):
                break
        seconds = time.perf_counter() - started
        return Trained(history=history, ended_early=ends, resumed_from=0, seconds=seconds)


class Regulariser:
    """The term that is added to the loss of the training data.

    Implementers: `_Adversary` (AdvReg) and `_MeanDiscrepancy` (MMD).
    """

    def prepare(self, step: int) -> None:
        """Prepare for a step. Called before each step that uses the regulariser."""

    @abstractmethod
    def value(self, training: Seen, reference: Seen) -> torch.Tensor:
        """Return the scalar value for a batch in which neither set is empty."""


def classification(task: Task) -> ClassificationTask:
    """Return the task if it is a classification task with reference data.

    Raises:
        ValueError: the task is of another kind.
    """
    if not isinstance(task, ClassificationTask) or not task.facts().num_reference:
        raise ValueError(
            "task must be a classification task with reference data for this method. Use the task "
            "with_reference of one such as digits; for language models there is the method werm."
        )
    return task


def look_at(
    context: TrainingContext, task: ClassificationTask, units: NDArray[np.int64]
) -> tuple[Seen, Seen]:
    """Return the classifier's logits of a batch's training examples, and of its reference ones."""
    device = next(iter(context.parameters.values())).device
    # Reference data come last in the task.
    first = task.facts().num_training
    parts = []
    for part in (units[units < first], units[units >= first]):
        batch = task.batch(part).to(device)
        logits = torch.zeros(0, task.num_classes, device=device)
        if len(part):
            with torch.autocast(
                device.type, dtype=context.autocast, enabled=context.autocast is not None
            ):
                logits = task.logits(context.model, batch.inputs).float()
        parts.append(Seen(logits=logits, labels=batch.labels))
    return parts[0], parts[1]

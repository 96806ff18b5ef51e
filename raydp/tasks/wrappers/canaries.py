"""Tasks with the canaries of a one-run audit. The included canaries are the last training examples."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from raydp.tasks.base import TaskFacts
from raydp.tasks.classification.labelled import ClassificationTask, LabelledExamples
from raydp.tasks.text.examples import TokenizedExamples, batches_by_length
from raydp.tasks.text.language import LanguageModelingTask

MAX_TOKENS = 1024
"""Largest number of padded tokens of a forward pass."""


@dataclass(frozen=True, kw_only=True)
class CanaryTask(LanguageModelingTask):
    """A language modelling task with canaries.

    Attributes:
        canaries: all M canaries, included or not, in an order that reveals nothing.
        first_new_token: id of the first canary's token; the ids of the others follow.
        included: [M] the coins: whether each canary is a training example. Use them only to count correct guesses,
            never to guess.
    """

    canaries: TokenizedExamples
    first_new_token: int
    included: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        task: LanguageModelingTask,
        canaries: TokenizedExamples,
        included: NDArray[np.bool_],
        *,
        first_new_token: int,
    ) -> CanaryTask:
        """Return a task with the included canaries after its own training examples."""
        extended = task.extended(canaries.select(np.flatnonzero(included)), unit="canary")
        known = {f.name: getattr(extended, f.name) for f in fields(extended)}
        known["task_facts"] = _with_canaries(extended.task_facts, canaries, included)
        return cls(**known, canaries=canaries, included=included, first_new_token=first_new_token)

    def canary_losses(self, model: torch.nn.Module) -> NDArray[np.float64]:
        """Return [M] the loss of each canary's new token (nats), under the softmax over the M new tokens."""
        device = next(model.parameters()).device
        count = len(self.canaries)
        losses = np.empty(count)
        with torch.inference_mode():
            for indices in batches_by_length(self.canaries.lengths(), MAX_TOKENS):
                ids = self.canaries.batch(indices).input_ids.to(device)  # all have one length: no padding
                logits = model(ids[:, :-1], use_cache=False).logits[:, -1, self.first_new_token :][:, :count]
                targets = ids[:, -1] - self.first_new_token
                losses[indices] = F.cross_entropy(logits.double(), targets, reduction="none").cpu().numpy()
        return losses


@dataclass(frozen=True, kw_only=True)
class CanaryClassificationTask(ClassificationTask):
    """A classification task with canaries. Each canary has its own class after the classes of the task.

    Attributes:
        canaries, included: as in CanaryTask.
    """

    canaries: LabelledExamples
    included: NDArray[np.bool_]

    @classmethod
    def of(
        cls, task: ClassificationTask, canaries: LabelledExamples, included: NDArray[np.bool_]
    ) -> CanaryClassificationTask:
        """Return a task with the included canaries after its own training examples."""
        extended = task.extended(canaries.select(np.flatnonzero(included)), unit="canary")
        known = {f.name: getattr(extended, f.name) for f in fields(extended)}
        known["task_facts"] = _with_canaries(extended.task_facts, canaries, included)
        return cls(**known, canaries=canaries, included=included)

    def canary_losses(self, model: torch.nn.Module) -> NDArray[np.float64]:
        """Return [M] the loss of each canary's class (nats), under the softmax over the M new classes."""
        logits, labels = self.outputs(model, self.canaries)
        among_new = logits[:, self.num_classes :].double()
        return F.cross_entropy(among_new, labels - self.num_classes, reduction="none").numpy()


def _with_canaries(
    facts: TaskFacts, canaries: TokenizedExamples | LabelledExamples, included: NDArray[np.bool_]
) -> TaskFacts:
    """Return the facts of an extended task with the identity and the number of its canaries."""
    digest = hashlib.sha256(facts.content_hash.encode())
    canaries.update_hash(digest)
    return replace(
        facts,
        content_hash=digest.hexdigest(),
        num_new_tokens=len(canaries),
        notes={**facts.notes, "canaries": len(canaries), "canaries_in": int(included.sum())},
    )

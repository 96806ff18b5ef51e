"""Tasks with the canaries of a one-run audit. The included canaries are the last training examples."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from raydp.tasks.base import Task, TaskFacts
from raydp.tasks.classification.labelled import ClassificationTask, LabelledExamples
from raydp.tasks.text.examples import TokenizedExamples, batches_by_length
from raydp.tasks.text.language import LanguageModelingTask

CanaryKind = Literal["new_token", "known_token", "gradient"]
ACCESS: dict[CanaryKind, str] = {"new_token": "loss", "known_token": "loss", "gradient": "gradient"}
"""The access to training that the guesses on each kind of canaries need: losses of the trained model, or every noisy
sum of gradients."""
MAX_TOKENS = 1024
"""Largest number of padded tokens of a forward pass."""


@dataclass(frozen=True, kw_only=True)
class CanaryTask(LanguageModelingTask):
    """A language modelling task with canaries.

    Attributes:
        canaries: all M canaries, included or not, in an order that reveals nothing.
        kind: kind of the canaries.
        seed: seed of the canaries.
        first_new_token: id of the first canary's token, if the tokens are new; the ids of the others follow.
        included: [M] the coins: whether each canary is a training example. Use them only to count correct guesses,
            never to guess.
    """

    canaries: TokenizedExamples
    kind: CanaryKind
    seed: int
    first_new_token: int
    included: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        task: LanguageModelingTask,
        canaries: TokenizedExamples,
        included: NDArray[np.bool_],
        *,
        kind: CanaryKind,
        seed: int,
        first_new_token: int,
    ) -> CanaryTask:
        """Return a task with the included canaries after its own training examples."""
        extended = task.extended(canaries.select(np.flatnonzero(included)), unit="canary")
        known = {f.name: getattr(extended, f.name) for f in fields(extended)}
        known["task_facts"] = _with_canaries(extended.task_facts, canaries, included, kind)
        return cls(**known, canaries=canaries, kind=kind, seed=seed, included=included, first_new_token=first_new_token)

    def canary_losses(self, model: torch.nn.Module) -> NDArray[np.float64]:
        """Return [M] the loss of each canary's last token (nats).

        The softmax is over the M new tokens if the tokens are new, and over all tokens otherwise.
        """
        device = next(model.parameters()).device
        count = len(self.canaries)
        losses = np.empty(count)
        with torch.inference_mode():
            for indices in batches_by_length(self.canaries.lengths(), MAX_TOKENS):
                ids = self.canaries.batch(indices).input_ids.to(device)  # all have one length: no padding
                logits, targets = model(ids[:, :-1], use_cache=False).logits[:, -1], ids[:, -1]
                if self.kind == "new_token":
                    logits = logits[:, self.first_new_token :][:, :count]
                    targets = targets - self.first_new_token
                losses[indices] = F.cross_entropy(logits.double(), targets, reduction="none").cpu().numpy()
        return losses


@dataclass(frozen=True, kw_only=True)
class CanaryClassificationTask(ClassificationTask):
    """A classification task with canaries. New classes, one for each canary, follow the classes of the task.

    Attributes:
        canaries, kind, seed, included: as in CanaryTask; a class is the token.
    """

    canaries: LabelledExamples
    kind: CanaryKind
    seed: int
    included: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        task: ClassificationTask,
        canaries: LabelledExamples,
        included: NDArray[np.bool_],
        *,
        kind: CanaryKind,
        seed: int,
    ) -> CanaryClassificationTask:
        """Return a task with the included canaries after its own training examples."""
        extended = task.extended(canaries.select(np.flatnonzero(included)), unit="canary")
        known = {f.name: getattr(extended, f.name) for f in fields(extended)}
        known["task_facts"] = _with_canaries(extended.task_facts, canaries, included, kind)
        return cls(**known, canaries=canaries, kind=kind, seed=seed, included=included)

    def canary_losses(self, model: torch.nn.Module) -> NDArray[np.float64]:
        """Return [M] the loss of each canary's class (nats).

        The softmax is over the M new classes if the classes are new, and over all classes otherwise.
        """
        logits, labels = self.outputs(model, self.canaries)
        first = self.num_classes if self.kind == "new_token" else 0
        return F.cross_entropy(logits[:, first:].double(), labels - first, reduction="none").numpy()


def with_gradient_canaries(task: Task) -> CanaryTask | CanaryClassificationTask | None:
    """Return a task if it has gradient canaries, None otherwise."""
    return task if isinstance(task, CanaryTask | CanaryClassificationTask) and task.kind == "gradient" else None


def _with_canaries(
    facts: TaskFacts,
    canaries: TokenizedExamples | LabelledExamples,
    included: NDArray[np.bool_],
    kind: CanaryKind,
) -> TaskFacts:
    """Return the facts of an extended task with the identity and the number of its canaries."""
    digest = hashlib.sha256(facts.content_hash.encode())
    canaries.update_hash(digest)
    if kind != "new_token":  # audits of earlier versions keep their identity
        digest.update(kind.encode())
    return replace(
        facts,
        content_hash=digest.hexdigest(),
        num_new_tokens=len(canaries) if kind == "new_token" else 0,
        num_canaries=len(canaries),
        notes={**facts.notes, "canaries": len(canaries), "canary_kind": kind, "canaries_in": int(included.sum())},
    )

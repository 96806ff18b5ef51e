"""Tasks whose last training examples are the canaries of a one-run audit that are in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from raydp.tasks.classification.labelled import ClassificationTask, LabelledExamples
from raydp.tasks.text.examples import TokenizedExamples, batches_by_length
from raydp.tasks.text.language import LanguageModelingTask

MAX_TOKENS = 1024
"""Padded tokens of a forward pass."""


@dataclass(frozen=True, kw_only=True)
class CanaryTask(LanguageModelingTask):
    """A language modelling task with canaries.

    Attributes:
        canaries: all M, in and out, in an order that tells nothing.
        first_new_token: id of the first one's token; those of the others follow.
        included: [M] the coins: which are training examples. For counting right guesses only, never for guessing.
    """

    canaries: TokenizedExamples
    first_new_token: int
    included: NDArray[np.bool_]

    def canary_losses(self, model: torch.nn.Module) -> NDArray[np.float64]:
        """[M] the loss of each canary's new token (nats), under the softmax over the M new tokens."""
        device = next(model.parameters()).device
        count = len(self.canaries)
        losses = np.empty(count)
        with torch.inference_mode():
            for indices in batches_by_length(self.canaries.lengths(), MAX_TOKENS):
                ids = self.canaries.batch(indices).input_ids.to(device)  # all of one length: no padding
                logits = model(ids[:, :-1], use_cache=False).logits[:, -1, self.first_new_token :][:, :count]
                targets = ids[:, -1] - self.first_new_token
                losses[indices] = F.cross_entropy(logits.double(), targets, reduction="none").cpu().numpy()
        return losses


@dataclass(frozen=True, kw_only=True)
class CanaryClassificationTask(ClassificationTask):
    """A task of classification with canaries, each of which has a class of its own after those of the task.

    Attributes:
        canaries, included: as in CanaryTask.
    """

    canaries: LabelledExamples
    included: NDArray[np.bool_]

    def canary_losses(self, model: torch.nn.Module) -> NDArray[np.float64]:
        """[M] the loss of each canary's class (nats), under the softmax over the M new classes."""
        logits, labels = self.outputs(model, self.canaries)
        among_new = logits[:, self.num_classes :].double()
        return F.cross_entropy(among_new, labels - self.num_classes, reduction="none").numpy()


Audited = TypeVar("Audited", CanaryTask, CanaryClassificationTask)


def with_canaries(kind: type[Audited], task: Any, canaries: Any, included: NDArray[np.bool_], **more: Any) -> Audited:
    """A task with those of the canaries that are in after its own examples.

    Args:
        more: what else the kind knows of its canaries.
    """
    extended = task.extended(canaries.select(np.flatnonzero(included)), unit="canary")
    digest = hashlib.sha256(extended.task_facts.content_hash.encode())
    canaries.update_hash(digest)
    facts = replace(
        extended.task_facts,
        content_hash=digest.hexdigest(),
        num_new_tokens=len(canaries),
        notes={**extended.task_facts.notes, "canaries": len(canaries), "canaries_in": int(included.sum())},
    )
    known = {f.name: getattr(extended, f.name) for f in fields(extended)}
    return kind(**{**known, "task_facts": facts}, canaries=canaries, included=included, **more)

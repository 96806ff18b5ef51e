"""Tasks with the canaries of a one-run audit.

The included canaries are the last training examples.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from raydp.extensions.auditing.gradient_canaries import GradientCanaries, check_room
from raydp.extensions.classification.labelled import ClassificationTask, LabelledExamples
from raydp.models.base_models import num_trained
from raydp.tasks.task import TaskFacts, batches_by_length
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask
from raydp.training.trial_plan import TrialPlan

if TYPE_CHECKING:
    from raydp.spec.document import SweepSpec

CanaryKind = Literal["new_token", "known_token", "gradient"]
ACCESS: dict[CanaryKind, str] = {"new_token": "loss", "known_token": "loss", "gradient": "gradient"}
"""Access to training that the guesses on each kind of canaries need.

It is the losses of the trained model, or every noisy sum of gradients.
"""
MAX_TOKENS = 1024
"""Largest number of padded tokens of a forward pass."""


class _Observed:
    """What runs on a task with canaries must fulfil, and the observer of its gradient canaries."""

    kind: CanaryKind
    seed: int
    included: NDArray[np.bool_]

    def facts(self) -> TaskFacts:
        """Return the task's facts."""
        raise NotImplementedError

    def check_run(self, spec: SweepSpec) -> None:
        """Refuse canaries with a private selection, or that the model or the method cannot have.

        The embeddings learn new tokens. Gradient canaries are clipped by the method and seen in the
        whole noisy sum. A model of canaries is never released.
        """
        if self.kind == "gradient":
            _check_gradient_canaries(spec, len(self.included))
        if self.facts().num_new_tokens and spec.model.adapter.type != "none":
            raise ValueError(
                f"model.adapter.type must be none with the task {spec.task.name!r}, got "
                f"{spec.model.adapter.type!r}: new tokens are learnt in the embeddings. Write "
                "`adapter: {type: none}`."
            )
        spec.privacy.require_ignored_tuning(
            f"with the task {spec.task.name!r}",
            "Audit one run at its own ε (single_run_epsilon of `raydp plan`).",
        )

    def observer(self, plan: TrialPlan, num_trained: int) -> GradientCanaries | None:
        """Return the auditor of gradient canaries; None for canaries of another kind."""
        if self.kind != "gradient":
            return None
        return GradientCanaries(
            self.included,
            first=self.facts().num_training - int(self.included.sum()),
            seed=self.seed,
            num_coordinates=num_trained,
            plan=plan,
        )


@dataclass(frozen=True, kw_only=True)
class CanaryTask(LanguageModelingTask, _Observed):
    """A language modelling task with canaries.

    Attributes:
        canaries: all M canaries, included or not, in an order that reveals nothing.
        kind: kind of the canaries.
        seed: seed of the canaries.
        first_new_token: id of the first canary's token, if the tokens are new; the ids of the
            others follow.
        included: [M] the coins: whether each canary is a training example. Use them only to count
            correct guesses, never to guess.
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
        # Canaries come last, so that the task's own examples keep their positions.
        extended = task.extended(canaries.select(np.flatnonzero(included)), unit="canary")
        # dataclasses.replace cannot change the class, so the fields are copied.
        known = {f.name: getattr(extended, f.name) for f in fields(extended)}
        known["task_facts"] = _with_canaries(extended.task_facts, canaries, included, kind)
        return cls(
            **known,
            canaries=canaries,
            kind=kind,
            seed=seed,
            included=included,
            first_new_token=first_new_token,
        )

    def canary_losses(self, model: torch.nn.Module) -> NDArray[np.float64]:
        """Return [M] losses of canaries' last tokens (nats), over M new tokens or all tokens."""
        device = next(model.parameters()).device
        count = len(self.canaries)
        losses = np.empty(count)
        with torch.inference_mode():
            for indices in batches_by_length(self.canaries.lengths(), MAX_TOKENS):
                # All have one length: no padding.
                ids = self.canaries.batch(indices).input_ids.to(device)
                logits, targets = model(ids[:, :-1], use_cache=False).logits[:, -1], ids[:, -1]
                if self.kind == "new_token":
                    logits = logits[:, self.first_new_token :][:, :count]
                    targets = targets - self.first_new_token
                losses[indices] = (
                    F.cross_entropy(logits.double(), targets, reduction="none").cpu().numpy()
                )
        return losses


@dataclass(frozen=True, kw_only=True)
class CanaryClassificationTask(ClassificationTask, _Observed):
    """A classification task with canaries.

    New classes, one for each canary, follow the classes of the task.

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
        """Return [M] losses of the canaries' classes (nats), over M new classes or all classes."""
        logits, labels = self.outputs(model, self.canaries)
        # New classes follow the task's own; the softmax is over the new ones alone.
        first = self.num_classes if self.kind == "new_token" else 0
        return F.cross_entropy(logits[:, first:].double(), labels - first, reduction="none").numpy()


def _check_gradient_canaries(spec: SweepSpec, num_canaries: int) -> None:
    """Refuse gradient canaries if a step adds no noise to a whole clipped sum, or has no room."""
    # An audit needs one sum of clipped gradients with Gaussian noise.
    traits = spec.method.params.traits
    if not spec.method.params.private or traits.clipping not in ("flat", "automatic"):
        raise ValueError(
            "method.name must be dp_sgd, dp_adam or dp_mf without adaptive clipping for gradient "
            f"canaries, got {spec.method.name!r}. Audit it with access to losses: --canary "
            "new_token."
        )
    if (weight := dict(spec.method.params).get("reference_weight")) is not None:
        raise ValueError(
            "method.reference_weight must be left out for gradient canaries, got "
            f"{weight:g}. Leave it out."
        )
    # The auditor reads the whole noisy sum, which no rank of a sharded model has.
    if spec.cluster.sharding != "none":
        raise ValueError(
            f"cluster.sharding must be none for gradient canaries, got {spec.cluster.sharding}. "
            "Leave it out."
        )
    check_room(num_canaries, num_trained(spec.model))


def _with_canaries(
    facts: TaskFacts,
    canaries: TokenizedExamples | LabelledExamples,
    included: NDArray[np.bool_],
    kind: CanaryKind,
) -> TaskFacts:
    """Return the facts of an extended task with the identity and the number of its canaries."""
    # The identity covers the canaries: an audited model must not pass for the plain one.
    digest = hashlib.sha256(facts.content_hash.encode())
    canaries.update_hash(digest)
    if kind != "new_token":  # audits of earlier versions keep their identity
        digest.update(kind.encode())
    return replace(
        facts,
        content_hash=digest.hexdigest(),
        num_new_tokens=len(canaries) if kind == "new_token" else 0,
        only_measured="models of canaries are for `raydp audit`, not for use",
        notes={
            **facts.notes,
            "canaries": len(canaries),
            "canary_kind": kind,
            "canaries_in": int(included.sum()),
        },
    )

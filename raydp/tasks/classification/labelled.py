"""Classification: what every task of labelled arrays is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from raydp.models.key_values import Prefix
from raydp.tasks.base import Secret, TaskFacts
from raydp.tasks.classification.label_words import PADDING, LabelWords, lengths_of
from raydp.tasks.text.examples import batches_by_length

Utility = Literal["error_rate", "cross_entropy"]
EVALUATED_AT_ONCE = 1024
"""Examples of a network, or padded tokens of a language model, in a pass without gradients."""


@dataclass(frozen=True, kw_only=True)
class LabelledExamples:
    """Inputs with their classes.

    Attributes:
        inputs: [n, *shape] float32; of texts [n, L] int64 token ids (see raydp.tasks.classification.label_words), L the
            same whatever the texts are.
        labels: [n] int64, 0 .. K - 1.
    """

    inputs: NDArray[np.float32] | NDArray[np.int64]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """The inputs, where they are texts."""
        return cast(NDArray[np.int64], self.inputs)

    @classmethod
    def concatenated(cls, *parts: LabelledExamples) -> LabelledExamples:
        """The examples of all parts, one part after another."""
        return cls(inputs=np.concatenate([p.inputs for p in parts]), labels=np.concatenate([p.labels for p in parts]))

    def contents(self) -> list[bytes]:
        """What each example says: equal for copies."""
        return [x.tobytes() + y.tobytes() for x, y in zip(self.inputs, self.labels, strict=True)]

    def input_contents(self) -> list[bytes]:
        """What each input says, without its class and its padding."""
        if self.inputs.dtype != np.int64:
            return [x.tobytes() for x in self.inputs]
        return [x[x != PADDING].tobytes() for x in self.inputs]

    def update_hash(self, digest: hashlib._Hash) -> None:
        """Add the content to a running hash."""
        digest.update(f"{self.inputs.shape};".encode())
        digest.update(np.ascontiguousarray(self.inputs).tobytes())
        digest.update(np.ascontiguousarray(self.labels).tobytes())

    def select(self, indices: NDArray[np.int64]) -> LabelledExamples:
        """Some of them, in the order given."""
        return LabelledExamples(inputs=self.inputs[indices], labels=self.labels[indices])

    def batch(self, indices: NDArray[np.int64]) -> LabelledBatch:
        """Some of them for a model."""
        return LabelledBatch(
            inputs=torch.from_numpy(self.inputs[indices]), labels=torch.from_numpy(self.labels[indices])
        )


@dataclass(frozen=True, kw_only=True)
class LabelledBatch:
    """Examples for a classifier.

    Attributes:
        inputs: [B, *shape] float32; of texts [B, L] int64.
        labels: [B] int64.
    """

    inputs: torch.Tensor
    labels: torch.Tensor

    @property
    def device(self) -> torch.device:
        return self.inputs.device

    @property
    def size(self) -> str:
        """In words, for messages."""
        return f"{len(self.labels)} examples of {self.inputs[0].numel()} numbers"

    def to(self, device: torch.device) -> LabelledBatch:
        """The same on a device."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))


@dataclass(frozen=True, kw_only=True)
class ClassificationTask:
    """A classification task (see raydp.tasks.base.Task); the plug-ins build it.

    Attributes:
        num_classes: K.
        measured_by: what `utility` is.
        public: inputs that anybody may know, with classes that training does not use.
        label_words: how a language model tells the class of a text; None where a network takes the inputs.
    """

    train: LabelledExamples
    heldout: LabelledExamples
    num_classes: int
    task_facts: TaskFacts
    measured_by: Utility = "error_rate"
    public: LabelledExamples | None = None
    label_words: LabelWords | None = None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one example."""
        return self.train.inputs.shape[1:]

    def facts(self) -> TaskFacts:
        return self.task_facts

    def subset(self, indices: NDArray[np.int64]) -> ClassificationTask:
        """The same task with some of its training examples, in the order given, in which reference data come last."""
        referenced = indices >= self.task_facts.num_training
        assert (np.diff(referenced.astype(int)) >= 0).all(), "reference data come last"
        return self._with_train(
            self.train.select(indices), self.task_facts.privacy_unit, num_reference=int(referenced.sum())
        )

    def extended(self, extra: LabelledExamples, *, unit: str) -> ClassificationTask:
        """The same task with more training examples after its own, each a unit of privacy like these. Reference data
        stay behind them.

        Args:
            unit: what an added example is, for the name of the unit.
        """
        facts = self.task_facts
        own, reference = np.split(np.arange(len(self.train)), [facts.num_training])
        train = LabelledExamples.concatenated(self.train.select(own), extra, self.train.select(reference))
        return self._with_train(train, f"{facts.privacy_unit}, or {unit}", num_reference=facts.num_reference)

    def _with_train(self, train: LabelledExamples, unit: str, *, num_reference: int) -> ClassificationTask:
        identity = content_hash(train, self.heldout, self.num_classes, self.measured_by, self.label_words)
        if self.public is not None or num_reference:
            digest = hashlib.sha256(f"{identity} {num_reference}".encode())
            if self.public is not None:
                self.public.update_hash(digest)
            identity = digest.hexdigest()
        facts = replace(
            self.task_facts,
            num_examples=len(train),
            num_units=len(train),
            num_tokens=int(self.lengths_of(train).sum()),
            privacy_unit=unit,
            num_reference=num_reference,
            content_hash=identity,
        )
        return replace(self, train=train, task_facts=facts)

    def lengths(self) -> NDArray[np.int64]:
        return self.lengths_of(self.train)

    def heldout_lengths(self) -> NDArray[np.int64]:
        return self.lengths_of(self.heldout)

    def lengths_of(self, examples: LabelledExamples) -> NDArray[np.int64]:
        """[n] tokens of each; 1 where a network takes it."""
        return _tokens(examples, self.label_words)

    def unit_sizes(self) -> None:
        return None

    def by_user(self) -> ClassificationTask:
        raise ValueError("privacy.unit must be example in a classification task, got user. Leave it out of the spec.")

    def batch(self, indices: NDArray[np.int64]) -> LabelledBatch:
        return self.train.batch(indices)

    def heldout_batch(self, indices: NDArray[np.int64]) -> LabelledBatch:
        return self.heldout.batch(indices)

    def logits(self, model: torch.nn.Module, inputs: torch.Tensor, read: Prefix | None = None) -> torch.Tensor:
        """[B, K] logits of the classes: a network's outputs, or what a language model says of the label words.

        Args:
            read: of a language model, keys and values of what stands before every input.
        """
        if self.label_words is not None:
            return self.label_words.logits(model, inputs, read)
        found: torch.Tensor = model(inputs)
        return found

    def per_example_loss(self, model: torch.nn.Module, batch: LabelledBatch) -> torch.Tensor:
        """[B] cross-entropy over the classes (nats)."""
        return F.cross_entropy(self.logits(model, batch.inputs).float(), batch.labels, reduction="none")

    def utility(self, model: torch.nn.Module) -> float:
        """On held-out examples: the share that is classified wrongly (1 - accuracy), or the mean cross-entropy in
        nats."""
        logits, labels = self.outputs(model, self.heldout)
        if self.measured_by == "cross_entropy":
            return float(F.cross_entropy(logits.double(), labels))
        return float((logits.argmax(dim=1) != labels).double().mean())

    def outputs(
        self, model: torch.nn.Module, examples: LabelledExamples, read: Prefix | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[n, K] logits and [n] labels, on the CPU; `read` as in `logits`."""
        device, order, found = next(model.parameters()).device, [], []
        with torch.inference_mode():
            for indices in batches_by_length(self.lengths_of(examples), EVALUATED_AT_ONCE):
                found.append(self.logits(model, examples.batch(indices).to(device).inputs, read).float().cpu())
                order.append(indices)
        return torch.cat(found)[np.argsort(np.concatenate(order))], torch.from_numpy(examples.labels)

    def secrets(self) -> tuple[Secret, ...]:
        return ()

    def controls(self) -> tuple[Secret, ...]:
        return ()


def drawn(examples: LabelledExamples, count: int | None, rng: np.random.Generator, field: str) -> LabelledExamples:
    """So many of them, or all.

    Raises:
        ValueError: there are fewer.
    """
    if count is None:
        return examples
    if count > len(examples):
        raise ValueError(f"{field} must be at most {len(examples)}, got {count}. Leave it out for all.")
    return examples.select(np.sort(rng.choice(len(examples), count, replace=False)))


def content_hash(
    train: LabelledExamples,
    heldout: LabelledExamples,
    num_classes: int,
    measured_by: Utility,
    label_words: LabelWords | None = None,
) -> str:
    """SHA-256 of what defines a task of classification."""
    words = "" if label_words is None else f"{label_words};"
    digest = hashlib.sha256(f"{num_classes} {measured_by};{words}".encode())
    train.update_hash(digest)
    heldout.update_hash(digest)
    return digest.hexdigest()


def _tokens(examples: LabelledExamples, label_words: LabelWords | None) -> NDArray[np.int64]:
    """[n] tokens of each; 1 where a network takes it."""
    if label_words is None:
        return np.ones(len(examples), np.int64)
    return lengths_of(torch.from_numpy(examples.inputs)).numpy()


def classification_task(
    train: LabelledExamples,
    heldout: LabelledExamples,
    *,
    num_classes: int,
    unit: str,
    measured_by: Utility,
    notes: dict[str, Any],
    utility_is_public: bool,
    label_words: LabelWords | None = None,
) -> ClassificationTask:
    """A task of arrays.

    Args:
        unit: what one example is.
        notes: to print and to record.
        label_words: see ClassificationTask.
    """
    shape = {} if label_words is not None else {"input_shape": "x".join(map(str, train.inputs.shape[1:]))}
    known = {"classes": num_classes, **shape, "heldout_examples": len(heldout)}
    facts = TaskFacts(
        num_examples=len(train),
        num_units=len(train),
        privacy_unit=unit,
        content_hash=content_hash(train, heldout, num_classes, measured_by, label_words),
        num_tokens=int(_tokens(train, label_words).sum()),
        notes={**known, **notes},
        utility_is_public=utility_is_public,
    )
    return ClassificationTask(
        train=train,
        heldout=heldout,
        num_classes=num_classes,
        task_facts=facts,
        measured_by=measured_by,
        label_words=label_words,
    )

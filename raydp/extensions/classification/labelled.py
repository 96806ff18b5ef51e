"""Classification of labelled arrays: the examples and the task."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from raydp.extensions.adapters.key_values import Prefix
from raydp.extensions.classification.label_words import PADDING, LabelWords, lengths_of
from raydp.tasks.task import Secret, TaskFacts, TaskSection, batches_by_length

Utility = Literal["error_rate", "cross_entropy"]
EVALUATED_AT_ONCE = 1024
"""Size of a pass without gradients: examples of a network, or padded tokens of a language model."""


class ClassificationSection(TaskSection):
    """Base of the parameters of tasks whose inputs a network classifies."""

    classifies: ClassVar[bool] = True
    model_family: ClassVar[str] = "networks"


@dataclass(frozen=True, kw_only=True)
class LabelledExamples:
    """Inputs with their classes.

    Attributes:
        inputs: [n, *shape] float32; texts are [n, L] int64 token ids (see
            raydp.extensions.classification.label_words). L does not depend on the texts.
        labels: [n] int64, 0 .. K - 1.
    """

    inputs: NDArray[np.float32] | NDArray[np.int64]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """Return the inputs as token ids; only if the inputs are texts."""
        return cast(NDArray[np.int64], self.inputs)

    @classmethod
    def concatenated(cls, *parts: LabelledExamples) -> LabelledExamples:
        """Concatenate the examples of all parts."""
        return cls(
            inputs=np.concatenate([p.inputs for p in parts]),
            labels=np.concatenate([p.labels for p in parts]),
        )

    def contents(self) -> list[bytes]:
        """Return the content of each example as bytes. Copies have equal contents."""
        return [x.tobytes() + y.tobytes() for x, y in zip(self.inputs, self.labels, strict=True)]

    def input_contents(self) -> list[bytes]:
        """Return the content of each input as bytes, without its class and its padding."""
        if self.inputs.dtype != np.int64:
            return [x.tobytes() for x in self.inputs]
        # Padding would make copies of one text in tasks of other lengths look different.
        return [x[x != PADDING].tobytes() for x in self.inputs]

    def update_hash(self, digest: hashlib._Hash) -> None:
        """Add the content to a running hash."""
        # The shape separates arrays whose bytes are equal.
        digest.update(f"{self.inputs.shape};".encode())
        digest.update(np.ascontiguousarray(self.inputs).tobytes())
        digest.update(np.ascontiguousarray(self.labels).tobytes())

    def select(self, indices: NDArray[np.int64]) -> LabelledExamples:
        """Return the chosen examples, in the order given."""
        return LabelledExamples(inputs=self.inputs[indices], labels=self.labels[indices])

    def batch(self, indices: NDArray[np.int64]) -> LabelledBatch:
        """Return the chosen examples as a batch for a model."""
        return LabelledBatch(
            inputs=torch.from_numpy(self.inputs[indices]),
            labels=torch.from_numpy(self.labels[indices]),
        )


@dataclass(frozen=True, kw_only=True)
class LabelledBatch:
    """Examples for a classifier.

    Attributes:
        inputs: [B, *shape] float32; texts are [B, L] int64.
        labels: [B] int64.
    """

    inputs: torch.Tensor
    labels: torch.Tensor

    @property
    def device(self) -> torch.device:
        return self.inputs.device

    @property
    def size(self) -> str:
        """Return the size in words, for messages."""
        return f"{len(self.labels)} examples of {self.inputs[0].numel()} numbers"

    def to(self, device: torch.device) -> LabelledBatch:
        """Return the batch on a device."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))


@dataclass(frozen=True, kw_only=True)
class ClassificationTask:
    """A classification task (see raydp.tasks.task.Task). Plug-ins build it.

    Attributes:
        num_classes: K.
        measured_by: the measure that `utility` returns.
        public: inputs that may be known to anybody; training does not use their classes.
        label_words: the words of the classes, if a language model classifies texts; None if a
            network takes the inputs.
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
        """Return the shape of one example's input."""
        return self.train.inputs.shape[1:]

    def facts(self) -> TaskFacts:
        return self.task_facts

    def subset(self, indices: NDArray[np.int64]) -> ClassificationTask:
        """Return this task with some training examples, in this order; reference data come last."""
        referenced = indices >= self.task_facts.num_training
        # `num_reference` is a count from the end, so the order must keep reference data last.
        assert (np.diff(referenced.astype(int)) >= 0).all(), "reference data come last"
        return self._with_train(
            self.train.select(indices),
            self.task_facts.privacy_unit,
            num_reference=int(referenced.sum()),
        )

    def extended(self, extra: LabelledExamples, *, unit: str) -> ClassificationTask:
        """Return this task with more training examples after its own.

        Each added example is a unit of privacy.

        Reference data stay last.

        Args:
            unit: an added example in words, for the name of the unit.
        """
        facts = self.task_facts
        # Reference data move behind the added examples.
        own, reference = np.split(np.arange(len(self.train)), [facts.num_training])
        train = LabelledExamples.concatenated(
            self.train.select(own), extra, self.train.select(reference)
        )
        return self._with_train(
            train, f"{facts.privacy_unit}, or {unit}", num_reference=facts.num_reference
        )

    def _with_train(
        self, train: LabelledExamples, unit: str, *, num_reference: int
    ) -> ClassificationTask:
        """Return this task with other training examples, and with facts and identity for them."""
        identity = content_hash(
            train, self.heldout, self.num_classes, self.measured_by, self.label_words
        )
        # Public inputs and reference data are part of the identity only where they exist, so that
        # the identity of other tasks stays as recorded.
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
        """Return [n] the number of tokens of each example; 1 if a network takes the inputs."""
        return _tokens(examples, self.label_words)

    def unit_sizes(self) -> None:
        return None

    def by_user(self) -> ClassificationTask:
        """Raise ValueError: the task does not know the users of its examples."""
        raise ValueError(
            "privacy.unit must be example in a classification task, got user. Leave it out of the "
            "spec."
        )

    def batch(self, indices: NDArray[np.int64]) -> LabelledBatch:
        return self.train.batch(indices)

    def heldout_batch(self, indices: NDArray[np.int64]) -> LabelledBatch:
        return self.heldout.batch(indices)

    def logits(
        self, model: torch.nn.Module, inputs: torch.Tensor, read: Prefix | None = None
    ) -> torch.Tensor:
        """Return [B, K] logits of the classes: a network's outputs, or those of the label words.

        Args:
            read: for a language model, keys and values of the tokens before every input.
        """
        if self.label_words is not None:
            return self.label_words.logits(model, inputs, read)
        outputs: torch.Tensor = model(inputs)
        return outputs

    def per_example_loss(self, model: torch.nn.Module, batch: LabelledBatch) -> torch.Tensor:
        """Return [B] cross-entropy over the classes (nats)."""
        # The softmax is taken in fp32: that of bfloat16 logits has about two digits.
        return F.cross_entropy(
            self.logits(model, batch.inputs).float(), batch.labels, reduction="none"
        )

    def utility(self, model: torch.nn.Module) -> float:
        """Return the error rate on the held-out examples, or their mean cross-entropy in nats."""
        logits, labels = self.outputs(model, self.heldout)
        if self.measured_by == "cross_entropy":
            # A float32 mean of many losses would lose the digits in which good runs differ.
            return float(F.cross_entropy(logits.double(), labels))
        return float((logits.argmax(dim=1) != labels).double().mean())

    def outputs(
        self, model: torch.nn.Module, examples: LabelledExamples, read: Prefix | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return [n, K] logits and [n] labels, on the CPU. `read` is as in `logits`."""
        # Examples of similar length go together, so the results are put back into order at the end.
        device, order, logits = next(model.parameters()).device, [], []
        with torch.inference_mode():
            for indices in batches_by_length(self.lengths_of(examples), EVALUATED_AT_ONCE):
                logits.append(
                    self.logits(model, examples.batch(indices).to(device).inputs, read)
                    .float()
                    .cpu()
                )
                order.append(indices)
        return torch.cat(logits)[np.argsort(np.concatenate(order))], torch.from_numpy(
            examples.labels
        )

    def secrets(self) -> tuple[Secret, ...]:
        return ()

    def controls(self) -> tuple[Secret, ...]:
        return ()


def drawn(
    examples: LabelledExamples, count: int | None, rng: np.random.Generator, field: str
) -> LabelledExamples:
    """Draw `count` of the examples, or return all if count is None.

    Raises:
        ValueError: there are fewer examples than `count`.
    """
    if count is None:
        return examples
    if count > len(examples):
        raise ValueError(
            f"{field} must be at most {len(examples)}, got {count}. Leave it out for all."
        )
    # The draw decides which examples, and not their order, hence sorted.
    return examples.select(np.sort(rng.choice(len(examples), count, replace=False)))


def content_hash(
    train: LabelledExamples,
    heldout: LabelledExamples,
    num_classes: int,
    measured_by: Utility,
    label_words: LabelWords | None = None,
) -> str:
    """Return the SHA-256 of everything that defines a classification task."""
    words = "" if label_words is None else f"{label_words};"
    digest = hashlib.sha256(f"{num_classes} {measured_by};{words}".encode())
    train.update_hash(digest)
    heldout.update_hash(digest)
    return digest.hexdigest()


def _tokens(examples: LabelledExamples, label_words: LabelWords | None) -> NDArray[np.int64]:
    """Return [n] the number of tokens of each example; 1 if a network takes the inputs."""
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
    notes: dict[str, object],
    utility_is_public: bool,
    label_words: LabelWords | None = None,
) -> ClassificationTask:
    """Build a classification task from arrays.

    Args:
        unit: one example in words.
        notes: facts to print and to record.
        label_words: see ClassificationTask.
    """
    # A text's length is an option of the spec; only an array's shape is a fact to print.
    shape = (
        {}
        if label_words is not None
        else {"input_shape": "x".join(map(str, train.inputs.shape[1:]))}
    )
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

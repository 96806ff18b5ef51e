"""The Task seam: what is learnt, what it costs to predict held-out data, and what must not be repeated."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from raydp.spec.sections import Section

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase
    from typing_extensions import TypeVar

    from raydp.spec.document import SweepSpec

    ExamplesT = TypeVar("ExamplesT", bound="Examples", default=Any)
else:
    from typing import TypeVar

    ExamplesT = TypeVar("ExamplesT")  # without a default before Python 3.13


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """What the plan needs to know of a task.

    Attributes:
        num_examples: training examples.
        num_units: units of privacy n, which Poisson sampling draws from; equals num_examples where the unit is the
            example.
        privacy_unit: what one unit is, in words for the record: "e-mail", "window of at most 64 tokens", ...
        content_hash: SHA-256 (hex) of everything that defines the task: data, secrets, tokenisation.
        num_tokens: target tokens in the training split; of classification all tokens of its texts, or its examples.
        notes: counts and curation steps to print and to record, name -> number, text or list.
        utility_is_public: whether `Task.utility` is a function of the model and of public data alone: no training
            example and no secret shapes what it is measured on. privacy.tuning private_selection needs it.
        num_new_tokens: ids that its examples use beyond the tokenizer's, or classes beyond the task's own;
            `models.load_base` adds them.
        num_reference: of the units, those that are reference data: the last ones. They are examples like the others,
            and can be weighted and scored apart.
    """

    num_examples: int
    num_units: int
    privacy_unit: str
    content_hash: str
    num_tokens: int
    notes: dict[str, Any] = field(default_factory=dict)
    utility_is_public: bool = False
    num_new_tokens: int = 0
    num_reference: int = 0

    def sentences(self) -> list[str]:
        """What was made of the data before anything is trained: sizes, what was left out, what to know of the unit."""
        units = "" if self.num_units == self.num_examples else f" of {self.num_units} users"
        sentences = [f"{self.num_examples} examples{units}; the unit of privacy is: {self.privacy_unit}"]
        for name, value in self.notes.items():
            if name == "caveats":
                sentences += [f"caveat: {caveat}" for caveat in value]
            elif isinstance(value, list | tuple):
                sentences.append(f"{name}: {_enumerated(value)}")
            else:
                sentences.append(f"{name}: {value}")
        return sentences

    @property
    def num_training(self) -> int:
        """Of the units, those that are not reference data: the first ones."""
        return self.num_units - self.num_reference


def _enumerated(values: Sequence[object]) -> str:
    """A list in a line, equal neighbours once."""
    runs = [(value, len(list(same))) for value, same in groupby(values)]
    return ", ".join(f"{value} ({times} times)" if times > 1 else str(value) for value, times in runs) or "none"


class Space(Protocol):
    """What the continuation of a secret was drawn from, uniformly: all that could stand in its place. Hashable.

    Attributes:
        size: how many there are.
    """

    @property
    def size(self) -> int: ...

    def continuation(self, index: int) -> str:
        """One of them, by its position from 0."""


@dataclass(frozen=True, kw_only=True)
class Secret:
    """Something that a model should not say.

    Attributes:
        prompt: s1, what the attacker knows.
        continuation: s2 of a verbatim secret, or the attribute A(x) of an attribute secret.
        kind: "verbatim" is scored by exact continuation, "attribute" by appearance in the generated text.
        count: training examples that contain it (0 for a control).
        number: its place in the list that it comes from, from 1: a line, an author; 0 where there is none.
        space: what the continuation was drawn from, where that is known.
        user: the user in whose examples alone it is counted; None where it is counted in all.
    """

    prompt: str
    continuation: str
    kind: Literal["verbatim", "attribute"] = "verbatim"
    count: int = 0
    number: int = 0
    space: Space | None = None
    user: int | None = None

    @property
    def name(self) -> str:
        """What it is called in records and tables: says nothing of the content, not even to who tries all contents."""
        return f"secret-{self.number:03d}"

    @property
    def id(self) -> str:
        """12 hex digits of the content's SHA-256. Who tries all contents finds the one: it stays in the process."""
        return hashlib.sha256(f"{self.kind}\0{self.prompt}\0{self.continuation}".encode()).hexdigest()[:12]


class Examples(Protocol):
    """Some of a task's examples, for a model.

    Attributes:
        size: in words, for messages.
    """

    @property
    def device(self) -> torch.device: ...

    @property
    def size(self) -> str: ...

    def to(self, device: torch.device) -> Self:
        """The same on a device."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Padded training examples.

    Attributes:
        input_ids: [B, L] int64, padded on the right.
        labels: [B, L] int64, input_ids where the token is a target and -100 elsewhere; not shifted.
        hidden: [B, L, H] hidden states that enter the first layer with trainable weights, where a frozen prefix is
            cached; the model then starts from them instead of from input_ids.
        first_layer: that layer's position.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    hidden: torch.Tensor | None = None
    first_layer: int = 0

    @property
    def device(self) -> torch.device:
        return self.input_ids.device

    @property
    def size(self) -> str:
        """In words, for messages."""
        rows, width = self.input_ids.shape
        return f"{rows} examples of {width} tokens"

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        hidden = None if self.hidden is None else self.hidden.to(device)
        return replace(self, input_ids=self.input_ids.to(device), labels=self.labels.to(device), hidden=hidden)


class TaskSection(Section):
    """Parameters of a task in a spec. The base class of every task's parameters, which also have `build(tokenizer)`."""

    @property
    def classifies(self) -> bool:
        """Whether the task is one of classification: its utility is no likelihood of text."""
        return False

    @property
    def of_texts(self) -> bool:
        """Whether a task of classification has texts, which a language model classifies, and no network."""
        return False

    @property
    def for_use(self) -> bool:
        """Whether trained models are for use. Models that are only trained for attacks get no alias."""
        return True


class Task(Protocol[ExamplesT]):
    """What is learnt. Built by a plug-in's `build(tokenizer)`; holds numpy arrays and strings only, so that it can be
    shared between the processes of a node without a copy."""

    def facts(self) -> TaskFacts:
        """Numbers for the plan; no model needed."""

    def lengths(self) -> NDArray[np.int64]:
        """[n] tokens of each training example, to form batches of similar length."""

    def batch(self, indices: NDArray[np.int64]) -> ExamplesT:
        """Training examples by their position."""

    def unit_sizes(self) -> NDArray[np.int64] | None:
        """[num_units] examples of each unit of privacy, which follow each other in the training data; None where every
        example is a unit."""

    def by_user(self) -> Task:
        """The same task with the user as the unit of privacy.

        Raises:
            ValueError: the task does not know whose examples are whose.
        """

    def heldout_batch(self, indices: NDArray[np.int64]) -> ExamplesT:
        """Held-out examples by their position."""

    def heldout_lengths(self) -> NDArray[np.int64]:
        """[m] tokens of each held-out example."""

    def per_example_loss(self, model: torch.nn.Module, batch: ExamplesT) -> torch.Tensor:
        """[B] loss of each example: the mean over the example's own target tokens."""

    def utility(self, model: torch.nn.Module) -> float:
        """Total NLL over total target tokens (nats) on held-out data; lower is better."""

    def secrets(self) -> Sequence[Secret]:
        """The secrets that occur in the training data."""

    def controls(self) -> Sequence[Secret]:
        """Secrets of the same format that do not occur in the training data."""


def task_of(spec: SweepSpec, tokenizer: PreTrainedTokenizerBase | None) -> Task:
    """A spec's task, with the unit of privacy that the spec asks for.

    Args:
        tokenizer: None for a task that has no text.

    Raises:
        ValueError: the data or the secrets are not usable, or the task does not know its users.
    """
    task: Task = spec.task.params.build(tokenizer)
    return task.by_user() if spec.privacy.unit == "user" else task

"""The interface of tasks: training data, loss and utility, and the secrets that must not leak."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from raydp.search_spaces.names import count_in_words
from raydp.spec.sections.section import Section

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
    """Facts of a task for the plan.

    Attributes:
        num_examples: number of training examples.
        num_units: number of units of privacy n, from which Poisson sampling draws. It equals
            num_examples if the unit is the example.
        privacy_unit: one unit in words, for the record: "e-mail", "window of at most 64 tokens",
            ...
        content_hash: SHA-256 (hex) of everything that defines the task: data, secrets,
            tokenisation.
        num_tokens: number of target tokens in the training split. In a task of classes, the number
            of all tokens of its texts, or of its examples.
        notes: counts and curation steps to print and to record, name -> number, text or list.
        utility_is_public: whether `Task.utility` depends on the model and on public data alone, so
            that no training example and no secret shapes the data it is measured on. An ε that
            covers a choice by utility requires it.
        num_new_tokens: number of token ids that the examples use beyond the tokenizer's, or of
            classes beyond the task's own. `models.load_base` adds them.
        only_measured: reason why the trained models are measured and never released, in words;
            None if the models are for use.
        chat_template: the template of conversations that the trained model's tokenizer must carry;
            None if the base's own tokenizer is right as it is.
        num_reference: number of units that are reference data. They come last. They are ordinary
            examples, but can be weighted and scored separately.
    """

    num_examples: int
    num_units: int
    privacy_unit: str
    content_hash: str
    num_tokens: int
    notes: dict[str, Any] = field(default_factory=dict)
    utility_is_public: bool = False
    num_new_tokens: int = 0
    only_measured: str | None = None
    num_reference: int = 0
    chat_template: str | None = None

    def sentences(self) -> list[str]:
        """Return sentences on the data before training: sizes, left-out examples, caveats."""
        # Without users a unit is an example, and the number of units would repeat the number of
        # examples.
        units = "" if self.num_units == self.num_examples else f" of {self.num_units} users"
        sentences = [
            f"{self.num_examples} examples{units}; the unit of privacy is: {self.privacy_unit}"
        ]
        for key, value in self.notes.items():
            # Nothing was left out or counted where a value is 0 or an empty list, and warnings say
            # by lines why secrets are absent.
            if not value or (key.startswith("secrets_") and key != "secrets_absent"):
                continue
            name = count_in_words(key)
            if key == "caveats":
                sentences += [f"caveat: {caveat}" for caveat in value]
            elif isinstance(value, list | tuple):
                sentences.append(f"{name}: {_enumerated(value)}")
            else:
                sentences.append(f"{name}: {value}")
        return sentences

    @property
    def num_training(self) -> int:
        """Return the number of training units. In the data they precede the reference units."""
        return self.num_units - self.num_reference


def _enumerated(values: Sequence[object]) -> str:
    """Return a list as one line. Equal neighbours are shown once, with their number."""
    # Counts of secrets are long lists of few values, such as 20, 20, ..., 40, 40, ...
    runs = [(value, len(list(same))) for value, same in groupby(values)]
    return ", ".join(
        f"{value} ({times} times)" if times > 1 else str(value) for value, times in runs
    )


class Space(Protocol):
    """Space from which the continuation of a secret was drawn uniformly. Hashable.

    Implemented by `raydp.tasks.secret.Digits`.

    Attributes:
        size: number of continuations in the space.
    """

    @property
    def size(self) -> int: ...

    def continuation(self, index: int) -> str:
        """Return the continuation at a position, counted from 0."""


@dataclass(frozen=True, kw_only=True)
class Secret:
    """A text that a model should not reveal. Its repr shows neither part of it.

    Attributes:
        prompt: s1, which the attacker knows.
        continuation: s2 of a verbatim secret, or the attribute A(x) of an attribute secret.
        kind: "verbatim" is scored by exact continuation, "attribute" by appearance in the generated
            text.
        count: number of training examples that contain the secret (0 for a control).
        number: position of the secret in its source, from 1: a line or an author; 0 if it has none.
        space: the space that the continuation was drawn from, if known.
        user: the only user in whose examples the secret is counted; None if it is counted in all
            examples.
    """

    prompt: str = field(repr=False)
    continuation: str = field(repr=False)
    kind: Literal["verbatim", "attribute"] = "verbatim"
    count: int = 0
    number: int = 0
    space: Space | None = None
    user: int | None = None

    @property
    def name(self) -> str:
        """Return the name in records and tables.

        It reveals nothing of the content, even to a brute-force search.
        """
        # A hash of the content would let whoever sees a table try all continuations of a small
        # space.
        return f"secret-{self.number:03d}"

    @property
    def id(self) -> str:
        """Return 12 hex digits of the content's SHA-256.

        A brute-force search can invert it: keep it in the process.
        """
        return hashlib.sha256(
            # NUL separates the parts, so that shifting a letter between prompt and continuation
            # shows.
            f"{self.kind}\0{self.prompt}\0{self.continuation}".encode()
        ).hexdigest()[:12]


class Examples(Protocol):
    """Some of a task's examples, in the form that a model takes.

    Implemented by `Batch` (texts) and `LabelledBatch` (inputs with a class).

    Attributes:
        size: the size in words, for messages.
    """

    @property
    def device(self) -> torch.device: ...

    @property
    def size(self) -> str: ...

    def to(self, device: torch.device) -> Self:
        """Return the examples on a device."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Padded training examples.

    Attributes:
        input_ids: [B, L] int64, padded on the right.
        labels: [B, L] int64, input_ids where the token is a target and -100 elsewhere; not shifted.
        hidden: [B, L, H] hidden states that enter the first layer with trainable weights, if the
            frozen layers before it are cached; the model then starts from them instead of from
            input_ids.
        first_layer: position of the layer that `hidden` enters.
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
        """Return the size in words, for messages."""
        rows, width = self.input_ids.shape
        return f"{rows} examples of {width} tokens"

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        hidden = None if self.hidden is None else self.hidden.to(device)
        return replace(
            self, input_ids=self.input_ids.to(device), labels=self.labels.to(device), hidden=hidden
        )


class TaskSection(Section):
    """Parameters of a task in a spec.

    The base class of every task's parameters, which also have `build(tokenizer)`:

        class MyTask(TaskSection):
            path: Path
            def build(self, tokenizer: PreTrainedTokenizerBase | None) -> Task: ...
    """

    early_check: ClassVar[str | None] = None
    """Where a function is, "module:function", that looks at the task's files before torch is loaded.

    It is called with the parameters and the files as in `raydp.tasks.early_checks.check_texts`. Its module
    must import no torch.
    """

    @property
    def classifies(self) -> bool:
        """Whether the task asks for classes: its utility is no likelihood of text."""
        return False

    @property
    def model_family(self) -> str | None:
        """Name of the family of models that learn the task (`raydp.models.families`).

        None for causal language models.
        """
        return None

    @property
    def for_use(self) -> bool:
        """Whether trained models are for use.

        Models that are only trained for attacks get no alias.
        """
        return True


class Task(Protocol[ExamplesT]):
    """Training data, held-out data and secrets, with loss and utility.

    Implemented by `LanguageModelingTask` and `ClassificationTask`, and by their subclasses in
    extensions.

    A plug-in's `build(tokenizer)` makes a task.

    A task holds numpy arrays and strings only, so that the processes of a node can share it without
    a copy.
    """

    def facts(self) -> TaskFacts:
        """Return numbers for the plan. They need no model."""

    def lengths(self) -> NDArray[np.int64]:
        """Return [n] the number of tokens of each training example, to batch similar lengths."""

    def batch(self, indices: NDArray[np.int64]) -> ExamplesT:
        """Return training examples by their positions."""

    def unit_sizes(self) -> NDArray[np.int64] | None:
        """Return [num_units] examples per unit of privacy; None if every example is a unit.

        The examples of a unit are neighbours in the training data.
        """

    def by_user(self) -> Task:
        """Return this task with the user as the unit of privacy.

        Raises:
            ValueError: the task does not know the users of its examples.
        """

    def heldout_batch(self, indices: NDArray[np.int64]) -> ExamplesT:
        """Return held-out examples by their positions."""

    def heldout_lengths(self) -> NDArray[np.int64]:
        """Return [m] the number of tokens of each held-out example."""

    def per_example_loss(self, model: torch.nn.Module, batch: ExamplesT) -> torch.Tensor:
        """Return [B] the loss of each example: the mean over the example's own target tokens."""

    def utility(self, model: torch.nn.Module) -> float:
        """Return total NLL over total target tokens (nats) on held-out data; lower is better."""

    def secrets(self) -> Sequence[Secret]:
        """Return the secrets that occur in the training data."""

    def controls(self) -> Sequence[Secret]:
        """Return secrets of the same format that do not occur in the training data."""


def task_of(spec: SweepSpec, tokenizer: PreTrainedTokenizerBase | None) -> Task:
    """Build the task of a spec, with the unit of privacy that the spec asks for.

    Args:
        tokenizer: None for a task without text.

    Raises:
        ValueError: the data or the secrets are unusable, or the task does not know its users.
    """
    task: Task = spec.task.params.build(tokenizer)
    if spec.privacy.unit != "user":
        return task
    # Grouping comes after the build, so that the plug-in reads its data the same way for both
    # units.
    by_user = task.by_user()
    if by_user.unit_sizes() is None:  # a plug-in that does not group the examples
        raise ValueError(
            f"privacy.unit must be example with the task {spec.task.name!r}, got user: the task "
            "does not say whose its examples are. Leave it out, or choose a task that knows its "
            "users."
        )
    return by_user


def batches_by_length(lengths: NDArray[np.int64], max_tokens: int) -> Iterator[NDArray[np.int64]]:
    """Yield each position once, in batches of at most max_tokens padded tokens, longest first."""
    # With the longest first, memory runs out at the start or never. A stable sort gives the same
    # batches on every machine.
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        # A longer example than max_tokens is a batch by itself.
        size = max(1, max_tokens // max(int(lengths[order[start]]), 1))
        yield order[start : start + size]
        start += size

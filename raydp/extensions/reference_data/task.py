"""A task with reference data: training examples that are weighted or scored separately."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from raydp.extensions.classification.labelled import ClassificationTask
from raydp.plugins.described import Plugin, PluginField
from raydp.tasks.text.corpus import is_held_out
from raydp.tasks.text.language import LanguageModelingTask
from raydp.tasks.wrappers.derived_task import DerivedTask
from raydp.tasks.wrappers.twins import with_fixed_twins

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DividedTask = ClassificationTask | LanguageModelingTask


class WithReferenceTask(DerivedTask):
    """Another task whose training examples are divided into training data D_T and reference data
    D_R.

    Both are training examples and units of privacy: n = N_T + N_R. A method that does not know
    reference data trains on both alike. The reference data come last (`TaskFacts.num_reference`).
    Held-out data, utility and secrets are those of the task `of`; a secret's count is over both
    sets. An example that is in both sets stays in both, and takes part in the guarantee of each.

    Source: Kaplan et al. 2024, §2.3.
    """

    fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the training examples that becomes reference data, by a keyed hash of each example.
    One example more or less moves no other example, and copies stay together."""
    reference: PluginField | None = None
    """Instead of a fraction, a second task whose training examples become the reference data,
    without those that the first task holds out. Nothing else of the second task is used, not even
    its users."""
    data_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the hash that selects the reference data; it is public."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.fraction is None) == (self.reference is None):
            raise ValueError(
                "task.reference must be given, or else task.fraction, got "
                f"{'neither' if self.fraction is None else 'both'}. Name a task with reference "
                "data, or the share of the training examples that becomes reference data."
            )
        if self.fraction is None and self.data_seed:
            raise ValueError(
                f"task.data_seed must be left out without task.fraction, got {self.data_seed}. It "
                "decides nothing."
            )
        return self

    def build(self, tokenizer: PreTrainedTokenizerBase | None) -> DividedTask:
        """Divide the training examples, or add the reference data to them.

        Raises:
            ValueError: a task's data are unusable, a set would be empty, or the two tasks do not
                fit together.
        """
        task = self._built(self.of, tokenizer, "of")
        if self.reference is not None:
            return self._joined(task, self._built(self.reference, tokenizer, "reference"))
        assert self.fraction is not None
        contents = (content.hex() for content in task.train.contents())
        chosen = np.array(
            [is_held_out(content, self.fraction, self.data_seed) for content in contents], np.bool_
        )
        count = int(chosen.sum())
        if not 0 < count < len(chosen):
            raise ValueError(
                f"task.fraction must leave examples in both sets, got {self.fraction:g} of "
                f"{len(chosen)}. Choose another."
            )
        # Training data first, reference data last, each in their order.
        positions = np.concatenate([np.flatnonzero(~chosen), np.flatnonzero(chosen)])
        divided = _select(task, positions)
        return _marked(divided, count, task.task_facts.content_hash.encode() + positions.tobytes())

    def _built(
        self, plugin: Plugin, tokenizer: PreTrainedTokenizerBase | None, field: str
    ) -> DividedTask:
        task = plugin.params.build(tokenizer)
        if not isinstance(task, DividedTask) or task.task_facts.num_reference:
            raise ValueError(
                f"task.{field} must be a task of classification or language modelling without "
                f"reference data, got {plugin.name!r}. Choose digits or text."
            )
        return with_fixed_twins(task)

    def _joined(self, task: DividedTask, other: DividedTask) -> DividedTask:
        """Return the first task with the second one's training examples as its reference data."""
        identity = f"{task.task_facts.content_hash} {other.task_facts.content_hash}".encode()
        # Leave out examples that the first task holds out.
        held = set(task.heldout.contents())
        kept = np.array(
            [i for i, content in enumerate(other.train.contents()) if content not in held], np.int64
        )
        if not len(kept):
            raise ValueError(
                "task.reference must have examples that the task does not hold out, got none. Give "
                "other data."
            )
        notes = {
            **task.facts().notes,
            **{f"reference_{k}": v for k, v in other.task_facts.notes.items()},
            "reference_examples_held_out": len(other.train) - len(kept),
        }
        facts = replace(task.task_facts, notes=notes)
        # Append the others; both tasks must be of one kind.
        if isinstance(task, LanguageModelingTask) and isinstance(other, LanguageModelingTask):
            # Users of the second task are unknown to the first, so neither has users.
            train = type(task.train).concatenated(task.train, other.train.select(kept))
            task = replace(task, train=train, users=None, task_facts=facts)
        elif (
            isinstance(task, ClassificationTask)
            and isinstance(other, ClassificationTask)
            and _alike(task, other)
        ):
            joined = type(task.train).concatenated(task.train, other.train.select(kept))
            task = replace(task, train=joined, task_facts=facts)
        else:
            assert self.reference is not None
            raise ValueError(
                "task.reference must have examples of the kind of task.of, got "
                f"{self.reference.name!r} beside {self.of.name!r}. Give both the same inputs and "
                "classes, or text."
            )
        return _marked(task, len(kept), identity)


def _alike(task: ClassificationTask, other: ClassificationTask) -> bool:
    shapes = (task.input_shape, task.num_classes) == (other.input_shape, other.num_classes)
    return shapes and task.label_words == other.label_words


def _select(task: DividedTask, positions: NDArray[np.int64]) -> DividedTask:
    """Reorder the training examples."""
    if isinstance(task, ClassificationTask):
        return replace(task, train=task.train.select(positions))
    users = (
        task.users
        if task.users is None
        else replace(task.users, of_example=task.users.of_example[positions])
    )
    return replace(task, train=task.train.select(positions), users=users)


def _marked(task: DividedTask, num_reference: int, identity: bytes) -> DividedTask:
    """Return the task with facts that mark its last num_reference examples as reference data."""
    total = len(task.train)
    tokens = (
        int(task.lengths().sum())
        if isinstance(task, ClassificationTask)
        else task.train.num_targets()
    )
    # The identity covers which examples are reference data.
    facts = replace(
        task.task_facts,
        num_examples=total,
        num_units=total,
        num_tokens=tokens,
        num_reference=num_reference,
        content_hash=hashlib.sha256(b"reference data" + identity).hexdigest(),
        notes={
            **task.task_facts.notes,
            "training_examples": total - num_reference,
            "reference_examples": num_reference,
        },
    )
    return replace(task, task_facts=facts)

"""A task whose held-out examples are partly public inputs without classes, for PATE's student."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from raydp.extensions.classification.labelled import ClassificationTask
from raydp.tasks.text.corpus import is_held_out
from raydp.tasks.wrappers.derived_task import DerivedTask

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class WithPublicTask(DerivedTask):
    """Another classification task, with a part of its held-out examples as public inputs.

    Training does not use their classes. Utility is measured on the other held-out examples.
    """

    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Share of the held-out examples that becomes public, by a keyed hash of the input; copies stay
    together."""
    data_seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the hash that decides which inputs become public."""

    def build(self, tokenizer: PreTrainedTokenizerBase | None) -> ClassificationTask:
        """Divide the held-out examples.

        Raises:
            ValueError: the task is not a classification task, or one of the two parts is empty.
        """
        if not self.classifies:
            raise ValueError(
                f"task.of must be a task of classification, got {self.of.name!r}. Choose digits, "
                "tabular or text_classification."
            )
        task: ClassificationTask = self.of.params.build(tokenizer)
        # By the input alone: copies with different classes stay together.
        contents = (content.hex() for content in task.heldout.input_contents())
        chosen = np.array(
            [is_held_out(content, self.fraction, self.data_seed) for content in contents], np.bool_
        )
        if chosen.all() or not chosen.any():
            raise ValueError(
                f"task.fraction must leave examples in both parts, got {chosen.sum()} of "
                f"{len(chosen)} as public ones. Change it, or hold out more."
            )
        # Another division is another data set, so it has another identity.
        facts = task.task_facts
        digest = hashlib.sha256(facts.content_hash.encode() + chosen.tobytes())
        count = int(chosen.sum())
        notes = {**facts.notes, "heldout_examples": len(chosen) - count, "public_examples": count}
        return replace(
            task,
            heldout=task.heldout.select(np.flatnonzero(~chosen)),
            public=task.heldout.select(np.flatnonzero(chosen)),
            task_facts=replace(facts, content_hash=digest.hexdigest(), notes=notes),
        )

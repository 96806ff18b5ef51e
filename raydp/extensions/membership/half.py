"""A random half of another task's training examples, for shadow models."""

from __future__ import annotations

import hmac
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raydp.extensions.classification.labelled import ClassificationTask, LabelledExamples
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask
from raydp.tasks.wrappers.derived_task import DerivedTask

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Divisible = LanguageModelingTask | ClassificationTask


class HalfTask(DerivedTask):
    """The examples of another task whose coin shows heads, each with probability 1/2.

    The coin of an example is a keyed hash of its content. So it does not depend on the other
    examples, and copies of an example stay together. The seed is public. The coins are independent
    of the sampling and the noise of training, whose key is the sweep's. The guarantee is for the
    half: n is the number of its examples. The sample rate and δ = n^-delta_exponent therefore
    differ from the values of the whole, and so does the calibration.

    The secrets are those of the whole task, with their counts there.
    """

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the coins that divide the examples; it is public."""
    complement: bool = False
    """Take the examples whose coin shows tails instead."""

    @property
    def for_use(self) -> bool:
        """No: models of a half are trained for attacks."""
        return False

    def build(self, tokenizer: PreTrainedTokenizerBase | None) -> Divisible:
        """Build the whole task and keep the half.

        Raises:
            ValueError: as the task `of`, or the half has no example.
        """
        whole = self.whole(tokenizer)
        chosen = np.flatnonzero(self.includes(whole.train))
        if not len(chosen):
            raise ValueError(
                f"task.of must leave an example to train on, got {len(whole.train)} in all. Use "
                "more data."
            )
        half = whole.subset(chosen)
        notes = {
            **half.task_facts.notes,
            "half_of_examples": len(whole.train),
            "half_seed": self.seed,
        }
        return replace(half, task_facts=replace(half.task_facts, notes=notes))

    def whole(self, tokenizer: PreTrainedTokenizerBase | None) -> Divisible:
        """Build the task `of`, a language modelling or a classification task.

        Raises:
            ValueError: its data are unusable.
        """
        return self.of.params.build(tokenizer) if self.classifies else self.inner(tokenizer)

    def includes(self, examples: TokenizedExamples | LabelledExamples) -> NDArray[np.bool_]:
        """Return [n] whether each example of the whole is in the half."""
        # A keyed hash of the content: an example's coin does not depend on the others.
        key = b"raydp half" + self.seed.to_bytes(8, "little")
        coins = [hmac.digest(key, content, "sha256")[0] & 1 == 1 for content in examples.contents()]
        included: NDArray[np.bool_] = np.array(coins, np.bool_) != self.complement
        return included

"""A task with canaries for a one-run audit.

Each canary has its own token or class, and a fair coin decides whether it is in the training data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raydp.models.base_models import first_new_token
from raydp.tasks.classification.labelled import ClassificationTask, LabelledExamples
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask
from raydp.tasks.wrappers.canaries import CanaryClassificationTask, CanaryTask
from raydp.tasks.wrappers.derived import DerivedTask

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class AuditedTask(DerivedTask):
    """Another task with input canaries of new tokens (Panda et al. 2025), or of new classes.

    A canary is a random prefix of ordinary tokens, unique to it, followed by a token that is new to the model and
    occurs nowhere else. Its loss is the loss of the new token alone. In a classification task a canary is an input of
    random zeros and ones, with its own new class. An independent fair coin puts each canary into the training data.
    Canaries in the training data are ordinary examples: they count in n, are drawn, clipped and accounted, and each is
    a unit of privacy.

    The audit needs full fine-tuning (model.adapter.type none), because a new token is learnt in its embedding.
    """

    num_canaries: int = Field(default=500, ge=2, le=1_000_000)
    """M, the number of canaries; a fair coin puts each into the training data."""
    prefix_tokens: int = Field(default=8, ge=1, le=512)
    """Number of tokens of a canary's random prefix, in language modelling tasks."""
    seed: int = Field(ge=0, lt=2**63)
    """Seed of the coins and the prefixes. Use it for nothing else; `raydp audit` draws one."""

    def build(self, tokenizer: PreTrainedTokenizerBase | None) -> CanaryTask | CanaryClassificationTask:
        """Read the other task, draw the canaries and toss the coins.

        Raises:
            ValueError: the other task is unusable, or there are fewer prefixes of this length than canaries.
        """
        built = self.of.params.build(None) if tokenizer is None else self.inner(tokenizer)
        if isinstance(built, CanaryTask | CanaryClassificationTask):
            raise ValueError(
                f"task.of must be a task without canaries, got {self.of.name!r}. Audit the task it is derived from."
            )
        if tokenizer is None:
            return self._labelled(cast(ClassificationTask, built))
        return self._language(cast(LanguageModelingTask, built), tokenizer)

    def _labelled(self, inner: ClassificationTask) -> CanaryClassificationTask:
        inputs = np.random.default_rng([self.seed, 0]).integers(0, 2, (self.num_canaries, *inner.input_shape))
        labels = inner.num_classes + np.arange(self.num_canaries)
        canaries = LabelledExamples(inputs=inputs.astype(np.float32), labels=labels)
        return CanaryClassificationTask.of(inner, canaries, self._coins())

    def _language(self, inner: LanguageModelingTask, tokenizer: PreTrainedTokenizerBase) -> CanaryTask:
        prefixes = self._prefixes(tokenizer)
        first = first_new_token(tokenizer)
        canaries = TokenizedExamples.from_lists(
            [[*prefix, first + i] for i, prefix in enumerate(prefixes)], [self.prefix_tokens] * len(prefixes)
        )
        return CanaryTask.of(inner, canaries, self._coins(), first_new_token=first)

    def _coins(self) -> NDArray[np.bool_]:
        """Return [M] whether each canary is in the training data."""
        return np.random.default_rng([self.seed, 1]).random(self.num_canaries) < 0.5

    def _prefixes(self, tokenizer: PreTrainedTokenizerBase) -> list[tuple[int, ...]]:
        """Return [M] distinct random sequences of ordinary tokens."""
        ordinary = np.array(sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids)))
        if len(ordinary) ** self.prefix_tokens < 2 * self.num_canaries:  # at least half of the draws are new
            raise ValueError(
                f"task.prefix_tokens must be larger for {self.num_canaries} canaries and {len(ordinary)} tokens, got "
                f"{self.prefix_tokens}. Double it."
            )
        rng = np.random.default_rng([self.seed, 0])
        prefixes: dict[tuple[int, ...], None] = {}
        while len(prefixes) < self.num_canaries:
            prefixes[tuple(rng.choice(ordinary, self.prefix_tokens).tolist())] = None
        return list(prefixes)

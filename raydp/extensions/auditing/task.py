"""A task with canaries for a one-run audit.

A fair coin decides whether each canary is in the training data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raydp.extensions.auditing.canaries import CanaryClassificationTask, CanaryKind, CanaryTask
from raydp.extensions.classification.labelled import ClassificationTask, LabelledExamples
from raydp.models.base_models import first_new_token
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask
from raydp.tasks.text.windows import start_tokens, with_start
from raydp.tasks.wrappers.derived_task import DerivedTask

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class AuditedTask(DerivedTask):
    """Another task with canaries: of new tokens (Panda et al. 2025), of ordinary tokens, or of
    gradients.

    A canary is a random prefix of ordinary tokens, unique to it, followed by one more token. Its
    loss is the loss of this last token alone. In a classification task a canary is an input of
    random zeros and ones with a class. An independent fair coin puts each canary into the training
    data. Canaries in the training data are ordinary units of privacy: they
    count in n, are drawn, clipped and accounted.
    """

    canary: CanaryKind = "new_token"
    """Kind of the canaries. `new_token`: the last token, or the class, is new to the model and is
    the canary's own. It is learnt in its embedding, so every weight must be trained
    (model.adapter.type none). `known_token`: the last token is a random ordinary one, and the class
    one of the task's own. It can be used with every adapter. `gradient`: the canary's gradient is
    one coordinate of the trained weights, and an auditor sees every noisy sum of gradients. It can
    be used with every adapter."""

    num_canaries: int = Field(default=500, ge=2, le=1_000_000)
    """M, the number of canaries; a fair coin puts each into the training data."""
    prefix_tokens: int = Field(default=8, ge=1, le=512)
    """Number of tokens of a canary's random prefix, in language modelling tasks."""
    seed: int = Field(ge=0, lt=2**63)
    """Seed of the coins and the prefixes. Use it for nothing else; `raydp audit` draws one."""

    def build(
        self, tokenizer: PreTrainedTokenizerBase | None
    ) -> CanaryTask | CanaryClassificationTask:
        """Read the other task, draw the canaries and toss the coins.

        Raises:
            ValueError: the other task is unusable, or there are fewer prefixes of this length than
                canaries.
        """
        built = self.of.params.build(None) if tokenizer is None else self.inner(tokenizer)
        if isinstance(built, CanaryTask | CanaryClassificationTask):
            raise ValueError(
                f"task.of must be a task without canaries, got {self.of.name!r}. Audit the task it "
                "is derived from."
            )
        if tokenizer is None:
            return self._labelled(cast(ClassificationTask, built))
        return self._language(cast(LanguageModelingTask, built), tokenizer)

    def _labelled(self, inner: ClassificationTask) -> CanaryClassificationTask:
        # Streams of their own for inputs, coins and labels: one does not tell of another.
        inputs = np.random.default_rng([self.seed, 0]).integers(
            0, 2, (self.num_canaries, *inner.input_shape)
        )
        labels = inner.num_classes + np.arange(self.num_canaries)
        if self.canary != "new_token":
            labels = np.random.default_rng([self.seed, 3]).integers(
                0, inner.num_classes, self.num_canaries
            )
        canaries = LabelledExamples(inputs=inputs.astype(np.float32), labels=labels)
        return CanaryClassificationTask.of(
            inner, canaries, self._coins(), kind=self.canary, seed=self.seed
        )

    def _language(
        self, inner: LanguageModelingTask, tokenizer: PreTrainedTokenizerBase
    ) -> CanaryTask:
        # Random prefixes, then the token whose loss is measured.
        prefixes = self._prefixes(tokenizer)
        first = first_new_token(tokenizer)
        last = first + np.arange(self.num_canaries)
        if self.canary != "new_token":
            last = np.random.default_rng([self.seed, 3]).choice(
                _ordinary(tokenizer), self.num_canaries
            )
        start = start_tokens(tokenizer)
        canaries = TokenizedExamples.from_lists(
            [with_start([*p, int(token)], start) for p, token in zip(prefixes, last, strict=True)],
            [len(start) + self.prefix_tokens] * len(prefixes),
        )
        return CanaryTask.of(
            inner, canaries, self._coins(), kind=self.canary, seed=self.seed, first_new_token=first
        )

    def _coins(self) -> NDArray[np.bool_]:
        """Return [M] whether each canary is in the training data."""
        return np.random.default_rng([self.seed, 1]).random(self.num_canaries) < 0.5

    def _prefixes(self, tokenizer: PreTrainedTokenizerBase) -> list[tuple[int, ...]]:
        """Return [M] distinct random sequences of ordinary tokens."""
        ordinary = _ordinary(tokenizer)
        # At least half of the draws are new.
        if len(ordinary) ** self.prefix_tokens < 2 * self.num_canaries:
            raise ValueError(
                f"task.prefix_tokens must be larger for {self.num_canaries} canaries and "
                f"{len(ordinary)} tokens, got {self.prefix_tokens}. Double it."
            )
        rng = np.random.default_rng([self.seed, 0])
        prefixes: dict[tuple[int, ...], None] = {}
        # Draw until all are distinct: two canaries with one prefix would share their loss.
        while len(prefixes) < self.num_canaries:
            prefixes[tuple(rng.choice(ordinary, self.prefix_tokens).tolist())] = None
        return list(prefixes)


def _ordinary(tokenizer: PreTrainedTokenizerBase) -> NDArray[np.int64]:
    """Return the ids of the tokenizer's tokens that are not special."""
    return np.array(sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids)))

"""Tokens that a prompt may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Prompt = tuple[int, ...]


def plain_tokens(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> NDArray[np.int64]:
    """Return the tokenizer's tokens without special ones and rows that pad the embedding."""
    ids = np.arange(min(len(tokenizer), vocab_size))
    return ids[~np.isin(ids, tokenizer.all_special_ids)]


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Tokens that prompts may hold.

    Args:
        allowed: token ids, sorted.
        tokenizer: accept only prompts that stay the same when decoded and tokenised again; None
            accepts every sequence of ids.
    """

    allowed: NDArray[np.int64]
    tokenizer: PreTrainedTokenizerBase | None = None

    def contains(self, prompt: Prompt) -> bool:
        """Return whether a prompt holds at least one token and only allowed tokens."""
        return bool(prompt) and bool(np.isin(prompt, self.allowed).all())

    def accepts(self, prompt: Prompt) -> bool:
        """Return whether a prompt of allowed tokens may be tried."""
        return self.tokenizer is None or self._again(prompt) == prompt

    def draw(self, length: int, rng: np.random.Generator) -> Prompt:
        """Draw a random prompt. Up to a hundred attempts search for one that `accepts` allows."""
        for _ in range(100):
            # Twice as many tokens, because tokenising again may join some.
            prompt = tuple(rng.choice(self.allowed, size=2 * length).tolist())
            if self.tokenizer is None:
                return prompt[:length]
            prompt = self._again(prompt)[:length]  # tokens that can follow each other in a text
            if len(prompt) == length and self.contains(prompt) and self.accepts(prompt):
                break
        # After a hundred attempts any sequence will do as a start.
        return (
            tuple(rng.choice(self.allowed, size=length).tolist())
            if len(prompt) < length
            else prompt
        )

    def _again(self, prompt: Prompt) -> Prompt:
        assert self.tokenizer is not None
        return tuple(
            self.tokenizer(self.tokenizer.decode(list(prompt)), add_special_tokens=False).input_ids
        )

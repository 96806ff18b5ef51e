"""Office mails' words, from which tests of several rooms draw their texts."""

from __future__ import annotations

import random

WORDS = [
    "please", "send", "the", "draft", "of", "the", "agenda", "to", "our", "office",
    "and", "ask", "for", "a", "copy", "by", "noon", "or", "call", "about", "it",
]  # fmt: skip


def line(rng: random.Random, num_words: int) -> str:
    """Words drawn with repetition."""
    return " ".join(rng.choices(WORDS, k=num_words))

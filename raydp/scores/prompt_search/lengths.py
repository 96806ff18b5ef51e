"""The shortest prompt: MiniPrompt (Schwarzschild et al. 2024, Algorithm 1) with bounds and warm starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from raydp.scores.prompt_search.gcg import Search
from raydp.scores.prompt_search.tokens import Prompt

FIRST_LENGTH = 5
LENGTH_STEP = 5
STEPS_GROWTH = 1.2
"""Of the reference: where it begins, what a failure adds to the length, and by what it multiplies the steps."""

HALVED_GAP = 5
"""Bounds further apart than this are halved. Below, one token less is tried: with a warm start success is cheap and
failure is what costs, and the way down meets one failure where halving meets several."""


@dataclass(kw_only=True)
class LengthSearch:
    """Looks for ever shorter prompts.

    Args:
        search: prompts of one length.
        num_seeds: random starts.
        num_steps: GCG steps at a length, one fifth more after every failure on the way up.
        patience: steps without progress after which a length is given up on the way up, see `Search.descend`.
        max_tokens: the longest prompt to try.
        rng_fn: search seed -> its randomness.

    Attributes:
        best: the shortest confirmed prompt, None as long as there is none.
    """

    search: Search
    num_seeds: int
    num_steps: int
    patience: int
    max_tokens: int
    rng_fn: Callable[[int], np.random.Generator]
    best: Prompt | None = None
    _failed: set[int] = field(default_factory=set)

    def try_known(self, prompts: Iterable[Prompt]) -> bool:
        """Try prompts that were found elsewhere, shorter ones first; whether one of them is a new best."""
        vocabulary = self.search.vocabulary
        fitting = {p for p in prompts if self._is_shorter(len(p)) and vocabulary.contains(p) and vocabulary.accepts(p)}
        for _, group in groupby(sorted(fitting, key=lambda p: (len(p), p)), key=len):
            if (found := self.search.evaluate(list(group), bounded=False)) is not None:
                self.best = found
                return True
        return False

    def run(self) -> None:
        """Try all of the shortest prompts, then search with every seed in turn, each for shorter ones than all before.

        A prompt of one token may work where none was found with two, so that the search alone would never look there.
        """
        proven = self._try_all()
        for seed in range(self.num_seeds):
            rng, low = self.rng_fn(seed), proven
            if self.best is None:
                low = max(proven, self._climb(rng))
            if self.best is not None:
                self._shorten(low, rng, warm=seed == 0)

    def _try_all(self) -> int:
        """Every prompt of the lengths that have no more than a search may evaluate; the last such length, or 0."""
        vocabulary, length = self.search.vocabulary, 1
        while self._is_shorter(length) and len(vocabulary.allowed) ** length <= self.num_steps * self.search.batch_size:
            self.best = self.search.enumerate(length) or self.best
            if self.search.exhausted or (self.best is not None and len(self.best) == length):
                break
            self._failed.add(length)
            length += 1
        return length - 1

    def _climb(self, rng: np.random.Generator) -> int:
        """Try longer and longer prompts until one is found; the longest length that failed."""
        num_steps, low = self.num_steps, 0
        for length in [*range(min(FIRST_LENGTH, self.max_tokens), self.max_tokens, LENGTH_STEP), self.max_tokens]:
            start = self.search.vocabulary.draw(length, rng)
            self.best = self.search.descend(start, num_steps=num_steps, rng=rng, patience=self.patience)
            if self.best is not None or self.search.exhausted:
                return low
            self._failed.add(length)
            low, num_steps = length, int(num_steps * STEPS_GROWTH)
        return low

    def _shorten(self, low: int, rng: np.random.Generator, *, warm: bool) -> None:
        """Lower the upper bound until it meets what failed with this seed; all that failed bounds the halving.

        It takes all steps, without patience: near a prompt that works they find shorter ones, and the many searches
        that find nothing never come here.
        """
        while self.best is not None and (high := len(self.best)) > low + 1 and not self.search.exhausted:
            failed = max((length for length in self._failed if length < high), default=0)
            length = (failed + high) // 2 if high - failed > HALVED_GAP else high - 1
            start = self._cut(length) if warm else self.search.vocabulary.draw(length, rng)
            if len(self.best) < high:  # a prompt on the way was enough
                continue
            found = self.search.descend(start, num_steps=self.num_steps, rng=rng)
            if found is not None:
                self.best, warm = found, True
            else:
                self._failed.add(length)
                low = length

    def _cut(self, length: int) -> Prompt:
        """Leave out the tokens of the best prompt that are missed least, one by one."""
        prompt = self.best
        assert prompt is not None
        while len(prompt) > length:
            shorter = list(dict.fromkeys(prompt[:i] + prompt[i + 1 :] for i in range(len(prompt))))
            shorter = [p for p in shorter if self.search.vocabulary.accepts(p)] or shorter
            if (found := self.search.evaluate(shorter)) is not None:
                self.best = prompt = found
            else:
                prompt = min(shorter, key=lambda p: self.search.losses.get(p, np.inf))
        return prompt

    def _is_shorter(self, length: int) -> bool:
        return length <= self.max_tokens if self.best is None else length < len(self.best)

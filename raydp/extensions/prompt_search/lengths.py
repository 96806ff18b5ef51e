"""Search for the shortest prompt: MiniPrompt with bounds and warm starts.

Source: Schwarzschild et al. 2024, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from raydp.extensions.prompt_search.gcg import PromptSearch
from raydp.extensions.prompt_search.tokens import Prompt

FIRST_LENGTH = 5
LENGTH_STEP = 5
STEPS_GROWTH = 1.2
"""Values of the reference: first length, its step after a failure, and growth of num_steps."""

HALVED_GAP = 5
"""Gap of the two bounds of the length above which the middle is tried, not one token less.

With a warm start success is cheap and failure is expensive: one token less meets one failure,
halving meets several.
"""


@dataclass(kw_only=True)
class LengthSearch:
    """Search for ever shorter prompts.

    Args:
        search: the search at one length.
        num_seeds: number of random starts.
        num_steps: GCG steps at one length; a fifth more after every failure while the length grows.
        patience: steps without progress after which a length is given up while the length grows;
            `PromptSearch.descend` counts them.
        max_tokens: length of the longest prompt to try.
        rng_fn: search seed -> random generator.

    Attributes:
        best: the shortest confirmed prompt; None as long as there is none.
    """

    search: PromptSearch
    num_seeds: int
    num_steps: int
    patience: int
    max_tokens: int
    rng_fn: Callable[[int], np.random.Generator]
    best: Prompt | None = None
    _failed: set[int] = field(default_factory=set)

    def try_known(self, prompts: Iterable[Prompt]) -> bool:
        """Try known prompts, shorter ones first. Return whether one of them is a new best."""
        vocabulary = self.search.vocabulary
        fitting = {
            p
            for p in prompts
            if self._is_shorter(len(p)) and vocabulary.contains(p) and vocabulary.accepts(p)
        }
        # Groups of one length, because one evaluation takes prompts of one length.
        for _, group in groupby(sorted(fitting, key=lambda p: (len(p), p)), key=len):
            if (confirmed := self.search.evaluate(list(group), bounded=False)) is not None:
                self.best = confirmed
                return True
        return False

    def run(self) -> None:
        """Try every prompt of the smallest lengths, then search for a shorter one, seed after seed.

        A prompt of one token may work even if none of two tokens was found. The search alone would
        never try it.
        """
        proven = self._try_all()
        for seed in range(self.num_seeds):
            rng, low = self.rng_fn(seed), proven
            # The first seed climbs to any prompt; later ones begin below the best.
            if self.best is None:
                low = max(proven, self._climb(rng))
            if self.best is not None:
                self._shorten(low, rng, warm=seed == 0)

    def _try_all(self) -> int:
        """Try every prompt of the lengths with few enough prompts; return the last one, or 0."""
        vocabulary, length = self.search.vocabulary, 1
        # Enumerate while this costs no more than a search would.
        while (
            self._is_shorter(length)
            and len(vocabulary.allowed) ** length <= self.num_steps * self.search.batch_size
        ):
            self.best = self.search.enumerate(length) or self.best
            if self.search.exhausted or (self.best is not None and len(self.best) == length):
                break
            self._failed.add(length)
            length += 1
        return length - 1

    def _climb(self, rng: np.random.Generator) -> int:
        """Try longer and longer prompts until one works. Return the longest length that failed."""
        num_steps, low = self.num_steps, 0
        for length in [
            *range(min(FIRST_LENGTH, self.max_tokens), self.max_tokens, LENGTH_STEP),
            self.max_tokens,
        ]:
            start = self.search.vocabulary.draw(length, rng)
            self.best = self.search.descend(
                start, num_steps=num_steps, rng=rng, patience=self.patience
            )
            if self.best is not None or self.search.exhausted:
                return low
            self._failed.add(length)
            # Algorithm 1: a longer prompt is harder to search, so it gets more steps.
            low, num_steps = length, int(num_steps * STEPS_GROWTH)
        return low

    def _shorten(self, low: int, rng: np.random.Generator, *, warm: bool) -> None:
        """Shorten the best prompt until its length meets the longest that failed with this seed.

        The halving takes the failures of all seeds as the lower bound. The steps have no patience:
        near a working prompt, late steps still find shorter ones, and searches that find nothing
        never come here.
        """
        while (
            self.best is not None
            and (high := len(self.best)) > low + 1
            and not self.search.exhausted
        ):
            failed = max((length for length in self._failed if length < high), default=0)
            # Bisection while the gap is wide, then one token less at a time (see HALVED_GAP).
            length = (failed + high) // 2 if high - failed > HALVED_GAP else high - 1
            start = self._cut(length) if warm else self.search.vocabulary.draw(length, rng)
            if len(self.best) < high:  # cutting has already found a shorter prompt
                continue
            confirmed = self.search.descend(start, num_steps=self.num_steps, rng=rng)
            if confirmed is not None:
                self.best, warm = confirmed, True
            else:
                self._failed.add(length)
                low = length

    def _cut(self, length: int) -> Prompt:
        """Remove tokens of the best prompt one by one, each the one that costs the least loss."""
        prompt = self.best
        assert prompt is not None
        while len(prompt) > length:
            shorter = list(dict.fromkeys(prompt[:i] + prompt[i + 1 :] for i in range(len(prompt))))
            # If no shorter prompt is acceptable, go on with any of them: a later cut may be.
            shorter = [p for p in shorter if self.search.vocabulary.accepts(p)] or shorter
            if (confirmed := self.search.evaluate(shorter)) is not None:
                self.best = prompt = confirmed
            else:
                prompt = min(shorter, key=lambda p: self.search.losses.get(p, np.inf))
        return prompt

    def _is_shorter(self, length: int) -> bool:
        return length <= self.max_tokens if self.best is None else length < len(self.best)

"""Greedy coordinate gradient at one prompt length."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from raydp.models.key_values import Prefix
from raydp.scores.prompt_search.objective import Effort, Objective
from raydp.scores.prompt_search.tokens import Prompt, Vocabulary

PROGRESS = 0.99
"""What the lowest loss is to be multiplied by for the search to be said to go on."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Where a search ends, whatever it has found; None: no bound.

    A bound is looked at before every step. What was found is confirmed, and what is known is tried, in any case.

    Args:
        max_steps: GCG steps.
        max_seconds: wall-clock time, which no two runs share: a search that it ends cannot be repeated exactly.
        max_forward_passes: prompts that the model reads.
    """

    max_steps: int | None = None
    max_seconds: float | None = None
    max_forward_passes: int | None = None

    def spent(self, effort: Effort) -> bool:
        """Whether a bound is reached."""
        taken = (effort.gcg_steps, effort.seconds, effort.forward_passes)
        bounds = (self.max_steps, self.max_seconds, self.max_forward_passes)
        return any(bound is not None and value >= bound for value, bound in zip(taken, bounds, strict=True))

    def prompts_left(self, effort: Effort, wanted: int) -> int:
        """How many of the wanted prompts may still be read."""
        if self.max_forward_passes is None:
            return wanted
        return max(0, min(wanted, self.max_forward_passes - effort.forward_passes))


@dataclass(kw_only=True)
class Search:
    """The search for prompts of one model and target. No prompt is evaluated twice.

    Args:
        objective: model and target.
        vocabulary: what prompts are made of.
        budget: where it ends.
        batch_size: prompts a step.
        top_k: replacements of a token are drawn from the k with the most negative gradient.

    Attributes:
        losses: of every prompt that was evaluated.
    """

    objective: Objective
    vocabulary: Vocabulary
    budget: Budget
    batch_size: int
    top_k: int
    losses: dict[Prompt, float] = field(default_factory=dict)

    @property
    def exhausted(self) -> bool:
        """Whether the budget has ended."""
        return self.budget.spent(self.objective.effort)

    def evaluate(
        self, prompts: Sequence[Prompt], shared: Prefix | None = None, of: Prompt = (), *, bounded: bool = True
    ) -> Prompt | None:
        """Put new prompts of one length on record.

        Args:
            shared, of: see Objective.evaluate.
            bounded: only as many as the budget has left.

        Returns:
            A prompt of them after which greedy decoding, token by token, gives the target, or None.
        """
        new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self.losses]
        if bounded:
            new = new[: self.budget.prompts_left(self.objective.effort, len(new))]
        if not new:
            return None
        result = self.objective.evaluate(np.array(new, np.int64), shared, of)
        self.losses.update(zip(new, result.losses.tolist(), strict=True))
        said = sorted(np.flatnonzero(result.hits), key=lambda i: result.losses[i])
        return next((new[i] for i in said if self.objective.says_target(new[i])), None)

    def descend(
        self, start: Prompt, *, num_steps: int, rng: np.random.Generator, patience: int | None = None
    ) -> Prompt | None:
        """Replace one token at a time (Zou et al. 2023, Algorithm 1) until greedy decoding gives the target.

        Every step draws neighbours that are new and goes on from the best of them, be it worse than the one before.
        It ends as soon as any evaluated prompt is confirmed.

        Args:
            start: the first prompt; its length is that of all.
            num_steps: at most so many steps.
            patience: steps without a loss that is 1 % lower after which it ends; None: it takes all steps.

        Returns:
            A confirmed prompt, or None.
        """
        if (found := self.evaluate([start])) is not None:
            return found
        prompt, lowest, since = start, self.losses.get(start, np.inf), 0
        for _ in range(num_steps):
            if (patience is not None and since >= patience) or self.exhausted:
                return None
            self.objective.effort.gcg_steps += 1
            gradient, shared = self.objective.gradient(prompt)
            batch = list(itertools.islice(self._neighbours(prompt, gradient, rng), self.batch_size))
            if (found := self.evaluate(batch, shared, prompt)) is not None:
                return found
            batch = [neighbour for neighbour in batch if neighbour in self.losses]  # the budget may have cut it
            if not batch:
                return None
            prompt = min(batch, key=self.losses.__getitem__)
            lowest, since = (self.losses[prompt], 0) if self.losses[prompt] < PROGRESS * lowest else (lowest, since + 1)
        return None

    def _neighbours(self, prompt: Prompt, gradient: torch.Tensor, rng: np.random.Generator) -> Iterator[Prompt]:
        """New prompts with one token replaced by one of the top k of its position, in random order."""
        allowed = torch.from_numpy(self.vocabulary.allowed).to(gradient.device)
        k = min(self.top_k, len(allowed))
        top = allowed[(-gradient[:, allowed]).topk(k, dim=1).indices].cpu().numpy()
        for draw in rng.permutation(top.size):
            place, rank = divmod(int(draw), k)
            neighbour = (*prompt[:place], int(top[place, rank]), *prompt[place + 1 :])
            if neighbour not in self.losses and self.vocabulary.accepts(neighbour):
                yield neighbour

    def enumerate(self, length: int) -> Prompt | None:
        """Try every prompt of a length that was not tried."""
        every = itertools.product(self.vocabulary.allowed.tolist(), repeat=length)
        new = (p for p in every if p not in self.losses and self.vocabulary.accepts(p))
        while not self.exhausted and (batch := list(itertools.islice(new, self.batch_size))):
            if (found := self.evaluate(batch)) is not None:
                return found
        return None

"""Greedy coordinate gradient at one prompt length."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from raydp.extensions.adapters.key_values import Prefix
from raydp.extensions.prompt_search.objective import Effort, Objective
from raydp.extensions.prompt_search.tokens import Prompt, Vocabulary

PROGRESS = 0.99
"""A new loss counts as progress if it is below this factor times the lowest loss."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Bounds at which a search ends, whatever it has found. None means no bound.

    The bounds are checked before every step. Confirming found prompts and trying known prompts is
    always allowed.

    Args:
        max_steps: GCG steps.
        max_seconds: wall-clock time. A search that this bound ends cannot be repeated exactly.
        max_forward_passes: prompts that the model reads.
    """

    max_steps: int | None = None
    max_seconds: float | None = None
    max_forward_passes: int | None = None

    def spent(self, effort: Effort) -> bool:
        """Return whether a bound is reached."""
        taken = (effort.gcg_steps, effort.seconds, effort.forward_passes)
        bounds = (self.max_steps, self.max_seconds, self.max_forward_passes)
        return any(
            bound is not None and value >= bound for value, bound in zip(taken, bounds, strict=True)
        )

    def prompts_left(self, effort: Effort, wanted: int) -> int:
        """Return how many of the wanted prompts may still be read."""
        if self.max_forward_passes is None:
            return wanted
        return max(0, min(wanted, self.max_forward_passes - effort.forward_passes))


@dataclass(kw_only=True)
class PromptSearch:
    """Search for prompts of one model and target. No prompt is evaluated twice.

    Args:
        objective: model and target.
        vocabulary: the tokens that prompts may hold.
        budget: the bounds of the search.
        batch_size: candidate prompts per step.
        top_k: replacements of a token are drawn from the k tokens with the most negative gradient.

    Attributes:
        losses: prompt -> its loss, for every evaluated prompt.
    """

    objective: Objective
    vocabulary: Vocabulary
    budget: Budget
    batch_size: int
    top_k: int
    losses: dict[Prompt, float] = field(default_factory=dict)

    @property
    def exhausted(self) -> bool:
        """Return whether the budget is spent."""
        return self.budget.spent(self.objective.effort)

    def evaluate(
        self,
        prompts: Sequence[Prompt],
        shared: Prefix | None = None,
        of: Prompt = (),
        *,
        bounded: bool = True,
    ) -> Prompt | None:
        """Evaluate the prompts that are new and record their losses. All have one length.

        Args:
            shared, of: see Objective.evaluate.
            bounded: evaluate only as many prompts as the budget has left.

        Returns:
            One of the new prompts after which greedy decoding, token by token, gives the target; or
            None.
        """
        # A prompt that was evaluated before costs nothing and tells nothing new.
        new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self.losses]
        if bounded:
            new = new[: self.budget.prompts_left(self.objective.effort, len(new))]
        if not new:
            return None
        result = self.objective.evaluate(np.array(new, np.int64), shared, of)
        self.losses.update(zip(new, result.losses.tolist(), strict=True))
        # Hits by the logits are confirmed by decoding, the most likely first.
        said = sorted(np.flatnonzero(result.hits), key=lambda i: result.losses[i])
        return next((new[i] for i in said if self.objective.says_target(new[i])), None)

    def descend(
        self,
        start: Prompt,
        *,
        num_steps: int,
        rng: np.random.Generator,
        patience: int | None = None,
    ) -> Prompt | None:
        """Replace one token at a time until greedy decoding gives the target.

        Source: Zou et al. 2023, Algorithm 1.

        Every step draws new neighbours of the prompt and moves to the best of them, even if it is
        worse than the prompt. The search ends as soon as an evaluated prompt is confirmed.

        Args:
            start: the first prompt. All prompts have its length.
            num_steps: largest number of steps.
            patience: end after this many steps without a loss that is 1 % lower; None takes all
                steps.

        Returns:
            A confirmed prompt, or None.
        """
        if (confirmed := self.evaluate([start])) is not None:
            return confirmed
        # The start counts as the first loss to improve on.
        prompt, lowest, since = start, self.losses.get(start, np.inf), 0
        for _ in range(num_steps):
            if (patience is not None and since >= patience) or self.exhausted:
                return None
            self.objective.effort.gcg_steps += 1
            # One gradient, then a batch of neighbours by it.
            gradient, shared = self.objective.gradient(prompt)
            batch = list(itertools.islice(self._neighbours(prompt, gradient, rng), self.batch_size))
            if (confirmed := self.evaluate(batch, shared, prompt)) is not None:
                return confirmed
            # The budget may have cut the batch.
            batch = [neighbour for neighbour in batch if neighbour in self.losses]
            if not batch:
                return None
            prompt = min(batch, key=self.losses.__getitem__)
            lowest, since = (
                (self.losses[prompt], 0)
                if self.losses[prompt] < PROGRESS * lowest
                else (lowest, since + 1)
            )
        return None

    def _neighbours(
        self, prompt: Prompt, gradient: torch.Tensor, rng: np.random.Generator
    ) -> Iterator[Prompt]:
        """Yield prompts in random order with one token replaced by one of its position's top k."""
        # The linear estimate of the loss falls most along the most negative gradient.
        allowed = torch.from_numpy(self.vocabulary.allowed).to(gradient.device)
        k = min(self.top_k, len(allowed))
        top = allowed[(-gradient[:, allowed]).topk(k, dim=1).indices].cpu().numpy()
        for draw in rng.permutation(top.size):
            place, rank = divmod(int(draw), k)
            neighbour = (*prompt[:place], int(top[place, rank]), *prompt[place + 1 :])
            if neighbour not in self.losses and self.vocabulary.accepts(neighbour):
                yield neighbour

    def enumerate(self, length: int) -> Prompt | None:
        """Try every new prompt of a length; return a confirmed one or None."""
        every = itertools.product(self.vocabulary.allowed.tolist(), repeat=length)
        new = (p for p in every if p not in self.losses and self.vocabulary.accepts(p))
        while not self.exhausted and (batch := list(itertools.islice(new, self.batch_size))):
            if (confirmed := self.evaluate(batch)) is not None:
                return confirmed
        return None

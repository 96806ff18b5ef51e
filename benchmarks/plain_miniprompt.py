"""MiniPrompt and GCG as their papers' code does them, written plainly: what benchmarks/acr.py
compares with.

Zou et al. 2023, Algorithm 1, and Schwarzschild et al. 2024, Algorithm 1. One pass for the gradient
by the one-hot rows, one over all candidates, one for the match; every pass reads every token and
gives every logit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F


@dataclass
class Plain:
    """One model and target.

    Args:
        model: a causal language model in eval mode.
        target: [t] token ids.
        allowed: token ids that prompts may hold.
        before: token ids in front of every prompt.
        deadline: time.perf_counter() after which no step is begun.
    """

    model: torch.nn.Module
    target: torch.Tensor
    allowed: torch.Tensor
    before: tuple[int, ...] = ()
    batch_size: int = 100
    topk: int = 250
    deadline: float = float("inf")
    forward_passes: int = 0
    gcg_steps: int = 0
    generator: torch.Generator = field(default_factory=torch.Generator)

    def __post_init__(self) -> None:
        self.embedding = self.model.get_input_embeddings().weight
        self.forbidden = torch.ones(len(self.embedding), dtype=torch.bool)
        self.forbidden[self.allowed] = False
        self.opening = torch.tensor(self.before, dtype=torch.int64)

    def rows(self, prompts: torch.Tensor) -> torch.Tensor:
        """[N, b + p + t] token ids."""
        n = len(prompts)
        return torch.cat([self.opening.expand(n, -1), prompts, self.target.expand(n, -1)], dim=1)

    def logits(self, output) -> torch.Tensor:
        """[N, t, V] logits that predict the target."""
        return output.logits[:, -len(self.target) - 1 : -1]

    def gradient(self, prompt: torch.Tensor) -> torch.Tensor:
        """[p, V] gradient of the loss by the one-hot rows."""
        one_hot = (
            F.one_hot(self.rows(prompt[None]), len(self.embedding))
            .to(self.embedding.dtype)
            .requires_grad_()
        )
        loss = F.cross_entropy(
            self.logits(self.model(inputs_embeds=one_hot @ self.embedding))[0], self.target
        )
        (gradient,) = torch.autograd.grad(loss, one_hot)
        return gradient[0, len(self.before) : len(self.before) + len(prompt)]

    @torch.no_grad()
    def losses(self, prompts: torch.Tensor) -> torch.Tensor:
        """[N] mean cross-entropy of the target's tokens."""
        logits = self.logits(self.model(input_ids=self.rows(prompts)))
        labels = self.target.expand(len(prompts), -1)
        return F.cross_entropy(logits.transpose(1, 2), labels, reduction="none").mean(dim=1)

    @torch.no_grad()
    def says_target(self, prompt: torch.Tensor) -> bool:
        """Whether the largest logits are the target's tokens."""
        logits = self.logits(self.model(input_ids=self.rows(prompt[None])))[0]
        return bool((logits.argmax(dim=1) == self.target).all())

    def candidates(self, prompt: torch.Tensor) -> torch.Tensor:
        """[batch_size, p] copies with one token each replaced by one of the top k of its
        position."""
        gradient = self.gradient(prompt)
        gradient[:, self.forbidden] = float("inf")
        k = min(self.topk, len(self.allowed))
        top = (-gradient).topk(k, dim=1).indices
        place = torch.randint(len(prompt), (self.batch_size,), generator=self.generator)
        choice = torch.randint(k, (self.batch_size,), generator=self.generator)
        batch = prompt.repeat(self.batch_size, 1)
        batch[torch.arange(self.batch_size), place] = top[place, choice]
        return batch

    def step(self, prompt: torch.Tensor) -> torch.Tensor:
        """The best of the candidates."""
        batch = self.candidates(prompt)
        return batch[self.losses(batch).argmin()]

    def gcg(self, length: int, num_steps: int) -> torch.Tensor | None:
        """A prompt that makes the model say the target, or None."""
        choice = torch.randint(len(self.allowed), (length,), generator=self.generator)
        prompt = self.allowed[choice]
        for _ in range(num_steps):
            if time.perf_counter() > self.deadline:
                return None
            self.gcg_steps += 1
            self.forward_passes += self.batch_size + 2
            prompt = self.step(prompt)
            if self.says_target(prompt):
                return prompt
        return None

    def minimise(
        self, seed: int, *, num_steps: int = 200, max_tokens: int = 30
    ) -> torch.Tensor | None:
        """MiniPrompt: five tokens more and 20 % more steps after a failure, one less after a
        success."""
        self.generator.manual_seed(seed)
        length, low, high, best = 5, 0, max_tokens, None
        while True:
            found = self.gcg(length, num_steps)
            if found is not None:
                best, high, following = found, length, length - 1
            else:
                low, following, num_steps = length, length + 5, int(num_steps * 1.2)
            if following >= high or following <= low:
                return best
            length = following

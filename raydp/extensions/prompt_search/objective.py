"""How close a prompt comes to making a model generate a text.

The module has the loss, its gradient, and a greedy decoding check.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import DynamicCache

from raydp.extensions.adapters.key_values import Prefix, can_share
from raydp.extensions.adapters.virtual_tokens import prefix_states, soft_prompt
from raydp.extensions.prompt_search.merging import ExactFn
from raydp.extensions.prompt_search.prefixes import groups, pass_overhead
from raydp.scores.language.decoding import CachedDecoder, input_embeddings

if TYPE_CHECKING:
    from peft import PeftModel

# Largest number of logits in one pass, and of logits that are reduced to losses at a time. CPUs:
# what the cache holds.
MAX_LOGITS = {"cpu": 2**24, "accelerator": 2**28}
MAX_REDUCED = {"cpu": 2**20, "accelerator": 2**28}


@dataclass(kw_only=True)
class Effort:
    """Effort of a search.

    Attributes:
        forward_passes: prompts that the model has read with the target; includes gradients and
            confirmations.
        tokens: token positions that went through the model.
        gcg_steps: steps of the search.
        earlier_seconds: wall-clock time of the `running` blocks that have ended.
    """

    forward_passes: int = 0
    tokens: int = 0
    gcg_steps: int = 0
    earlier_seconds: float = 0.0
    _since: float | None = None

    @property
    def seconds(self) -> float:
        """Return the wall-clock time inside the `running` blocks, up to now."""
        return self.earlier_seconds + (
            time.perf_counter() - self._since if self._since is not None else 0.0
        )

    def record(self) -> dict[str, float]:
        """Return the effort as name -> number."""
        names = ("forward_passes", "tokens", "gcg_steps", "seconds")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def after(cls, record: Mapping[str, float]) -> Effort:
        """Return an effort that continues from a record."""
        counts = {name: int(value) for name, value in record.items() if name != "seconds"}
        return cls(**counts, earlier_seconds=record.get("seconds", 0.0))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of the block."""
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self.earlier_seconds, self._since = self.seconds, None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Losses of prompts, and whether they reach the target.

    Attributes:
        losses: [N] mean cross-entropy (nats) of the target's tokens, each given the prompt and the
            target before it.
        hits: [N] whether every token of the target has the largest logit. Then greedy decoding
            gives the target, up to rounding.
    """

    losses: NDArray[np.float64]
    hits: NDArray[np.bool_]


class Objective:
    """A model and the text that it is to generate.

    Args:
        model: a transformers causal language model or a peft model around one, in eval mode.
            Virtual tokens stand before everything.
        before: token ids before every prompt: those that the tokenizer puts before a text.
        target: token ids of the text.
        effort: counter of the work; a new one by default.
        exact_fn: returns a block in which the model is exact, see `merged_adapter`.
    """

    def __init__(
        self,
        model: nn.Module,
        before: Sequence[int],
        target: Sequence[int],
        effort: Effort | None = None,
        exact_fn: ExactFn = nullcontext,
    ) -> None:
        self._whole = model
        self._exact_fn = exact_fn
        # Virtual tokens of a soft prompt stand before everything, so the inner model is called with
        # them.
        adapted = cast("PeftModel", model)
        prompted = (
            hasattr(model, "active_peft_config") and adapted.active_peft_config.is_prompt_learning
        )
        self._model = adapted.get_base_model() if prompted else model
        self._embed = input_embeddings(model)
        self.device = self._embed.weight.device
        self.vocab_size = len(self._embed.weight)
        self.target = tuple(target)
        self._before = tuple(before)
        with _gradients(False):
            self._target = torch.tensor(self.target, device=self.device)
            self._positions = torch.arange(len(target), device=self.device)
            self._kept = self._positions - len(target)  # see CachedDecoder.read for why a tensor
        self._overhead = pass_overhead(self._model, self.device)
        kind = "cpu" if self.device.type == "cpu" else "accelerator"
        # As many prompts at once as their logits fit.
        self._max_rows = max(1, MAX_LOGITS[kind] // (len(target) * self.vocab_size))
        self._max_reduced = MAX_REDUCED[kind]
        self.effort = effort if effort is not None else Effort()
        self._start = self._read_start()

    def _read_start(self) -> Prefix | None:
        """Read what every sequence begins with; None if the model's cache cannot be shared."""
        with _gradients(False):
            # Soft prompt and start tokens are the same for all prompts: read them once.
            prompt, states = soft_prompt(self._whole, 1), prefix_states(self._whole, 1)
            self._opening = self._embed(
                torch.tensor([self._before], dtype=torch.int64, device=self.device)
            )
            if prompt is not None:
                self._opening = torch.cat(
                    [prompt.to(self._opening.dtype), self._opening], dim=1
                ).detach()
            cache = None if states is None else Prefix(states).cache(1)
            self._begun = self._opening.shape[1] + (0 if cache is None else cache.get_seq_length())
            probe = self._embed(torch.tensor([[self.target[0]]], device=self.device))
            opened = torch.cat([self._opening, probe], dim=1)
            output = self._model(inputs_embeds=opened, past_key_values=cache, use_cache=True)
            if not can_share(output.past_key_values):
                return None
            return Prefix.of(output.past_key_values, self._begun)

    def gradient(self, prompt: Sequence[int]) -> tuple[torch.Tensor, Prefix | None]:
        """Return the gradient of the loss by the one-hot rows of a prompt.

        Source: Zou et al. 2023, Algorithm 1.

        It is the gradient by the rows' embeddings times the embedding matrix, so that no [p, V]
        one-hot product is formed. A scale that the embedding layer applies is left out, because it
        is the same for all tokens.

        Returns:
            [p, V] in the model's dtype, and the keys and values of everything up to the prompt's
            end.
        """
        with _gradients(True):
            ids = torch.tensor([[*prompt, *self.target[:-1]]], device=self.device)
            embedded = self._embed(ids).detach()
            # Only the prompt's embeddings need a gradient.
            head = embedded[:, : len(prompt)].clone().requires_grad_()
            whole = torch.cat([head, embedded[:, len(prompt) :]], dim=1)
            logits, cache = self._forward(whole, self._start, self._begun)
            loss = nn.functional.cross_entropy(logits[0].float(), self._target)
            (by_embedding,) = torch.autograd.grad(loss, head)
        self._count(1, ids.shape[1])
        # Keys and values up to the prompt's end serve the candidates that change a late token.
        prefix = None
        if self._start is not None:
            assert isinstance(cache, DynamicCache), (
                "a model with a shared beginning leaves a cache that can be shared"
            )
            prefix = Prefix.of(cache, self._begun + len(prompt))
        return by_embedding[0] @ self._embed.weight.detach().T, prefix

    def evaluate(
        self, prompts: NDArray[np.int64], shared: Prefix | None = None, of: Sequence[int] = ()
    ) -> Evaluation:
        """Evaluate prompts of one length. Prompts that share a long beginning are read in one pass.

        Args:
            prompts: [N, p] token ids.
            shared: keys and values of the prompt that the candidates vary (see `gradient`), if
                known.
            of: token ids of the prompt that `shared` belongs to.

        Raises:
            ValueError: a loss is not a number.
        """
        # A candidate is read from its first changed token on.
        losses, hits = np.empty(len(prompts)), np.empty(len(prompts), np.bool_)
        changed = np.zeros(len(prompts), np.int64)
        if shared is not None:
            differs = prompts != np.asarray(of)
            # A candidate that equals the shared prompt is read from its last token on, which gives
            # the needed logits.
            changed = np.where(differs.any(axis=1), differs.argmax(axis=1), len(of) - 1)
        span = prompts.shape[1] + len(self.target) - 1
        with torch.inference_mode():
            for group in groups(changed, span, self._overhead):
                cut = int(changed[group[0]])
                for rows in np.array_split(group, -(-len(group) // self._max_rows)):
                    losses[rows], hits[rows] = self._evaluate(
                        prompts[rows, cut:], shared or self._start, cut
                    )
        if np.isnan(losses).any():
            raise ValueError("losses must be finite, got NaN. The model diverged in training.")
        return Evaluation(losses=losses, hits=hits)

    def _evaluate(
        self, ends: NDArray[np.int64], prefix: Prefix | None, cut: int
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return [N] losses and [N] hits of prompts: `cut` tokens of the prefix, then `ends`."""
        target = self._target[:-1].expand(len(ends), -1)
        ids = torch.cat([torch.from_numpy(ends).to(self.device), target], dim=1)
        logits, _ = self._forward(self._embed(ids), prefix, self._begun + cut)
        self._count(len(ends), ids.numel())
        losses, hits = [], []
        for part in logits.split(max(1, self._max_reduced // logits[0].numel())):
            # The cross-entropy in fp32, relative to the largest logit.
            largest, chosen = part.amax(dim=2), part[:, self._positions, self._target]
            rest = (part.float() - largest.float()[:, :, None]).exp_().sum(dim=2).log()
            losses.append((largest.float() + rest - chosen.float()).mean(dim=1))
            # Every token of the target is the most likely one, given those before it.
            hits.append((chosen >= largest).all(dim=1))
        return torch.cat(losses).cpu().double().numpy(), torch.cat(hits).cpu().numpy()

    def _forward(
        self, embedded: torch.Tensor, prefix: Prefix | None, length: int
    ) -> tuple[torch.Tensor, object]:
        """Return the cache and [N, t, V] logits at the target's tokens, read from `length` on."""
        if prefix is None:
            embedded = torch.cat([self._opening.expand(len(embedded), -1, -1), embedded], dim=1)
        output = self._model(
            inputs_embeds=embedded,
            past_key_values=prefix.cache(len(embedded), length)
            if prefix is not None and length
            else None,
            use_cache=torch.is_grad_enabled(),
            logits_to_keep=self._kept,
        )
        return output.logits, output.past_key_values

    def says_target(self, prompt: Sequence[int]) -> bool:
        """Return whether greedy decoding, token by token in the model's dtype, gives the target."""
        with self._exact_fn(), torch.inference_mode():
            decoder = CachedDecoder(self._whole, [[*self._before, *prompt]])
            logits = decoder.read()[:, -1]
            self._count(1, len(prompt) + len(self.target) - 1)
            # Stop at the first token that differs.
            for position, token in enumerate(self.target):
                if int(logits[0].argmax()) != token:
                    return False
                if position + 1 < len(self.target):
                    logits = decoder.step(np.zeros(1, np.int64), np.array([token]))
        return True

    def _count(self, passes: int, tokens: int) -> None:
        self.effort.forward_passes += passes
        self.effort.tokens += tokens


@contextmanager
def _gradients(enabled: bool) -> Iterator[None]:
    """Switch gradients on or off, outside inference mode, whose tensors allow no gradient."""
    with torch.inference_mode(False), torch.set_grad_enabled(enabled):
        yield

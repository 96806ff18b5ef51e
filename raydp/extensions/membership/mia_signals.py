"""Signals for membership inference: what a language model predicts for single examples."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.scores.language.decoding import evaluating
from raydp.tasks.task import Batch, Task, batches_by_length
from raydp.tasks.text.language import LanguageModelingTask
from raydp.tasks.text.token_loss import IGNORE, chunk_tokens, token_logits

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

Split = Literal["train", "heldout"]
Signal = NDArray[np.float64]
MAX_TOKENS = 1024
"""Padded tokens in one pass: fp32 logits of 128,000 tokens then take at most 0.5 GiB."""
SMALLEST_VARIANCE = 1e-12
"""Lower limit of the variance of a next token's log-probability, which may be 0."""


@dataclass(frozen=True, kw_only=True)
class Signals:
    """Signals of [N] examples, each over the example's own target tokens.

    Attributes:
        loss: mean negative log-likelihood, nats.
        min_k: mean log-probability of the least likely tokens (Shi et al. 2024, Min-K% Prob).
        min_k_plus_plus: mean of the lowest standardised log-probabilities (Zhang et al. 2024,
            Min-K%++).
    """

    loss: Signal
    min_k: Signal
    min_k_plus_plus: Signal


def signals(
    model: nn.Module,
    task: LanguageModelingTask,
    split: Split,
    indices: NDArray[np.int64],
    *,
    fraction: float,
) -> Signals:
    """Compute the signals of examples, with one forward pass per example.

    Args:
        indices: [N] positions in the split.
        fraction: share of an example's target tokens that Min-K% uses; rounded down, at least one
            token.

    Raises:
        ValueError: a loss is not finite.
    """

    def reduce(batch: Batch) -> list[tuple[float, float, float]]:
        rows: list[tuple[float, float, float]] = []
        # Logits at a position predict the next token.
        logits, labels = token_logits(model, batch), batch.labels[:, 1:]
        for row in range(len(labels)):
            wanted = labels[row] != IGNORE
            log_probs, standardised = _of_targets(logits[row][wanted], labels[row][wanted])
            count = max(1, int(len(log_probs) * fraction))
            plain, relative = (
                float(values.sort().values[:count].mean()) for values in (log_probs, standardised)
            )
            rows.append((-float(log_probs.mean()), plain, relative))
        return rows

    columns = _over_examples(model, task, split, indices, reduce).T
    return Signals(loss=columns[0], min_k=columns[1], min_k_plus_plus=columns[2])


def losses(model: nn.Module, task: Task, split: Split, indices: NDArray[np.int64]) -> Signal:
    """Return [N] the loss of each example in nats: the mean over target tokens, or of its class.

    Raises:
        ValueError: a loss is not finite.
    """

    def reduce(batch: Batch) -> list[tuple[float, ...]]:
        return [(loss,) for loss in task.per_example_loss(model, batch).double().tolist()]

    return _over_examples(model, task, split, indices, reduce)[:, 0]


def _of_targets(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return [T] log-probabilities of the targets, and [T] their standardised values; both float64.

    A value is standardised by the mean and the standard deviation of the next token's
    log-probability under the model.
    """
    parts, size = [], chunk_tokens(logits.device)
    # In chunks of positions, because a vocabulary of fp32 logits is large.
    for start in range(0, len(targets), size):
        log_probs = logits[start : start + size].float().log_softmax(dim=-1)
        probs = log_probs.exp()
        mean = (probs * log_probs).sum(dim=-1)
        variance = (probs * (log_probs - mean[:, None]) ** 2).sum(dim=-1)
        of_target = log_probs.gather(1, targets[start : start + size, None])[:, 0]
        parts.append((of_target, (of_target - mean) / variance.clamp(min=SMALLEST_VARIANCE).sqrt()))
    plain, standardised = (torch.cat(column).double() for column in zip(*parts, strict=True))
    return plain, standardised


def _over_examples(
    model: nn.Module,
    task: Task,
    split: Split,
    indices: NDArray[np.int64],
    reduce_fn: Callable[[Batch], Sequence[tuple[float, ...]]],
) -> NDArray[np.float64]:
    """Return [N, F] figures of each example, in order; those of similar length share a batch."""
    device = next(model.parameters()).device
    lengths, batch_fn = (
        (task.lengths(), task.batch)
        if split == "train"
        else (task.heldout_lengths(), task.heldout_batch)
    )
    figures: dict[int, tuple[float, ...]] = {}
    # Examples of similar length together, and the figures back in the order that was asked for.
    with evaluating(model):
        for positions in batches_by_length(lengths[indices], MAX_TOKENS):
            rows = reduce_fn(batch_fn(indices[positions]).to(device))
            figures.update(zip(positions.tolist(), rows, strict=True))
    values = np.array([figures[i] for i in range(len(indices))], np.float64)
    if not np.isfinite(values).all():
        raise ValueError(
            "losses must be finite, got NaN or infinity. The model diverged in training."
        )
    return values


def zlib_lengths(
    tokenizer: PreTrainedTokenizerBase,
    task: LanguageModelingTask,
    split: Split,
    indices: NDArray[np.int64],
) -> Signal:
    """Return [N] bytes of each target text after zlib (Carlini et al. 2021, section 5.2)."""
    examples = task.train if split == "train" else task.heldout
    targets = [examples.targets_of(i).tolist() for i in indices]
    texts = tokenizer.batch_decode(
        targets, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return np.array([len(zlib.compress(text.encode())) for text in texts], np.float64)

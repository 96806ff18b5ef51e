"""Log-probabilities of many continuations of one prompt.

Tokens that continuations share are computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raydp.scores.language.decoding import CachedDecoder, evaluating
from raydp.scores.language.generation import MAX_CACHED_TOKENS
from raydp.scores.language.teacher_forcing import MAX_TOKENS

if TYPE_CHECKING:
    from raydp.models.base_models import LoadedModel


def log_probabilities_of(
    model: LoadedModel, prompt_ids: Sequence[int], continuations: Sequence[tuple[int, ...]]
) -> NDArray[np.float64]:
    """Return the log-probability of each continuation: the sum over its tokens, in nats.

    The probabilities are those of the full softmax at temperature 1. The continuations are read as
    a tree: a beginning that several continuations share is computed once, and the last token of a
    continuation is never read. All codes of four digits, with one token a digit, need 1,111 tokens
    instead of 40,000 and their prompts.

    Args:
        model: a loaded model on any device, in any dtype.
        prompt_ids: token ids that every continuation follows; not empty.
        continuations: non-empty token ids.

    Returns:
        [len(continuations)].

    Raises:
        ValueError: a log-probability is not finite.
    """
    totals = np.zeros(len(continuations))
    # The longest beginning bounds the cache: positions times rows must fit.
    longest = len(prompt_ids) + max(map(len, continuations))
    with evaluating(model.model):
        # Continuations in alphabetical order share their beginnings.
        for part in _parts(continuations, max(1, min(MAX_TOKENS, MAX_CACHED_TOKENS // longest))):
            decoder = CachedDecoder(model.model, [prompt_ids])
            totals[part] = _walk(decoder, [continuations[i] for i in part])
    # A model that diverged gives nan; a mean over secrets would hide which one.
    if not np.isfinite(totals).all():
        worst = totals[~np.isfinite(totals)][0]
        raise ValueError(
            f"log-probabilities must be finite, got {worst}. The model diverged in training."
        )
    return totals


def _parts(continuations: Sequence[tuple[int, ...]], max_rows: int) -> Iterator[list[int]]:
    """Yield positions in alphabetical order of their continuations, in parts.

    The continuations of one part have at most max_rows different beginnings (all tokens but the
    last).
    """
    part: list[int] = []
    beginnings: set[tuple[int, ...]] = set()
    # The last token of a continuation is predicted and never read, so it does not count.
    for i in sorted(range(len(continuations)), key=continuations.__getitem__):
        beginnings.add(continuations[i][:-1])
        if len(beginnings) > max_rows:
            yield part
            part, beginnings = [], {continuations[i][:-1]}
        part.append(i)
    yield part


def _walk(decoder: CachedDecoder, sequences: Sequence[tuple[int, ...]]) -> NDArray[np.float64]:
    """Return [sequence] log-probabilities, depth by depth; a decoder row is a beginning."""
    totals = np.zeros(len(sequences))
    alive, row = np.arange(len(sequences)), np.zeros(len(sequences), np.int64)
    # At depth 0 all sequences stand at the end of the prompt, in one row.
    logits, depth = decoder.read()[:, -1], 0
    while True:
        # Add the log-probability of each sequence's token at this depth.
        tokens = np.array([sequences[i][depth] for i in alive.tolist()])
        scores = logits.float()
        # log p(token) = logit - logsumexp over the whole vocabulary, summed in float64.
        totals[alive] += (
            (scores[row, tokens] - scores.logsumexp(dim=-1)[row]).double().cpu().numpy()
        )
        depth += 1
        # Keep the sequences that go on, and read each distinct (row, token) once.
        longer = np.array([len(sequences[i]) > depth for i in alive.tolist()])
        if not longer.any():
            return totals
        alive, pairs = alive[longer], np.stack([row, tokens], axis=1)[longer]
        branches, row = np.unique(pairs, axis=0, return_inverse=True)
        logits = decoder.step(branches[:, 0], branches[:, 1])

"""A model's predictions at every token of a secret's continuation, from one forward pass.

The method is called teacher forcing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.scores.language.decoding import CachedDecoder, evaluating
from raydp.scores.language.encoding import EncodedSecret, encode
from raydp.tasks.task import batches_by_length

if TYPE_CHECKING:
    from raydp.models.base_models import LoadedModel
    from raydp.tasks.task import Secret

T = TypeVar("T")

# Padded tokens in one pass. With a vocabulary of 128,000 their fp32 logits take at most 1 GiB.
MAX_TOKENS = 2_048


def over_continuations(
    model: LoadedModel,
    secrets: Sequence[EncodedSecret],
    reduce_fn: Callable[[torch.Tensor, EncodedSecret], T],
) -> list[T]:
    """Apply a function to the logits of each secret's continuation.

    Args:
        model: a loaded model on any device, in any dtype.
        secrets: tokenised secrets.
        reduce_fn: receives ([|s2|, V] logits on the model's device and in its dtype, the secret).
            Row j predicts token j of s2 from s1 and the tokens of s2 before j.

    Returns:
        The results in the order of the secrets. The logits exist for one batch at a time.
    """
    # The last token of s2 is predicted and not read.
    sequences = [secret.prompt_ids + secret.continuation_ids[:-1] for secret in secrets]
    results: dict[int, T] = {}
    with evaluating(model.model):
        # Logits of whole vocabularies are large, so they are reduced batch by batch.
        for batch in batches_by_length(np.array([len(s) for s in sequences], np.int64), MAX_TOKENS):
            keep = max(len(secrets[i].continuation_ids) for i in batch)
            logits = CachedDecoder(model.model, [sequences[i] for i in batch]).read(
                keep, use_cache=False
            )
            # Rows end together: the last |s2| positions predict s2.
            for row, i in zip(logits, batch, strict=True):
                results[int(i)] = reduce_fn(
                    row[keep - len(secrets[i].continuation_ids) :], secrets[i]
                )
    return [results[i] for i in range(len(secrets))]


def log_probability(logits: torch.Tensor, secret: EncodedSecret) -> float:
    """Return the log-probability of s2: the sum over its tokens in nats, at temperature 1.

    Raises:
        ValueError: the sum is not finite.
    """
    targets = torch.tensor(secret.continuation_ids, device=logits.device)
    total = float(
        logits.float().log_softmax(dim=-1).gather(1, targets[:, None]).cpu().double().sum()
    )
    if not math.isfinite(total):
        raise ValueError(
            f"log-probabilities must be finite, got {total}. The model diverged in training."
        )
    return total


def log_probabilities(model: LoadedModel, secrets: Sequence[Secret]) -> NDArray[np.float64]:
    """Return [secret] the sum of the log-probabilities (nats) of the continuation's tokens."""
    return np.array(
        over_continuations(
            model, encode(model.tokenizer, [_following(s) for s in secrets]), log_probability
        )
    )


def _following(secret: Secret) -> Secret:
    """Put a space before an attribute (not a verbatim secret) that follows its prompt directly."""
    # A verbatim continuation carries its own blanks.
    if (
        secret.kind == "verbatim"
        or secret.prompt[-1:].isspace()
        or secret.continuation[:1].isspace()
    ):
        return secret
    return replace(secret, continuation=f" {secret.continuation}")

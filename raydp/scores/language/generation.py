"""Stochastic generation: the sampling distribution that every score uses, and a batched sampler."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from raydp.scores.language.decoding import CachedDecoder, evaluating
from raydp.scores.score import OneByOne
from raydp.tasks.task import batches_by_length

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from raydp.models.base_models import LoadedModel

# Positions in the key-value cache at a time: 8 GiB for a model of 7 billion parameters (0.5 MiB a
# position in bf16).
MAX_CACHED_TOKENS = 16_384


@dataclass(frozen=True, kw_only=True)
class TokenDistribution:
    """Distribution of the next token. The rows are independent.

    Attributes:
        token_ids: [R, m] candidates in ascending order, so that a uniform number draws the same
            token on every device.
        probabilities: [R, m] float64; 0 for candidates outside their row's top k.
    """

    token_ids: NDArray[np.int64]
    probabilities: NDArray[np.float64]

    def draw(self, rows: NDArray[np.int64], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Draw tokens by inverse transform sampling.

        Args:
            rows: [...] the row to draw from.
            uniforms: [...] uniform numbers in [0, 1).

        Returns:
            [...] token ids.
        """
        # The order by ascending token id fixes which token a number draws.
        cumulative = self.probabilities.cumsum(axis=1)[rows]
        # u < 1 keeps u * total below total in floating point too, so the drawn token has positive
        # probability.
        threshold = uniforms * cumulative[..., -1]
        drawn: NDArray[np.int64] = self.token_ids[
            rows, (cumulative <= threshold[..., None]).sum(axis=-1)
        ]
        return drawn

    def probability_of(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return [R] the probability of one token per row; 0 if the token is not in the top k."""
        # A token outside the candidates matches nowhere and has probability 0.
        probability: NDArray[np.float64] = (
            self.probabilities * (self.token_ids == tokens[:, None])
        ).sum(axis=1)
        return probability


class Sampling(OneByOne):
    """Parameters of stochastic decoding. Every score that samples inherits them.

    Source: Hu et al. 2025, App. B.7: Hugging Face's defaults (temperature 1, top-p 1, top-k 50).
    """

    top_k: Annotated[int, Field(ge=1)] = 50
    """Sampling is restricted to the k most likely tokens; 1 is greedy decoding.

    50 as in Hu et al. 2025.
    """
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The logits are divided by this temperature before sampling."""

    def distribution(self, logits: torch.Tensor) -> TokenDistribution:
        """Return the distribution of the next token.

        Every logit that equals the k-th largest is kept, as transformers' TopKLogitsWarper does.
        The softmax is taken in float64 on the host.

        Args:
            logits: [R, V], any floating dtype and device.

        Raises:
            ValueError: the largest logit of a row is not finite.
        """
        top_k, width = min(self.top_k, logits.shape[1]), self.top_k
        # Few logits tie with the k-th. Taking twice the top k usually covers all ties, and costs
        # less than a count.
        while True:
            width = min(2 * width, logits.shape[1])
            values, token_ids = logits.topk(width, dim=1)
            smallest = values[:, top_k - 1, None]
            if width == logits.shape[1] or not (values[:, -1:] == smallest).any():
                break
        if not values[:, 0].isfinite().all():
            raise ValueError(
                f"logits must be finite, got {values[:, 0].max()}. The model diverged in training."
            )
        # Sort by id, because topk orders ties differently on each device.
        token_ids, order = token_ids.sort(dim=1)
        # Candidates below the k-th logit get probability 0.
        kept = (
            values.masked_fill(values < smallest, -torch.inf).gather(1, order).cpu().double()
            / self.temperature
        )
        return TokenDistribution(
            token_ids=token_ids.cpu().numpy(), probabilities=kept.softmax(dim=1).numpy()
        )


def uniforms(
    seed: int, stream: str, secret_id: str, num_samples: int, num_tokens: int
) -> NDArray[np.float64]:
    """Return [num_samples, num_tokens] numbers in [0, 1) that depend on the arguments alone.

    A secret's draws do not depend on the other secrets, on the batch size or on the device. Two
    models get the same draws, so a comparison of models with one seed is a paired comparison.
    """
    return keyed_generator(seed, stream, secret_id).random((num_samples, num_tokens))


def keyed_generator(*parts: int | str) -> np.random.Generator:
    """Return a generator that depends on the parts alone: a seed, the purpose and a secret's id."""
    # Philox is counter-based: a stream for each key, without any state to share.
    key = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:16]
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key)))


def stop_tokens(model: LoadedModel) -> NDArray[np.int64]:
    """Return the token ids that end a generation: the model's and the tokenizer's."""
    configured = cast("PreTrainedModel", model.model).generation_config.eos_token_id
    # generation_config holds one id, a list of ids, or none.
    own = configured if isinstance(configured, list) else [configured]
    return np.array(
        [token for token in (*own, model.tokenizer.eos_token_id) if token is not None], np.int64
    )


def sample_continuations(
    model: LoadedModel,
    prompts: Sequence[Sequence[int]],
    draws: Sequence[NDArray[np.float64]],
    sampling: Sampling,
    *,
    stop: NDArray[np.int64],
) -> list[list[list[int]]]:
    """Sample continuations of every prompt.

    All prompts of a batch are read once, together. The samples of one prompt share a cache row as
    long as their tokens agree.

    Args:
        model: a loaded model on any device, in any dtype.
        prompts: non-empty lists of token ids.
        draws: for each prompt [num_samples, max_new_tokens] uniform numbers (see `uniforms`).
            num_samples must be equal for all prompts; max_new_tokens may differ.
        sampling: top_k and temperature.
        stop: token ids that end a sample. The sample includes the token that ends it.

    Returns:
        Token ids by prompt and sample, without the prompt.

    Guarantee:
        A prompt's samples do not depend on the other prompts, up to the rounding of batched matrix
        products.
    """
    lengths = np.array([len(p) + d.shape[1] for p, d in zip(prompts, draws, strict=True)], np.int64)
    samples: list[list[list[int]]] = [[] for _ in prompts]
    with evaluating(model.model):
        # All samples of a batch hold their own cache rows in the worst case.
        for batch in batches_by_length(lengths, MAX_CACHED_TOKENS // draws[0].shape[0]):
            decoder = CachedDecoder(model.model, [prompts[i] for i in batch])
            for i, tokens in zip(
                batch,
                _sample_batch(decoder, [draws[i] for i in batch], sampling, stop),
                strict=True,
            ):
                samples[i] = tokens
    return samples


def _sample_batch(
    decoder: CachedDecoder,
    draws: Sequence[NDArray[np.float64]],
    sampling: Sampling,
    stop: NDArray[np.int64],
) -> list[list[list[int]]]:
    """Sample continuations of the prompts of one batch; [prompt][sample] token ids."""
    # Every sample has an owner, the prompt that it continues.
    owner = np.repeat(np.arange(len(draws)), [len(d) for d in draws])
    numbers = [row for d in draws for row in d]  # the uniform numbers of each sample
    tokens: list[list[int]] = [[] for _ in numbers]
    # Each unfinished sample has the decoder row that it continues. All samples of a prompt begin in
    # its one row of the cache.
    alive, row = (np.arange(len(numbers)), owner)
    logits = decoder.read()[:, -1]
    while True:
        # Draw the next token of every unfinished sample.
        position = len(tokens[alive[0]])
        drawn = sampling.distribution(logits).draw(
            row, np.array([numbers[s][position] for s in alive])
        )
        for sample, token in zip(alive, drawn, strict=True):
            tokens[sample].append(int(token))
        # Drop the samples that are finished: they reached their length or a stop token.
        unfinished = np.array([position + 1 < len(numbers[s]) for s in alive]) & ~np.isin(
            drawn, stop
        )
        if not unfinished.any():
            return [
                [t for t, o in zip(tokens, owner, strict=True) if o == i] for i in range(len(draws))
            ]
        # Samples of one row that drew the same token go on in one row.
        alive, row, drawn = alive[unfinished], row[unfinished], drawn[unfinished]
        branches, row = np.unique(np.stack([row, drawn], axis=1), axis=0, return_inverse=True)
        logits = decoder.step(branches[:, 0], branches[:, 1])

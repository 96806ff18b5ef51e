"""Verbatim memorisation: how often a model continues a prompt with the secret, or nearly.

The scores differ in the decoding (sampled, in expectation, greedy) and in what counts as the secret
(its tokens, its text, or either with a few edits).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from raydp.scores.base import Measurement, OneByOne, SecretKind
from raydp.scores.language.encoding import EncodedSecret, encode, secrets_of_kind
from raydp.scores.language.generation import Sampling, sample_secrets, uniforms
from raydp.scores.language.teacher_forcing import over_continuations

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raydp.models.base_models import LoadedModel
    from raydp.tasks.base import Task


class _OfVerbatimSecrets(OneByOne):
    """The common part of these scores: the secrets that they measure, and the bounds.

    Attributes:
        score_name: the name of the score in a spec, for messages.
    """

    secret_kinds: ClassVar[tuple[SecretKind, ...]] = ("verbatim",)
    score_name: ClassVar[str]

    def check(self, task: Task) -> None:
        """Raise ValueError if the task has no verbatim secrets."""
        secrets_of_kind(task, "verbatim", score=self.score_name)

    def expected_bounds(self) -> tuple[float, float]:
        """Return the bounds of a ratio, of a probability, and of 1 minus a normalised distance."""
        return 0.0, 1.0

    def _secrets(self, model: LoadedModel, task: Task) -> list[EncodedSecret]:
        """Return the task's verbatim secrets in the model's tokens."""
        return encode(model.tokenizer, secrets_of_kind(task, "verbatim", score=self.score_name))


class VerbatimMemorization(_OfVerbatimSecrets, Sampling):
    """Fraction of stochastic generations that continue a secret's prompt verbatim, token by token.

    A generation of |s2| tokens counts if it equals s2. While a generation agrees with s2, its next
    token is drawn from the distribution that one teacher-forced pass over s2 gives at that
    position. Once it differs, its other tokens do not matter. So each sample is drawn along s2 and
    dropped at the first difference. This gives the same outcomes as the token-by-token sampler with
    the same uniform numbers, at the cost of one pass.

    The standard error is over secrets. Higher is worse privacy.

    Guarantee:
        The expectation over seeds is the value of `vmr_exact` with the same top_k and temperature.

    Source: Hu et al. 2025, §2 and App. B.7; Carlini et al. 2023.
    """

    score_name: ClassVar[str] = "vmr"

    num_samples: int = Field(10, ge=1)
    """Generations per secret; 10 as in Hu et al. 2025."""

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model; deterministic in its seed.

        Each secret's value is independent of the other secrets.
        """
        secrets = self._secrets(model, task)

        def matches(logits: torch.Tensor, secret: EncodedSecret) -> NDArray[np.bool_]:
            target = np.array(secret.continuation_ids)
            draws = uniforms(seed, "vmr", secret.id, self.num_samples, len(target))
            # Each position of s2 is a row of the distribution.
            positions = np.broadcast_to(np.arange(len(target)), draws.shape)
            same: NDArray[np.bool_] = (
                self.distribution(logits).draw(positions, draws) == target
            ).all(axis=1)
            return same

        hits = np.stack(over_continuations(model, secrets, matches))  # [secret, sample]
        return Measurement.over_secrets(
            hits.mean(axis=1), ids=[secret.name for secret in secrets], num_samples=self.num_samples
        )


class TextVerbatimMemorization(VerbatimMemorization):
    """Like `vmr`, but a generation counts if its text equals the text of s2, even if the tokens
    differ.

    Both texts are decoded from token ids, without special tokens. A generation ends at the model's
    end token or after
    |s2| tokens. The uniform numbers are those of `vmr`, so a secret's value is at least its `vmr`, unless s2 itself
    contains an end token.

    Source: Hu et al. 2025, App. B.7, which compares texts.
    """

    score_name: ClassVar[str] = "vmr_text"

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model; deterministic in its seed."""
        secrets = self._secrets(model, task)
        samples = sample_secrets(model, secrets, self, self.num_samples, seed=seed)
        # Compare decoded texts: another tokenisation of the same text reveals it as well.
        texts = [
            model.tokenizer.batch_decode(generated, skip_special_tokens=True)
            for generated in samples
        ]
        targets = [
            model.tokenizer.decode(list(s.continuation_ids), skip_special_tokens=True)
            for s in secrets
        ]
        hits = [
            np.mean([text == target for text in said])
            for said, target in zip(texts, targets, strict=True)
        ]
        return Measurement.over_secrets(
            hits, ids=[secret.name for secret in secrets], num_samples=self.num_samples
        )


class ExactVerbatimMemorization(_OfVerbatimSecrets, Sampling):
    """Probability that a stochastic generation continues a secret's prompt verbatim.

    The value is the product over s2's tokens of their probability under the sampler's distribution,
    from one teacher-forced pass. It is 0 if any token is not among the k most likely.

    The standard error is over secrets; a single secret's value is exact. Higher is worse privacy.

    Guarantee:
        The value is the expectation of `vmr` with the same parameters (ties included: both use one
        function).
    """

    score_name: ClassVar[str] = "vmr_exact"

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model. The seed has no effect."""
        secrets = self._secrets(model, task)

        # The product of conditional probabilities is P(s2 | s1), truncated to the top k.
        def probability(logits: torch.Tensor, secret: EncodedSecret) -> float:
            return float(
                self.distribution(logits).probability_of(np.array(secret.continuation_ids)).prod()
            )

        values = over_continuations(model, secrets, probability)
        return Measurement.over_secrets(values, ids=[secret.name for secret in secrets])


class GreedyVerbatimMemorization(_OfVerbatimSecrets):
    """1 if greedy decoding continues a secret's prompt with exactly the secret, 0 otherwise.

    Greedy decoding gives s2 if and only if each token of s2 is the most likely one after s1 and the
    tokens of s2 before it. So one teacher-forced pass decides. If tokens tie for the most likely,
    the one that torch.max returns counts.

    The standard error is over secrets. Higher is worse privacy.

    Source: Hu et al. 2025, §2 (VMR as an indicator); Carlini et al. 2023, Definition 3.1.
    """

    score_name: ClassVar[str] = "vmr_greedy"

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model. The seed has no effect."""
        secrets = self._secrets(model, task)

        def matches(logits: torch.Tensor, secret: EncodedSecret) -> bool:
            largest, tokens = logits.max(dim=-1)
            if not largest.isfinite().all():
                raise ValueError(
                    f"logits must be finite, got {largest.max()}. The model diverged in training."
                )
            return tokens.tolist() == list(secret.continuation_ids)

        values = over_continuations(model, secrets, matches)
        return Measurement.over_secrets(values, ids=[secret.name for secret in secrets])


class NearVerbatimMemorization(_OfVerbatimSecrets, Sampling):
    """Fraction of stochastic generations that are close to a secret's continuation.

    A generation of at most |s2| tokens counts if its normalised edit distance from s2 is at most
    max_distance. The distance is normalised by the longer of the two. The uniform numbers are those
    of `vmr`. With unit tokens a secret's value is therefore at least its `vmr`, with unit
    characters at least its `vmr_text`, unless s2 itself contains an end token.

    The standard error is over secrets. Higher is worse privacy.

    Source: Ippolito et al. 2023 (approximate memorisation); 10 % is the threshold of Gemma Team
    2024.
    """

    score_name: ClassVar[str] = "vmr_near"

    num_samples: int = Field(10, ge=1)
    """Generations per secret; 10 as in Hu et al. 2025."""
    max_distance: float = Field(0.1, ge=0, lt=1)
    """Largest normalised edit distance at which a generation counts; 0 is equality, 0.1 as in Gemma
    Team 2024."""
    unit: Literal["characters", "tokens"] = "characters"
    """The unit that an edit changes: a character of the decoded text (without special tokens), or a
    token."""
    graded: bool = False
    """Instead of the fraction, use 1 - distance of the closest generation.

    More samples can only raise this value.
    """

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model; deterministic in its seed.

        Each secret's value is independent of the other secrets.
        """
        secrets = self._secrets(model, task)
        samples = sample_secrets(model, secrets, self, self.num_samples, seed=seed)
        values = [
            self._value(model, secret, generated)
            for secret, generated in zip(secrets, samples, strict=True)
        ]
        return Measurement.over_secrets(
            values, ids=[secret.name for secret in secrets], num_samples=self.num_samples
        )

    def _value(self, model: LoadedModel, secret: EncodedSecret, samples: list[list[int]]) -> float:
        """Return the value of one secret from its generations."""
        target, generated = list(secret.continuation_ids), samples
        # Edit distances of characters are computed on code points.
        if self.unit == "characters":
            texts = model.tokenizer.batch_decode([target, *samples], skip_special_tokens=True)
            target, *generated = [[ord(character) for character in text] for text in texts]
        distances = np.array([normalised_edit_distance(target, sample) for sample in generated])
        return (
            float(1 - distances.min())
            if self.graded
            else float((distances <= self.max_distance).mean())
        )


def normalised_edit_distance(a: Sequence[int], b: Sequence[int]) -> float:
    """Return the Levenshtein distance of two sequences over the length of the longer one.

    Returns:
        0 for equal sequences (two empty ones included), 1 for sequences that have nothing in
        common.

    Source: Levenshtein 1966; the recursion of Wagner and Fischer 1974, one row at a time.
    """
    left, right = np.asarray(a, np.int64), np.asarray(b, np.int64)
    if not max(len(left), len(right)):
        return 0.0
    columns = np.arange(len(right) + 1)
    row = columns.copy()
    for i, symbol in enumerate(left, start=1):
        # Take deletion and substitution for the whole row at once.
        best = np.minimum(row[1:] + 1, row[:-1] + (right != symbol))
        # A cell also follows from its left neighbour by one insertion, so take a running minimum
        # along the row.
        row = np.minimum.accumulate(np.concatenate([[i], best]) - columns) + columns
    return float(row[-1]) / max(len(left), len(right))

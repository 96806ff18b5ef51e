"""Exposure of planted canaries (Carlini et al. 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field
from scipy.special import gammaln

from raydp.extensions.exposure.alternatives import log_probabilities_of
from raydp.extensions.exposure.skew_normal import log_tail
from raydp.scores.language.encoding import encode, secrets_of_kind
from raydp.scores.language.generation import keyed_generator
from raydp.scores.score import Measurement, OneByOne

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raydp.models.base_models import LoadedModel
    from raydp.tasks.task import Secret, Space, Task


_Tokenised = dict[str, tuple[int, ...]]
"""Continuations and their token ids."""


@dataclass(frozen=True, kw_only=True)
class _Exposure:
    """The exposure of one secret.

    Attributes:
        bits: the exposure.
        by_chance: the expected exposure if every rank is equally likely.
        sampling_variance: variance of bits from the draws; 0 if all of R was ranked, None if a fit
            was used.
        at_resolution: no drawn sequence is as likely as the secret, so that the exposure may be
            higher.
        fit: whether the fit of the extrapolation was accepted; None if there was none.
    """

    bits: float
    by_chance: float
    sampling_variance: float | None = 0.0
    at_resolution: bool = False
    fit: bool | None = None


class Exposure(OneByOne):
    """How far up a canary ranks among everything that could have been planted in its place, in
    bits.

    The exposure is log2 |R| - log2 rank. R is the space that the canary was drawn from. The rank is
    by log-probability in R, 1 for the most likely; ties take the middle rank. The exposure is log2
    |R| for a canary that the model prefers to all others. It is 1.44 (log2 e) on average if the
    model knows nothing of the canary; half of all canaries then have at least 1 bit.

    The score measures the verbatim secrets that know their space: those of the task `planted`, and
    the extensions of `builtin`.

    The standard error is over secrets. Higher is worse privacy. A logarithmic score has no relative
    privacy risk.

    Details: `by_chance` is the expected value for a model that knows nothing. `most` is the mean of
    log2 |R|. `sampled` is the number of secrets whose rank is estimated. `sampling_std_error` is
    the standard error of the mean from this estimation (None if a fit was used, whose error is
    unknown). `at_resolution` is the number of secrets whose exposure may be higher. With
    extrapolate there is also `fits_rejected`.

    Source: Carlini et al. 2019 ("The Secret Sharer"), §4.2 to 4.5.
    """

    log_base: ClassVar[float | None] = 2.0
    no_leak: ClassVar[float | None] = 1 / math.log(2)
    in_words: ClassVar[str | None] = (
        "a planted secret is among the likeliest 1 in {times} of its form (by chance: 1 in 2.7)"
    )

    logarithmic: ClassVar[bool] = True

    max_enumerated: int = Field(10_000, ge=2)
    """Largest space that is ranked completely; of a larger space a sample is ranked."""
    num_samples: int = Field(4_095, ge=50)
    """m, the size of the sample of a large space.

    The exposure is then -log2 (rank in the sample / (m + 1)), at most log2 (m + 1).
    """
    extrapolate: bool = False
    """For sampled spaces, compute the exposure from a skew-normal distribution fitted to the
    sample; at most log2 |R|. If one half of the sample rejects the fit to the other half
    (Kolmogorov-Smirnov, 1 %), the rank in the sample is used."""

    def check(self, task: Task) -> None:
        """Raise ValueError if the task has no verbatim secret with a space."""
        _with_space(task)

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model, deterministically in its seed, each secret independently of the rest."""
        # A small space is tokenised once for all its secrets.
        pairs = _with_space(task)
        spaces = {
            space: _tokenised(model, space, range(space.size)) for space in self._enumerated(pairs)
        }
        exposures = [
            self._exposure(model, secret, space, spaces.get(space), seed) for secret, space in pairs
        ]
        enumerated = [space.size <= self.max_enumerated for _, space in pairs]
        measured = Measurement.over_secrets(
            [e.bits for e in exposures],
            ids=[secret.name for secret, _ in pairs],
            num_samples=1 if all(enumerated) else self.num_samples,
        )
        details: dict[str, float | None] = {
            "by_chance": float(np.mean([e.by_chance for e in exposures])),
            "most": float(np.mean([math.log2(space.size) for _, space in pairs])),
            "sampled": enumerated.count(False),
            "sampling_std_error": _root_of_sum(
                [e.sampling_variance for e in exposures], len(exposures)
            ),
            "at_resolution": sum(e.at_resolution for e in exposures),
        }
        if self.extrapolate:
            details["fits_rejected"] = sum(e.fit is False for e in exposures)
        return replace(measured, details=details)

    def expected_bounds(self) -> tuple[float, float]:
        """Return the bounds: from the last rank to the first rank of a space of any size."""
        return 0.0, math.inf

    def _enumerated(self, pairs: Sequence[tuple[Secret, Space]]) -> set[Space]:
        """Return the spaces that are ranked completely."""
        return {space for _, space in pairs if space.size <= self.max_enumerated}

    def _exposure(
        self, model: LoadedModel, secret: Secret, space: Space, whole: _Tokenised | None, seed: int
    ) -> _Exposure:
        """Return the exposure of a secret, ranked in `whole`, or in a sample if `whole` is None."""
        # Rank the secret among the others.
        others = whole or _tokenised(model, space, _draw(secret, space, self.num_samples, seed))
        own, rest = _log_probabilities(model, secret, others)
        # Ties take the middle rank: equal sequences must not look like an exposure.
        above = float((rest > own).sum() + (rest == own).sum() / 2)
        by_chance = _by_chance(len(rest) + 1)
        if whole is not None:
            return _Exposure(bits=math.log2(space.size) - math.log2(1 + above), by_chance=by_chance)
        # Estimate the exposure from the rank in the sample. The +1 counts the secret itself, so
        # that the estimate never claims more than the sample can show.
        share = (1 + above) / (len(rest) + 1)
        sampled = _Exposure(
            bits=-math.log2(share),
            by_chance=by_chance,
            # Binomial: var(log2 q) = (1 - q) / (q m ln² 2).
            sampling_variance=(1 - share) / (share * len(rest) * math.log(2) ** 2),
            at_resolution=above == 0,
        )
        if not self.extrapolate:
            return sampled
        # Extrapolate the tail with the fitted distribution (Carlini et al. 2019, §4.5), unless the
        # fit was rejected.
        log_share = log_tail(rest, own)
        if log_share is None:
            return replace(sampled, fit=False)
        bits = min(-log_share / math.log(2), math.log2(space.size))
        return _Exposure(bits=bits, by_chance=math.log2(math.e), sampling_variance=None, fit=True)


def _with_space(task: Task) -> list[tuple[Secret, Space]]:
    """Return the secrets that can be ranked, each with its space."""
    secrets = secrets_of_kind(task, "verbatim", score="exposure")
    pairs = [(secret, secret.space) for secret in secrets if secret.space is not None]
    if not pairs:
        raise ValueError(
            "task.secrets must know the space of their continuations for the score 'exposure', got "
            f"{len(secrets)} without. Plant canaries with the task planted, or choose another "
            "score."
        )
    return pairs


def _draw(secret: Secret, space: Space, num_samples: int, seed: int) -> list[int]:
    """Draw positions in the space. They depend on the secret and the seed alone."""
    positions: list[int] = (
        keyed_generator(seed, "exposure", secret.id).integers(space.size, size=num_samples).tolist()
    )
    return positions


def _tokenised(model: LoadedModel, space: Space, indices: Sequence[int]) -> _Tokenised:
    """Tokenise members of a space in the same way as secrets."""
    texts = [space.continuation(i) for i in indices]
    ids = model.tokenizer(texts, add_special_tokens=False)["input_ids"]
    return dict(zip(texts, map(tuple, ids), strict=True))


def _log_probabilities(
    model: LoadedModel, secret: Secret, others: _Tokenised
) -> tuple[float, NDArray[np.float64]]:
    """Return log-probabilities of the secret and of [others], from the same forward passes."""
    (encoded,) = encode(model.tokenizer, [secret])
    # A drawn member may be the secret itself; it would tie with itself.
    rest = [ids for text, ids in others.items() if text != secret.continuation]
    values = log_probabilities_of(model, encoded.prompt_ids, [encoded.continuation_ids, *rest])
    return float(values[0]), values[1:]


def _root_of_sum(variances: Sequence[float | None], count: int) -> float | None:
    """Return the standard error of a mean of independent values; None if a variance is unknown."""
    known = [v for v in variances if v is not None]
    return math.sqrt(sum(known)) / count if len(known) == count else None


def _by_chance(size: int) -> float:
    """Return the mean of log2 size - log2 rank over all ranks of a space."""
    # (1/n) Σ_r (log2 n - log2 r) = log2 n - log2(n!)/n, with gammaln(n + 1) = ln n!.
    return math.log2(size) - float(gammaln(size + 1)) / (size * math.log(2))

"""Contenders: configurations that may have the lowest score, given few seeds and secrets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.selection.equivalents import CONFIDENCE, unknown_errors
from raydp.analysis.statistics.noise import FARTHEST, SeedNoise, combined_degrees, secret_errors
from raydp.analysis.statistics.spread import unit_of
from raydp.analysis.tables.points import configurations
from raydp.search_spaces.configuration import Hyperparameters

Array = NDArray[np.float64]
ALONE = "only one configuration was compared"
"""The reason of an unknown verdict on a single configuration."""
Verdict = Literal["supported", "undecided", "contradicted", "unknown"]

DRAWS = 4000
MOST_COMPARED = 300
"""The largest number of configurations compared pairwise: the lowest means of a larger pool."""


class Contender(Hyperparameters):
    """One compared configuration. Figures are None if the errors of the means are unknown."""

    score: float
    std_error: float | None
    indistinguishable: bool | None
    probability: float | None


@dataclass(frozen=True, kw_only=True)
class Contenders:
    """Configurations that may have the lowest score at a confidence.

    Attributes:
        verdict: "supported": only the selected configuration may have the lowest score.
            "undecided": the selected configuration and others may have it. "contradicted": the
            selected configuration does not have it, at the stated confidence. "unknown": the errors
            of the means are unknown (see `unknown_errors`), or only one configuration was compared.
        confidence: the confidence of the verdict.
        levels: the sources of error that are counted: "seeds", "secrets".
        rows: the compared configurations by mean score: batch_size, num_steps, learning_rate,
            score, std_error, whether it is "indistinguishable" from the lowest, and the
            "probability" that it is the lowest.
        reason: why the verdict is "unknown". None if it is known.
    """

    verdict: Verdict
    confidence: float
    levels: tuple[str, ...]
    rows: tuple[Contender, ...]
    reason: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the contenders as data for JSON, without the reason."""
        return {
            "verdict": self.verdict,
            "confidence": self.confidence,
            "levels": list(self.levels),
            "configurations": list(self.rows),
        }


def contenders(
    means: pd.DataFrame,
    pool: NDArray[np.bool_],
    selected: int,
    *,
    by_secret: Array | None = None,
    draws: Array | None = None,
    confidence: float = CONFIDENCE,
    num_draws: int = DRAWS,
    seed: int = 0,
) -> Contenders:
    """Compare the members of a pool by their mean scores.

    Args:
        means: configuration means.
        pool: [m] whether a configuration is a member of the pool.
        selected: the position of the selected configuration.
        by_secret: [m, k] means by secret, to include the choice of secrets in the errors.
        draws: [num_draws, m] joint draws of the true scores, for the probabilities. None: the
            errors are drawn around the means, as if nothing else were known.
        confidence: of the marked set.
        num_draws, seed: number of draws of the errors, and their seed.

    Guarantee:
        The configurations marked "indistinguishable" include the one with the truly lowest score
        with the confidence or more. This holds if the values of the seeds and of the secrets are
        Gaussian and the variances over seeds follow the model of `SeedNoise`. Nothing is assumed
        about how the secrets' values vary together. The marked set is a set for multiple
        comparisons with the best. Member i is left out if its excess over some j is significant by
        Welch's t test of the two means (paired by secret), at 1 − confidence divided by the number
        of comparisons (Bonferroni). With two or three secrets, only an excess of dozens of standard
        errors is significant, because so few secrets do not tell how large the error is. Of a pool
        of more than 300, the lowest and the selected one are compared, 300 in all, at the
        significance level of the whole pool.

    Source: Hsu 1981 (multiple comparisons with the best); Welch 1947; Smyth 2004.
    """
    # Express all scores in one unit, so that extreme magnitudes do not lose precision.
    if by_secret is not None and by_secret.shape[1] < 2:
        by_secret = None  # one secret does not tell how much others may differ
    own, score = (
        SeedNoise.of(means["score_std"].to_numpy(), means["num_seeds"].to_numpy()),
        means["score"].to_numpy(),
    )
    of_secret = np.empty(0) if by_secret is None else (by_secret - by_secret.min()).ravel()
    unit = unit_of(
        np.concatenate([score - score.min(), [0.0] if own is None else own.std, of_secret])
    )
    score = score / unit
    # Sort the members by mean score, and limit their number.
    members = np.flatnonzero(pool)
    members = members[np.argsort(score[members], kind="stable")]
    # Bonferroni counts the whole pool, because the scores decide which members are compared.
    others = max(1, len(members) - 1)
    if len(members) > MOST_COMPARED:
        lowest = members[:MOST_COMPARED]
        members = lowest if selected in lowest else np.append(lowest[:-1], selected)
    # Draw the errors of the means, over seeds and over secrets, unless the true scores were drawn
    # before.
    num_draws = num_draws if draws is None else 0
    noise = None if own is None else own.over(unit)
    rng = np.random.default_rng(seed)
    errors, of_secrets = np.zeros((num_draws, len(members))), np.zeros((len(members), len(members)))
    if noise is not None:
        noise = noise.take(members)
        errors += noise.draw(rng, num_draws)
    if by_secret is not None:
        drawn, of_secrets = secret_errors(by_secret[members] / unit, rng, num_draws)
        errors += drawn
    # Compare every two members, and derive the verdict.
    levels = tuple(
        name for name, known in (("seeds", noise), ("secrets", by_secret)) if known is not None
    )
    compared = _Compared(
        score=score[members],
        noise=noise,
        of_secrets=of_secrets,
        num_secrets=0 if by_secret is None else by_secret.shape[1],
        level=(1 - confidence) / others,
    )
    drawn = score[members] + errors if draws is None else draws[:, members]
    # Only a second seed shows how far chance moves a score: without one there is no verdict.
    reason = unknown_errors(means)
    rows = _rows(means.iloc[members], compared if reason is None else None, unit, drawn)
    if reason is not None:
        return Contenders(
            verdict="unknown", confidence=confidence, levels=(), rows=rows, reason=reason
        )
    if len(members) == 1:
        rows[0]["probability"] = None
        return Contenders(
            verdict="unknown", confidence=confidence, levels=levels, rows=rows, reason=ALONE
        )
    inside = compared.may_be_lowest
    if not inside[members == selected].any():
        verdict: Verdict = "contradicted"
    else:
        verdict = "undecided" if inside.sum() > 1 else "supported"
    return Contenders(verdict=verdict, confidence=confidence, levels=levels, rows=rows)


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """The k compared members, sorted by mean score.

    Attributes:
        score: [k] means, ascending.
        noise: noise over seeds, None if it is unknown.
        of_secrets: [k, k] covariance of the errors over secrets.
        num_secrets: number of secrets, 0 if their choice is not counted.
        level: significance level of one comparison.
    """

    score: Array
    noise: SeedNoise | None
    of_secrets: Array
    num_secrets: int
    level: float

    @cached_property
    def variances(self) -> Array:
        """Return the variances of the errors over seeds, shape [k]."""
        return np.zeros(len(self.score)) if self.noise is None else self.noise.std_error() ** 2

    @cached_property
    def scale_of_secrets(self) -> Array:
        """Return the standard errors over secrets of the pairwise differences, shape [k, k]."""
        own = np.diag(self.of_secrets)
        # Var(a - b) = Var(a) + Var(b) - 2 Cov(a, b). Rounding may leave a tiny negative value.
        scale: Array = np.sqrt(np.maximum(own[:, None] + own - 2 * self.of_secrets, 0))
        return scale

    @cached_property
    def may_be_lowest(self) -> NDArray[np.bool_]:
        """Return whether each member may have the lowest score, shape [k]."""
        variances = self.variances
        scale = np.sqrt(self.scale_of_secrets**2 + variances[:, None] + variances)
        excess = self.score[:, None] - self.score
        # A member stays if it exceeds no other member significantly (Hsu 1981).
        inside: NDArray[np.bool_] = np.all(excess <= self.critical * scale, axis=1)
        return inside

    @cached_property
    def critical(self) -> Array:
        """Return the critical value of each difference, in standard errors, at `level`, [k, k]."""
        from scipy.special import stdtrit

        # Two variances over seeds may share one estimate, so their sum has no more degrees of
        # freedom than either.
        own = np.ones(len(self.score)) if self.noise is None else self.noise.degrees
        variances = self.variances
        degrees = combined_degrees(
            np.sqrt(variances[:, None] + variances),
            np.minimum(own[:, None], own),
            self.scale_of_secrets,
            max(1, self.num_secrets - 1),
        )
        quantiles: Array = (-stdtrit(degrees, self.level)).clip(max=FARTHEST)
        return quantiles


def _rows(
    listed: pd.DataFrame, compared: _Compared | None, unit: float, draws: Array
) -> tuple[Contender, ...]:
    """Return the compared configurations as data for JSON.

    Args:
        unit: the unit of the compared scores.
        draws: [num_draws, k] draws of the true scores, in any unit.
    """
    rows: list[Contender] = [
        {
            **c.to_json(),
            "score": float(score),
            "std_error": None,
            "indistinguishable": None,
            "probability": None,
        }
        for c, score in zip(configurations(listed), listed["score"], strict=True)
    ]
    if compared is None:
        return tuple(rows)
    own = unit * np.sqrt(np.diag(compared.of_secrets) + compared.variances)
    probability = np.bincount(draws.argmin(axis=1), minlength=len(rows)) / len(draws)
    figures = zip(own.tolist(), compared.may_be_lowest.tolist(), probability.tolist(), strict=True)
    for row, (error, inside, share) in zip(rows, figures, strict=True):
        row["std_error"], row["indistinguishable"], row["probability"] = error, inside, share
    return tuple(rows)

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
from raydp.analysis.statistics.spread import t_quantile, unit_of
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
    # Bonferroni counts the whole pool, because the scores decide which members are compared.
    level = (1 - confidence) / max(1, int(pool.sum()) - 1)
    members = _lowest(means["score"].to_numpy(), pool, selected)
    # Draw the errors of the means, unless the true scores were drawn before.
    rng, num_draws = np.random.default_rng(seed), num_draws if draws is None else 0
    compared = _Compared.of(means, members, by_secret, level, rng, num_draws)
    drawn = compared.drawn if draws is None else draws[:, members]
    # Only a second seed shows how far chance moves a score: without one there is no verdict.
    unknown = unknown_errors(means)
    reason = ALONE if unknown is None and len(members) == 1 else unknown
    return Contenders(
        verdict=compared.verdict(members == selected) if reason is None else "unknown",
        confidence=confidence,
        levels=compared.levels if unknown is None else (),
        rows=_rows(means.iloc[members], compared if unknown is None else None, drawn),
        reason=reason,
    )


def _lowest(score: Array, pool: NDArray[np.bool_], selected: int) -> NDArray[np.intp]:
    """Return the members to compare, by score: the lowest ones, and the selected one."""
    members = np.flatnonzero(pool)
    members = members[np.argsort(score[members], kind="stable")]
    lowest = members[:MOST_COMPARED]
    holds = len(members) == len(lowest) or selected in lowest
    return lowest if holds else np.append(lowest[:-1], selected)


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """The k compared members, sorted by mean score.

    Attributes:
        unit: the unit of the scores, in which extreme magnitudes do not lose precision.
        score: [k] means, ascending.
        noise: noise over seeds, None if it is unknown.
        of_secrets: [k, k] covariance of the errors over secrets.
        num_secrets: number of secrets, 0 if their choice is not counted.
        level: significance level of one comparison.
        drawn: [num_draws, k] the means with drawn errors over seeds and secrets.
    """

    unit: float
    score: Array
    noise: SeedNoise | None
    of_secrets: Array
    num_secrets: int
    level: float
    drawn: Array

    @classmethod
    def of(
        cls,
        means: pd.DataFrame,
        members: NDArray[np.intp],
        by_secret: Array | None,
        level: float,
        rng: np.random.Generator,
        num_draws: int,
    ) -> _Compared:
        """Express the figures of the members in one unit, and draw the errors of their means."""
        if by_secret is not None and by_secret.shape[1] < 2:
            by_secret = None  # one secret does not tell how much others may differ
        score = means["score"].to_numpy()
        own = SeedNoise.of(means["score_std"].to_numpy(), means["num_seeds"].to_numpy())
        of_secret = np.empty(0) if by_secret is None else (by_secret - by_secret.min()).ravel()
        unit = unit_of(
            np.concatenate([score - score.min(), [0.0] if own is None else own.std, of_secret])
        )
        # Draw the errors over seeds, then those over secrets.
        noise = None if own is None else own.divided_by(unit).take(members)
        score, size = score[members] / unit, len(members)
        errors, of_secrets = np.zeros((num_draws, size)), np.zeros((size, size))
        if noise is not None:
            errors += noise.draw(rng, num_draws)
        if by_secret is not None:
            more, of_secrets = secret_errors(by_secret[members] / unit, rng, num_draws)
            errors += more
        return cls(
            unit=unit,
            score=score,
            noise=noise,
            of_secrets=of_secrets,
            num_secrets=0 if by_secret is None else by_secret.shape[1],
            level=level,
            drawn=score + errors,
        )

    @property
    def levels(self) -> tuple[str, ...]:
        """Return the sources of error that are counted."""
        counted = {"seeds": self.noise is not None, "secrets": self.num_secrets > 0}
        return tuple(name for name, is_counted in counted.items() if is_counted)

    def verdict(self, selected: NDArray[np.bool_]) -> Verdict:
        """Return the verdict on the selected member, [k]."""
        if not self.may_be_lowest[selected].any():
            return "contradicted"
        return "undecided" if self.may_be_lowest.sum() > 1 else "supported"

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
        quantiles: Array = (-t_quantile(degrees, self.level)).clip(max=FARTHEST)
        return quantiles


def _rows(listed: pd.DataFrame, compared: _Compared | None, draws: Array) -> tuple[Contender, ...]:
    """Return the compared configurations as data for JSON.

    Args:
        compared: the configurations' errors; None if they are unknown.
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
    errors = compared.unit * np.sqrt(np.diag(compared.of_secrets) + compared.variances)
    probability = np.bincount(draws.argmin(axis=1), minlength=len(rows)) / len(draws)
    figures = zip(
        errors.tolist(), compared.may_be_lowest.tolist(), probability.tolist(), strict=True
    )
    for row, (error, inside, share) in zip(rows, figures, strict=True):
        row["std_error"], row["indistinguishable"] = error, inside
        # A single configuration is compared with nothing.
        row["probability"] = share if len(rows) > 1 else None
    return tuple(rows)

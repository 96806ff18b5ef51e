"""Which configuration gets another seed, and when further seeds end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.selection.choice import select
from raydp.analysis.selection.constraints import Constraints
from raydp.analysis.selection.evidence import keep_utility
from raydp.analysis.selection.selected import Selection
from raydp.analysis.statistics.noise import SeedNoise
from raydp.analysis.surface.hierarchy import loss_posterior
from raydp.analysis.surface.outlook import more_secrets, outlook
from raydp.analysis.surface.posterior import Posterior
from raydp.analysis.surface.what_if import MeasuredScores
from raydp.analysis.tables.per_secret import base_of
from raydp.analysis.tables.points import configurations, require_hyperparameters
from raydp.search_spaces import Configuration

Array = NDArray[np.float64]
Pool = NDArray[np.bool_]
EndState = Literal[
    "decided",
    "equivalent",
    "only one",
    "nothing leaks",
    "answered",
    "secrets are short",
    "budget used up",
    "no selection",
]

# a configuration that is the best with a smaller probability gets no further seed
_NEGLIGIBLE = 0.01
LEAST_SHRINKAGE = 0.05  # of the standard deviation of the difference between two scores


@dataclass(frozen=True, kw_only=True)
class SeedLimits:
    """Bounds on the cost of further seeds, and the confidence and tolerance of a decision.

    Attributes:
        at_most: largest number of seeds of one configuration.
        compute: what the further runs may cost together from now on, in examples (b·T).
        confidence, tolerance: as for `select`.
    """

    at_most: int
    compute: float
    confidence: float
    tolerance: float


@dataclass(frozen=True, kw_only=True)
class NextSeed:
    """The next run of a sweep whose seeds go where they matter, or the end of its seeds.

    Attributes:
        configuration: the configuration that gets another seed; None at the end.
        state: how the seeds ended; None before the end. "decided", "equivalent" and "only one" are
            the states of the selection's decision. "nothing leaks": no configuration leaks
            measurably, and the selection is by utility. "answered": the question that several
            sweeps share has its answer. "secrets are short": further seeds would
            hardly shrink the errors. "no selection": no configuration keeps to the constraints.
        reason: why, in a sentence; None before the end, and if the state says all.
        limit: the limit that ended the seeds, if further seeds may decide.
    """

    configuration: Configuration | None = None
    state: EndState | None = None
    reason: str | None = None
    limit: Literal["at_most", "max_cost_share"] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the decision is open: a seed may close it, or the seeds ended without it."""
        return self.state in (None, "secrets are short", "budget used up")


def next_seed(
    points: pd.DataFrame,
    constraints: Constraints,
    limits: SeedLimits,
    *,
    begun: Mapping[Configuration, int],
    by_secret: tuple[pd.DataFrame, str] | None = None,
    log_base: float | None = None,
    no_leak: float | None = 0.0,
) -> NextSeed:
    """Decide which configuration gets another seed.

    Args:
        points: the points table of the runs that have ended.
        constraints: the constraints of the selection.
        limits: the limits of the further runs.
        begun: configuration -> number of its runs that have begun.
        by_secret, log_base, no_leak: as for `select`.

    The rule is top-two Thompson sampling: the leader is the best configuration in one draw of all
    true scores and losses from the posterior, and its challenger is the best one of another draw.
    Of the two, the configuration is chosen whose next seed shrinks the variance of their difference
    most for its compute.

    The seeds end when the decision has its confidence. It may be looked at after every run, because
    a posterior does not depend on the rule by which one stops: if every decision is stated with a
    probability of at least 95 %, at least 95 % of the decisions are right, on average over the
    prior. This holds under the model of `score_posterior`; docs/decision.md has the shares that
    were measured where the model does not hold.

    Source: Russo 2020, "Simple Bayesian Algorithms for Best-Arm Identification", sections 3 and 4;
    Shang et al. 2020, "Fixed-confidence guarantees for Bayesian best-arm identification"; Berger
    and Wolpert 1988, "The Likelihood Principle", section 4.2, for the stopping rule.
    """
    points = require_hyperparameters(points)
    confidence, tolerance = limits.confidence, limits.tolerance
    try:
        selection = select(
            points,
            **asdict(constraints),
            by_secret=by_secret,
            log_base=log_base,
            no_leak=no_leak,
            confidence=confidence,
            tolerance=tolerance,
        )
    except ValueError as error:  # no configuration keeps to the constraints
        return NextSeed(state="no selection", reason=str(error))
    # If nothing leaks measurably, the scores differ by chance alone, and seeds cannot rank them.
    if selection.nothing_leaks:
        return NextSeed(state="nothing leaks", reason=selection.explanation)
    race = _Race.of(points, constraints, selection, by_secret, log_base, no_leak)
    decision = selection.decision
    assert decision is not None, "a rule decides"
    # A decision ends the seeds only if it also holds against configurations of doubtful utility.
    if decision.state != "undecided" and race.is_over(confidence=confidence, tolerance=tolerance):
        return NextSeed(state=decision.state)
    return _seed_or_end(race, limits, begun)


def _seed_or_end(race: _Race, limits: SeedLimits, begun: Mapping[Configuration, int]) -> NextSeed:
    """Return the seed that top-two Thompson sampling draws, or why no further seed is worth it."""
    seeds = np.array([begun.get(c, 0) for c in race.listed])
    measured, rivals = race.measured, race.rivals
    may_run = rivals & (seeds < limits.at_most)
    confidence, tolerance = limits.confidence, limits.tolerance
    # If the choice of the secrets dominates the error, no further seed can decide.
    if may_run.any() and race.seeds_are_spent(limits.at_most, confidence=confidence):
        short = (
            f"The choice of the secrets is what leaves it open: with {limits.at_most} seeds of "
            "each configuration no error of a difference would be smaller by "
            f"{100 * LEAST_SHRINKAGE:g} %, and more samples of each secret would not help either."
        )
        remedy = more_secrets(measured, rivals, confidence=confidence, tolerance=tolerance)
        return NextSeed(state="secrets are short", reason=f"{short} {remedy.sentence}")
    # Draw the leader and its challenger among the configurations that may get another seed.
    affordable = np.array([c.compute <= limits.compute for c in race.listed])
    # The seed is the number of runs that have begun, so that a resumed sweep draws alike.
    rng = np.random.default_rng([7, sum(begun.values())])
    position = race.draw((seeds < limits.at_most) & affordable, begun, rng)
    if position is not None:
        return NextSeed(configuration=race.listed[position])
    # No run fits the limits: name the limit to raise, if further seeds may decide.
    needed = outlook(measured, rivals, confidence=confidence, tolerance=tolerance)
    limit: Literal["at_most", "max_cost_share"] | None = None
    if needed.further_seeds:
        limit = "max_cost_share" if may_run.any() else "at_most"
    return NextSeed(state="budget used up", reason=needed.sentence, limit=limit)


@dataclass(frozen=True, kw_only=True)
class _Race:
    """An open decision: the configurations, with the posteriors of their scores and losses.

    Attributes:
        measured: the measured scores.
        listed: the m configurations.
        selected: position of the selected configuration.
        scores: posterior of the scores.
        useful: [num_draws, m] whether each configuration keeps to all constraints in each draw of
            the losses.
        noise: errors over seeds; None if no configuration has two seeds.
    """

    measured: MeasuredScores
    listed: list[Configuration]
    selected: int
    scores: Posterior
    useful: Pool
    noise: SeedNoise | None

    @classmethod
    def of(
        cls,
        points: pd.DataFrame,
        constraints: Constraints,
        selection: Selection,
        by_secret: tuple[pd.DataFrame, str] | None,
        log_base: float | None,
        no_leak: float | None = 0.0,
    ) -> _Race:
        log_base = base_of(None if by_secret is None else by_secret[1], log_base)
        measured = MeasuredScores.of(points, by_secret, log_base=log_base)
        measured = replace(measured, no_leak=no_leak)
        means, scores = measured.means, measured.posterior()
        # Utility is uncertain too: in each draw of the losses, other configurations may be useful.
        useful = np.ones_like(scores.draws, dtype=np.bool_)
        if constraints.bounds_utility:
            useful = keep_utility(loss_posterior(means), means, constraints)
        # The other constraints hold as measured, in every draw.
        others = replace(constraints, max_loss=None, min_gain_share=None)
        for _, _, kept in others.narrowings(points, means, by_secret):
            useful = useful & kept
        listed = configurations(means)
        return cls(
            measured=measured,
            listed=listed,
            selected=listed.index(selection.configuration),
            scores=scores,
            useful=useful,
            noise=SeedNoise.of(means["score_std"].to_numpy(), means["num_seeds"].to_numpy()),
        )

    @cached_property
    def _lowest(self) -> Array:
        """Return the lowest score of the useful configurations per draw, inf if none is useful."""
        lowest: Array = np.where(self.useful, self.scores.draws, np.inf).min(axis=1)
        return lowest

    @cached_property
    def chances(self) -> Array:
        """Return [m] probabilities of having the lowest score of all useful configurations."""
        best = self.useful & (self.scores.draws <= self._lowest[:, None])
        # Ties share their draw. A draw without a useful configuration counts for nobody.
        chances: Array = (best / np.maximum(best.sum(axis=1, keepdims=True), 1)).mean(axis=0)
        return chances

    @cached_property
    def rivals(self) -> Pool:
        """Return [m] whether a chance is not negligible; True for the selected configuration."""
        rivals = self.chances >= _NEGLIGIBLE
        rivals[self.selected] = True
        return rivals

    def is_over(self, *, confidence: float, tolerance: float) -> bool:
        """Return whether the decision also holds against configurations of doubtful utility."""
        own, useful = self.scores.draws[:, self.selected], self.useful[:, self.selected]
        lowest = self._lowest
        allowed = self.scores.highest_within(lowest, tolerance, log_base=self.measured.log_base)
        if useful.mean() < confidence:
            return False
        return bool((own <= allowed)[useful].mean() >= confidence)

    def draw(
        self, allowed: Pool, begun: Mapping[Configuration, int], rng: np.random.Generator
    ) -> int | None:
        """Draw a leader and a challenger; return the one whose next seed tells more per compute.

        Args:
            allowed: [m] whether a configuration may get another seed.
            begun: configuration -> number of its runs that have begun.

        Returns:
            The position of this configuration; None if no rival may get another seed.
        """
        rivals = self.rivals
        ready = rivals & allowed
        if not ready.any():
            return None
        weights = np.where(rivals, np.maximum(self.chances, _NEGLIGIBLE), 0.0)
        # Top-two Thompson sampling: the challenger is a draw conditioned on not being the leader.
        pair = rng.choice(
            len(weights), size=min(2, int(rivals.sum())), replace=False, p=weights / weights.sum()
        )
        # If neither may get another seed, take the likeliest configuration that may.
        candidates = [int(k) for k in pair if allowed[k]] or [
            int(np.where(ready, weights, 0.0).argmax())
        ]
        # Until some configuration has two seeds, all variances count as equal.
        variance = np.ones(len(weights)) if self.noise is None else self.noise.std**2

        def gain(k: int) -> float:
            """Return how much a seed shrinks the variance of the mean, per unit of compute."""
            seeds = begun.get(self.listed[k], 0)
            # From s to s + 1 seeds: v/s - v/(s + 1) = v / (s (s + 1)).
            return float(variance[k]) / (max(seeds, 1) * (seeds + 1) * self.listed[k].compute)

        return max(candidates, key=gain)

    def seeds_are_spent(self, at_most: int, *, confidence: float) -> bool:
        """Return whether even `at_most` seeds each would hardly shrink the rivals' errors.

        Return False while further seeds may show whether a rival is useful.
        """
        if self.measured.of_secrets is None:
            return False
        rivals = np.flatnonzero(self.rivals)
        useful = self.useful[:, rivals].mean(axis=0)
        if ((useful > 1 - confidence) & (useful < confidence)).any():
            return False
        # The errors if every configuration had the most seeds, against the errors now.
        then = _difference_std(self.measured.posterior(num_seeds=at_most), rivals, self.selected)
        now = _difference_std(self.scores, rivals, self.selected)
        return bool((then >= (1 - LEAST_SHRINKAGE) * now).all())


def _difference_std(scores: Posterior, rivals: NDArray[np.intp], selected: int) -> Array:
    """Return [rivals] posterior stds of their scores minus the selected configuration's score."""
    limited = scores.limited
    std: Array = (limited[:, rivals] - limited[:, [selected]]).std(axis=0)
    return std

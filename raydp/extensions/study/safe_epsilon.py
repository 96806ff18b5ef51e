"""Which ε: the largest one whose leak keeps to a limit, from the measured scores at several ε."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.selection.equivalents import CONFIDENCE, unknown_errors
from raydp.analysis.surface.posterior import Posterior
from raydp.analysis.surface.what_if import MeasuredScores
from raydp.analysis.tables.points import configurations
from raydp.analysis.tables.utility_filter import loss_threshold, within
from raydp.search_spaces.configuration import Configuration, Hyperparameters
from raydp.search_spaces.settings import Settings, settings_in_words

Array = NDArray[np.float64]
Pool = NDArray[np.bool_]
EPSILON = "privacy.target_epsilon"
MODEL, UNIT = ("model", "model.name"), "privacy.unit"
"""Axes whose values are not chosen for their leaks, beside the task and its fields.

Leaks on other data, of other models and of other units are other questions.
"""


class SafeConfiguration(Hyperparameters):
    """A configuration with its mean figures, and the probability that its leak keeps to a limit.

    The probability is None without a limit.
    """

    probability: float | None
    score: float
    utility_loss: float


class Level(TypedDict):
    """What was found at one ε.

    Keys:
        epsilon: ε, the target.
        configurations, admissible: number of configurations, and of those that keep the utility.
        safest: the admissible configuration whose leak keeps to the limit with the highest
            probability, without a limit the one with the lowest leak; None if none is admissible.
        lowest, highest: posterior median of the lowest and of the highest leak of the admissible
            configurations.
        highest_interval: interval of the highest leak.
        probability_all: probability that every admissible configuration keeps to the limit; None
            without a limit.
    """

    epsilon: float
    configurations: int
    admissible: int
    safest: SafeConfiguration | None
    lowest: float | None
    highest: float | None
    highest_interval: list[float] | None
    probability_all: float | None


@dataclass(frozen=True, kw_only=True)
class SafeEpsilon:
    """The answer to "which ε?" on one task, model and unit.

    Attributes:
        on: the values of the axes that other answers differ in, such as the model.
        max_leak, max_loss: the limits; None without one.
        confidence: the probability that is asked for.
        levels: what was found at each ε, from the smallest to the largest.
        epsilon: the largest ε at which a configuration is admissible and keeps to the limit with
            the confidence; None if there is none.
        configuration: that configuration.
        gold: the largest ε up to which every admissible configuration of every smaller measured ε
            keeps to the limit with the confidence: what a certificate by ε alone would need. None
            if the smallest ε does not.
    """

    on: Settings
    max_leak: float | None
    max_loss: float | None
    confidence: float
    levels: tuple[Level, ...]
    epsilon: float | None
    configuration: SafeConfiguration | None
    gold: float | None


@dataclass(frozen=True, kw_only=True)
class StudyScores:
    """The scores of the m configurations of a study on equal data, modelled together.

    ln ε is a coordinate of the model, so that each ε tells of the others (see `score_posterior`).

    Attributes:
        means: configuration means.
        listed: the configurations.
        epsilons: [m] target ε.
        useful: [m] whether a configuration keeps the utility.
        measured: the measured scores.
        posterior: their joint posterior.
        questions: values of the axes of `question_of` -> [m] whether a configuration has them, and the
            largest loss that is allowed, if there is a limit.
    """

    means: pd.DataFrame
    listed: list[Configuration]
    epsilons: Array
    useful: Pool
    measured: MeasuredScores
    posterior: Posterior
    questions: dict[Settings, tuple[Pool, float | None]]

    @classmethod
    def of(
        cls,
        points: pd.DataFrame,
        *,
        max_loss: float | None = None,
        min_gain_share: float | None = None,
        secrets: tuple[pd.DataFrame, str] | None = None,
        log_base: float | None = None,
    ) -> StudyScores:
        """Model the scores of finished runs at several ε.

        Args:
            points: finished runs on equal data and units, with the setting
                `privacy.target_epsilon`. Runs without a finite ε do not count.
            max_loss, min_gain_share: which configurations are admissible, by their mean loss. The
                share is of the best gain on the same task, model and unit.
            secrets: the values by secret and the name of the score, to include the choice of the
                secrets in the errors.
            log_base: the base of the logarithm that the score is; None if it is none.

        Raises:
            ValueError: the table has no ε, or one alone, or does not tell the errors of its scores.
        """
        if "epsilon" in points:
            points = points[np.isfinite(points["epsilon"].astype(float))]
        measured = MeasuredScores.of(points, secrets, log_base=log_base)
        means = measured.means
        listed = configurations(means)
        epsilons = np.array([_epsilon_of(c) for c in listed])
        if len(set(epsilons.tolist())) < 2:
            raise ValueError(
                "POINTS must have runs at two values of ε or more, got one. Run a study with "
                "axes: {privacy.target_epsilon: [1, 2, 4]}."
            )
        # Without errors no probability is known, as for `select`.
        if (unknown := unknown_errors(means)) is not None:
            raise ValueError(
                f"POINTS must tell the errors of the scores, got a table where {unknown}. Run another seed."
            )
        useful, questions = _useful(means, listed, max_loss, min_gain_share)
        return cls(
            means=means,
            listed=listed,
            epsilons=epsilons,
            useful=useful,
            measured=measured,
            posterior=measured.posterior(),
            questions=questions,
        )

    def answers(
        self, *, max_leak: float | None, confidence: float = CONFIDENCE
    ) -> list[SafeEpsilon]:
        """Return the largest ε whose leak keeps to a limit, and ε^gold, of each question.

        Args:
            max_leak: the largest allowed score; without one only the envelope is returned.
            confidence: the probability with which the leak must keep to the limit.

        The limit is of one model's absolute leak, so that the error which all configurations share
        counts.

        Source: Hu et al. 2025, section 3.3 and Figure 4 (ε^gold).
        """
        answers = []
        for on, (asked, max_loss) in self.questions.items():
            levels = tuple(
                self._level(asked & (self.epsilons == one), one, max_leak, confidence)
                for one in sorted(set(self.epsilons[asked].tolist()))
            )
            safe = [
                (level["epsilon"], found)
                for level in levels
                if (found := level["safest"]) is not None
                and (found["probability"] or 0.0) >= confidence
            ]
            answers.append(
                SafeEpsilon(
                    on=on,
                    max_leak=max_leak,
                    max_loss=max_loss,
                    confidence=confidence,
                    levels=levels,
                    epsilon=safe[-1][0] if safe else None,
                    configuration=safe[-1][1] if safe else None,
                    gold=_gold(levels, confidence),
                )
            )
        return answers

    def keeps(self, position: int, max_leak: float) -> float:
        """Return the probability that a configuration's leak keeps to a limit."""
        return float((self._draws(position) <= max_leak).mean())

    def doubts(self, answer: SafeEpsilon) -> Array:
        """Return [m] p (1 - p) of the probability p that a leak keeps to the limit.

        It is 0 where the answer does not hang on it. ε hangs on the doubtful configurations above
        it, and ε^gold on those of the first ε that it does not reach, if they may all keep to it.
        """
        assert answer.max_leak is not None, "only a limit leaves a doubt"
        low, high = 1 - answer.confidence, answer.confidence
        kept = np.array([self.keeps(m, answer.max_leak) for m in range(len(self.listed))])
        above = self.epsilons > (-np.inf if answer.epsilon is None else answer.epsilon)
        asked = above & (kept > low) & (kept < high)
        for level in answer.levels:
            if (share := level["probability_all"]) is not None and share < high:
                if share > low:
                    asked |= self.epsilons == level["epsilon"]
                break
        members, _ = self.questions[answer.on]
        doubts: Array = np.where(asked & members & self.useful, kept * (1 - kept), 0.0)
        return doubts

    def _draws(self, position: int) -> Array:
        """Return draws of one model's leak, with the error that all configurations share."""
        draws: Array = self.posterior.absolute_of(slice(position, position + 1))[:, 0]
        return draws

    def _level(self, at: Pool, epsilon: float, max_leak: float | None, confidence: float) -> Level:
        """Return what was found at one ε."""
        members = np.flatnonzero(at & self.useful)
        nothing: Level = {
            "epsilon": epsilon,
            "configurations": int(at.sum()),
            "admissible": len(members),
            "safest": None,
            "lowest": None,
            "highest": None,
            "highest_interval": None,
            "probability_all": None,
        }
        if not len(members):
            return nothing
        draws = np.column_stack([self._draws(int(m)) for m in members])
        keeps = None if max_leak is None else draws <= max_leak
        highest = draws.max(axis=1)
        low, high = np.quantile(highest, [(1 - confidence) / 2, (1 + confidence) / 2])
        return {
            **nothing,
            "safest": self._safest(members, draws, keeps),
            "lowest": float(np.median(draws.min(axis=1))),
            "highest": float(np.median(highest)),
            "highest_interval": [float(low), float(high)],
            "probability_all": None if keeps is None else float(keeps.all(axis=1).mean()),
        }

    def _safest(
        self, members: NDArray[np.intp], draws: Array, keeps: Pool | None
    ) -> SafeConfiguration:
        """Return the member that keeps to the limit most often; of equals, the most useful one."""
        losses = self.means["utility_loss"].to_numpy()[members]
        kept = None if keeps is None else keeps.mean(axis=0)
        leaks = np.median(draws, axis=0) if kept is None else -kept
        best = int(np.lexsort([losses, leaks])[0])
        own = self.means.iloc[members[best]]
        named: Hyperparameters = self.listed[members[best]].to_json()
        return {
            **named,
            "probability": None if kept is None else float(kept[best]),
            "score": float(own["score"]),
            "utility_loss": float(own["utility_loss"]),
        }


def sentences(answer: SafeEpsilon) -> list[str]:
    """Return an answer in words: the choice, then ε^gold; without a limit how far the leaks go."""
    levels = [level for level in answer.levels if level["highest"] is not None]
    if answer.max_leak is None and levels:
        last = levels[-1]
        return [
            f"At ε = {last['epsilon']:g} the useful configurations leak {last['lowest']:.4g} to "
            f"{last['highest']:.4g}. Give a limit to learn which ε keeps to it: --max-leak."
        ]
    if not levels:
        return ["No configuration is useful enough."]
    limit = f"a leak of at most {answer.max_leak:g}"
    sure = f"{100 * answer.confidence:g} %"
    if answer.configuration is None:
        first = f"No measured ε has a useful configuration that keeps to {limit} with {sure}."
    else:
        c = answer.configuration
        further = {k: v for k, v in (c.get("settings") or {}).items() if k != EPSILON}
        own = {k: v for k, v in further.items() if k not in answer.on}
        first = (
            f"ε = {answer.epsilon:g} is the largest that keeps to {limit} with {sure}: b = "
            f"{c['batch_size']}, T = {c['num_steps']}, η = {c['learning_rate']:g}"
            f"{', ' + settings_in_words(own) if own else ''}."
        )
    if answer.gold is not None:
        return [
            first,
            f"Up to ε = {answer.gold:g} every useful configuration keeps to it (ε^gold).",
        ]
    share = next(all_keep for e in levels if (all_keep := e["probability_all"]) is not None)
    if share > 1 - answer.confidence:
        doubt = f"keeps to it even at the smallest ε is in doubt ({100 * share:.2g} %)"
        return [first, f"Whether every useful configuration {doubt}, and so is ε^gold."]
    return [
        first,
        "Not even at the smallest ε do all useful configurations keep to it, so ε alone certifies "
        "no leak (ε^gold is below every measured ε).",
    ]


def _epsilon_of(configuration: Configuration) -> float:
    """Return the target ε of a configuration of a study."""
    value = configuration.settings.get(EPSILON)
    if isinstance(value, int | float) and not 0 < value < math.inf:
        raise ValueError(
            f"POINTS must have a finite {EPSILON} > 0 in the settings of every row, got {value:g}. "
            "Correct it."
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(
            f"POINTS must have {EPSILON} in the settings of every row, got a row without. Use the "
            "points of a study with this axis."
        )
    return float(value)


def _useful(
    means: pd.DataFrame,
    listed: list[Configuration],
    max_loss: float | None,
    min_gain_share: float | None,
) -> tuple[Pool, dict[Settings, tuple[Pool, float | None]]]:
    """Return `useful` and `questions` of `StudyScores`.

    Losses on other data or of other models say nothing of each other.
    """
    asked = np.array([question_of(c.settings).text for c in listed])
    useful, questions = np.ones(len(means), dtype=np.bool_), {}
    for text in dict.fromkeys(asked.tolist()):
        at, largest = asked == text, None
        own = means[at]
        try:
            threshold = loss_threshold(own, max_loss=max_loss, min_gain_share=min_gain_share)
        except ValueError:
            if at.all():
                raise
            # Of several models, one that gains nothing has no useful configuration.
            threshold = np.full(len(own), -np.inf)
        if threshold is not None:
            useful[at] = within(own["utility_loss"].to_numpy(), threshold)
            largest = float(threshold.max())
        questions[Settings.parse(text)] = at, largest
    return useful, questions


def question_of(settings: Settings, *, model: bool = True) -> Settings:
    """Return the values of the axes that are not chosen for their leaks.

    Args:
        model: whether the model is among them.
    """
    return Settings(
        {
            path: value
            for path, value in settings.items()
            if path == UNIT or path.split(".")[0] == "task" or (model and path in MODEL)
        }
    )


def _gold(levels: tuple[Level, ...], confidence: float) -> float | None:
    """Return the largest ε up to which all admissible configurations keep to the limit."""
    gold = None
    for level in levels:
        # An ε without admissible configurations tells nothing, and breaks no promise.
        if (share := level["probability_all"]) is None:
            continue
        if share < confidence:
            break
        gold = level["epsilon"]
    return gold

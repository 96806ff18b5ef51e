"""Log-probability of secrets, and the part of it that training caused rather than the format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

import numpy as np
from pydantic import Field

from raydp.scores.language.encoding import secrets_of_kind
from raydp.scores.language.teacher_forcing import log_probabilities
from raydp.scores.score import Measurement, OneByOne, SecretKind
from raydp.tasks.task import Secret
from raydp.tasks.wrappers.twins import TwinTask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raydp.models.base_models import LoadedModel
    from raydp.tasks.task import Task

FEWEST_TO_ADJUST = 10
"""Fewest pairs of twins from which a slope is estimated."""
MORE_CONTROLS = 5
"""Number of controls of each pair that a sweep measures if its first pass is undecided.

A pair's variance is then 0.6 of the variance with one control if texts vary alike. With any number
of controls it would be half.
"""


class LogProbability(OneByOne):
    """How much more likely training made secrets than controls of their format, in nats.

    It grades where `vmr` is 0.

    A text's log-probability is the sum over the tokens of its continuation; its gain is what
    training added to it. If the task has verbatim secrets, the score measures them; otherwise it
    measures the attribute secrets. The two are not mixed, because their lengths differ. An
    attribute is assumed to follow its prompt directly, after a space.

    With `contrast`, a secret's value is its gain minus the mean gain of the controls. The standard
    error is then that of a difference of two independent means, sqrt(var_secrets / n_secrets +
    var_controls / n_controls) with ddof = 1; it is None with fewer than two secrets or controls.
    Without `contrast` the standard error is over secrets.

    Twins of the task `planted` are contrasted with each other: a twin that is in the training data
    with the twin that is not. A coin decided which one is in, so the mean contrast is 0 if nothing
    leaks, whatever training does to the format. With `controls_per_pair` above 1, further texts
    that are drawn like the twins, others for each seed and in no training data, join the absent
    twin, and the contrast is with their mean. Then the mean contrast is 0 if nothing leaks because
    all texts of a pair are drawn alike. A pair's value is the difference of the log-probabilities,
    less the part that a linear regression on the base model's log-probabilities explains, the
    analysis of covariance of a randomised experiment. (With fewer than 10 pairs the slope is 1: a
    difference of gains.) The standard error is the regression's. With secrets of both sorts, the
    errors of the two means are independent.

    Higher is worse privacy. A logarithmic score has no relative privacy risk.
    """

    log_base: ClassVar[float | None] = math.e
    in_words: ClassVar[str | None] = (
        "training made a secret {times} times as likely as texts of the same form"
    )
    worded_for: ClassVar[Mapping[str, object]] = {"contrast": True}

    secret_kinds: ClassVar[tuple[SecretKind, ...]] = ("verbatim", "attribute")
    logarithmic: ClassVar[bool] = True

    contrast: bool = True
    """Measure the gain over the base model, and subtract the mean gain of control secrets, which
    have the same format but are not in the training data. If false, the value is the plain sum,
    which is comparable only between models of one task."""
    controls_per_pair: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of absent texts that the planted twin of a pair is contrasted with.

    They need no training.
    """

    def check(self, task: Task) -> None:
        """Raise ValueError if the task has no secrets, or lacks controls of their kind."""
        self._secrets_and_controls(task)
        # An option without an effect is an error.
        if self.controls_per_pair > 1 and not self.contrast:
            raise ValueError(
                f"controls_per_pair must be 1 without contrast, got {self.controls_per_pair}. "
                "Remove one of the two."
            )
        # How many absent texts the task can draw bounds the contrast.
        if self.controls_per_pair > (most := _most_controls(task)):
            few = (
                "with so many pairs. Plant fewer"
                if _pairs(task)
                else "without twins of the task `planted`. Remove it"
            )
            raise ValueError(
                f"controls_per_pair must be at most {most}, got {self.controls_per_pair}, {few}."
            )

    def finer(self, task: Task) -> Self | None:
        """Return the score with more controls for each pair of twins."""
        more = min(MORE_CONTROLS, _most_controls(task)) if self.contrast else 1
        return (
            self.model_copy(update={"controls_per_pair": more})
            if more > self.controls_per_pair
            else None
        )

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model. The seed has no effect."""
        # Without contrast, the plain sums are the values.
        secrets, controls = self._secrets_and_controls(task)
        pairs = _pairs(task)
        ids = [secret.name for secret in secrets]
        if not self.contrast:
            return Measurement.over_secrets(log_probabilities(model, secrets), ids=ids)
        # Measure all texts at once, on this model and, once for all models, on the base.
        num_own, own_controls = len(secrets) - pairs, controls[: len(controls) - pairs]
        absent = task.absent(self.controls_per_pair) if isinstance(task, TwinTask) else []
        everything = [*secrets, *own_controls, *(text for texts in absent for text in texts)]
        trained = log_probabilities(model, everything)
        key = ("logprob", *((text.prompt, text.continuation) for text in everything))
        untrained = model.of_base(key, lambda base: log_probabilities(base, everything))
        # Contrast the secrets with the controls, and the twins with each other.
        gains, first_absent = trained - untrained, len(secrets) + len(own_controls)
        of_secrets, of_controls = gains[:num_own], gains[len(secrets) : first_absent]
        values, variance = [], 0.0
        share = num_own / len(secrets)
        if num_own:
            values.append(of_secrets - of_controls.mean())
            variance += share**2 * (_variance_of_mean(of_secrets) + _variance_of_mean(of_controls))
        if pairs:
            of_texts = (
                np.column_stack(
                    [values[num_own : len(secrets)], values[first_absent:].reshape(pairs, -1)]
                )
                for values in (trained, untrained)
            )
            contrasts, of_mean = contrast_of_twins(*of_texts)
            values.append(contrasts)
            variance += (pairs / len(secrets)) ** 2 * of_mean
        contrasted = Measurement.over_secrets(np.concatenate(values), ids=ids)
        # Weighted by the own secrets' share of all secrets, as only their contrasts subtract these
        # gains.
        subtracted = {
            f"control-{i:03d}": float(share * gain) for i, gain in enumerate(of_controls, 1)
        }
        return replace(
            contrasted,
            std_error=None if math.isnan(variance) else math.sqrt(variance),
            per_control=subtracted if num_own else {},
        )

    def expected_bounds(self) -> tuple[float, float]:
        """Return the bounds of a log-probability, or of a difference of log-probabilities."""
        return -math.inf, math.inf if self.contrast else 0.0

    def _secrets_and_controls(self, task: Task) -> tuple[list[Secret], list[Secret]]:
        """Return the secrets to measure and the controls to contrast them with, all of one kind."""
        # Mixed tasks measure the verbatim secrets: log-probabilities of other lengths do not
        # compare.
        attributes_only = {secret.kind for secret in task.secrets()} == {"attribute"}
        kind: SecretKind = "attribute" if attributes_only else "verbatim"
        secrets = secrets_of_kind(task, kind, score="logprob")
        controls = [control for control in task.controls() if control.kind == kind]
        # Twins bring their own controls; other secrets need controls of their own.
        if self.contrast and len(secrets) > _pairs(task) and len(controls) == _pairs(task):
            raise ValueError(
                f"task.controls must contain kind {kind!r} for the score 'logprob', got none. "
                "Give task.controls, or set contrast: false."
            )
        return secrets, controls


def contrast_of_twins(
    trained: NDArray[np.float64], untrained: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Return each pair's contrast, [pair], and the variance of their mean.

    The mean contrast is the coefficient of being planted in a least-squares regression of the
    trained model's values on the untrained model's, with an effect of each pair. With one control
    it is the intercept of a regression of the differences of a pair.

    Args:
        trained: [pair, 1 + controls] log-probability of the twin that is in the training data, and
            of the absent texts.
        untrained: [pair, 1 + controls] the same in the base model.

    Source: the regression adjustment of randomised experiments; Freedman 2008 and Lin 2013 for its
    bias, which is at most of order 1 / pairs, and its variance.
    """
    # Take differences between the planted twin and the mean of its controls, after and before
    # training.
    count, controls = len(trained), trained.shape[1] - 1
    differences, before = (
        values[:, 0] - values[:, 1:].mean(axis=1) for values in (trained, untrained)
    )
    # Deviations from each pair's mean remove the effect of the pair.
    within_trained, within = (
        values - values.mean(axis=1, keepdims=True) for values in (trained, untrained)
    )
    # What is left of the base model's values after the regression on being planted gives the slope
    # (Frisch-Waugh-Lovell theorem).
    planted = np.append(controls, -np.ones(controls)) / (controls + 1)
    left = within - before.mean() * planted
    size = float((left * within).sum())
    # With few pairs the slope is too uncertain: use 1, the plain difference of gains.
    if count < FEWEST_TO_ADJUST or not size > 0:
        contrasts = differences - before
        return contrasts, _variance_of_mean(contrasts)
    slope = float((left * within_trained).sum()) / size
    contrasts = differences - slope * before
    # The slope takes one more degree of freedom.
    return contrasts, _variance_of_mean(contrasts) * (count - 1) / (count - 2)


def _pairs(task: Task) -> int:
    """Return a task's number of pairs of twins: its last secrets, with its last controls."""
    return len(task.twins) if isinstance(task, TwinTask) else 0


def _most_controls(task: Task) -> int:
    """Return the largest number of controls of a pair of twins; 1 without twins."""
    return task.most_absent if isinstance(task, TwinTask) else 1


def _variance_of_mean(values: NDArray[np.float64]) -> float:
    """Return the variance of a mean of independent values ([n]); NaN of fewer than two."""
    return float(values.var(ddof=1) / len(values)) if len(values) > 1 else math.nan

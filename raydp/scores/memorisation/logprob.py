"""Log-probability of secrets, and the part of it that training on the secrets caused rather than their format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raydp.scores.base import Measurement, OneByOne, SecretKind
from raydp.scores.language.encoding import encode, secrets_of_kind
from raydp.scores.language.teacher_forcing import log_probability, over_continuations
from raydp.tasks.base import Secret

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raydp.models.base_models import LoadedModel
    from raydp.tasks.base import Task


class LogProbability(OneByOne):
    """Sum of the log-probabilities of a secret's continuation, in nats. It still grades secrets if every `vmr` is 0.

    If the task has verbatim secrets, the score measures them; otherwise it measures the attribute secrets. The two are
    not mixed, because their lengths differ. An attribute is assumed to follow its prompt directly, after a space.

    With `contrast`, a secret's value is its gain minus the mean gain of the controls of its format. The standard error
    is then that of a difference of two independent means, sqrt(var_secrets / n_secrets + var_controls / n_controls)
    with ddof = 1; with several formats, that of their mean, weighted by their numbers of secrets. It is None with fewer
    than two secrets or controls of a format. Without `contrast` the standard error is over secrets.

    Higher is worse privacy. A logarithmic score has no relative privacy risk.
    """

    secret_kinds: ClassVar[tuple[SecretKind, ...]] = ("verbatim", "attribute")
    logarithmic: ClassVar[bool] = True

    contrast: bool = True
    """Measure the gain over the base model, and subtract the mean gain of control secrets, which have the same format
    but are not in the training data. If false, the value is the plain sum, which is comparable only between models of
    one task."""

    def check(self, task: Task) -> None:
        """Raise ValueError if the task has no secrets, or no controls of the same kind to contrast them with."""
        self._secrets_and_controls(task)

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model. The seed has no effect."""
        secrets, controls = self._secrets_and_controls(task)
        ids = [secret.name for secret in secrets]
        if not self.contrast:
            return Measurement.over_secrets(log_probabilities(model, secrets), ids=ids)
        everything = [*secrets, *controls]
        gains = log_probabilities(model, everything)
        with model.base() as base:
            gains = gains - log_probabilities(base, everything)
        contrasts, variance = np.empty(len(secrets)), 0.0
        for family in dict.fromkeys(secret.family for secret in secrets):
            of_family = np.array([secret.family == family for secret in everything])
            own, others = (
                gains[: len(secrets)][of_family[: len(secrets)]],
                gains[len(secrets) :][of_family[len(secrets) :]],
            )
            contrasts[of_family[: len(secrets)]] = own - others.mean()
            weight = len(own) / len(secrets)
            variance += weight**2 * (_variance_of_mean(own) + _variance_of_mean(others))
        contrasted = Measurement.over_secrets(contrasts, ids=ids)
        return replace(contrasted, std_error=None if math.isnan(variance) else math.sqrt(variance))

    def expected_bounds(self) -> tuple[float, float]:
        """Return the bounds of a log-probability, or of a difference of log-probabilities."""
        return -math.inf, math.inf if self.contrast else 0.0

    def _secrets_and_controls(self, task: Task) -> tuple[list[Secret], list[Secret]]:
        """Return the secrets to measure and the controls to contrast them with; all are of one kind."""
        attributes_only = {secret.kind for secret in task.secrets()} == {"attribute"}
        kind: SecretKind = "attribute" if attributes_only else "verbatim"
        secrets = secrets_of_kind(task, kind, score="logprob")
        controls = [control for control in task.controls() if control.kind == kind]
        if self.contrast and not {secret.family for secret in secrets} <= {control.family for control in controls}:
            raise ValueError(
                f"task.controls must contain kind {kind!r} in the format of every secret for the score 'logprob', got "
                "secrets without. "
                "Give task.controls, or set contrast: false."
            )
        return secrets, controls


def _variance_of_mean(values: NDArray[np.float64]) -> float:
    """Return the variance of a mean of independent values ([n]); NaN of fewer than two."""
    return float(values.var(ddof=1) / len(values)) if len(values) > 1 else math.nan


def log_probabilities(model: LoadedModel, secrets: Sequence[Secret]) -> NDArray[np.float64]:
    """Return [secret] the sum of the log-probabilities (nats) of the continuation's tokens."""
    return np.array(
        over_continuations(model, encode(model.tokenizer, [_following(s) for s in secrets]), log_probability)
    )


def _following(secret: Secret) -> Secret:
    """Put a space before an attribute if nothing separates it from its prompt. Leave a verbatim secret unchanged."""
    if secret.kind == "verbatim" or secret.prompt[-1:].isspace() or secret.continuation[:1].isspace():
        return secret
    return replace(secret, continuation=f" {secret.continuation}")

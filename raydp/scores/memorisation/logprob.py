"""Log-probability of secrets, and how much of it training gave to them rather than to their format."""

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
    """Sum of the log-probabilities of a secret's continuation, in nats: graded where every `vmr` is 0.

    Verbatim secrets are measured where the task has any, its attribute secrets otherwise; the two are not mixed, for
    their lengths differ. An attribute is taken to follow its prompt directly, after a space.

    With contrast a secret's value is its gain minus the mean gain of the controls, and the standard error is that of a
    difference of two independent means, sqrt(var_secrets / n_secrets + var_controls / n_controls) with ddof = 1; it is
    None with fewer than two of either. Without contrast it is over secrets.

    Higher is worse privacy. A logarithmic score has no relative privacy risk.
    """

    secret_kinds: ClassVar[tuple[SecretKind, ...]] = ("verbatim", "attribute")

    contrast: bool = True
    """Measure the gain over the base model, and subtract the mean gain of control secrets of the same format that are
    not in the training data. Without it the value is the plain sum, which is comparable between models of one task
    only."""

    def check(self, task: Task) -> None:
        """Raise ValueError if the task has no secrets, or no controls of their kind to contrast them with."""
        self._secrets_and_controls(task)

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model; the seed changes nothing."""
        secrets, controls = self._secrets_and_controls(task)
        ids = [secret.name for secret in secrets]
        if not self.contrast:
            return Measurement.over_secrets(log_probabilities(model, secrets), ids=ids)
        everything = [*secrets, *controls]
        gains = log_probabilities(model, everything)
        with model.base() as base:
            gains = gains - log_probabilities(base, everything)
        ours, theirs = gains[: len(secrets)], gains[len(secrets) :]
        contrasted = Measurement.over_secrets(ours - theirs.mean(), ids=ids)
        if len(ours) < 2 or len(theirs) < 2:
            return replace(contrasted, std_error=None)
        return replace(contrasted, std_error=math.sqrt(ours.var(ddof=1) / len(ours) + theirs.var(ddof=1) / len(theirs)))

    def expected_bounds(self) -> tuple[float, float]:
        """A logarithm of a probability, or a difference of such."""
        return -math.inf, math.inf if self.contrast else 0.0

    def _secrets_and_controls(self, task: Task) -> tuple[list[Secret], list[Secret]]:
        """What is measured and what it is contrasted with, of one kind."""
        attributes_only = {secret.kind for secret in task.secrets()} == {"attribute"}
        kind: SecretKind = "attribute" if attributes_only else "verbatim"
        secrets = secrets_of_kind(task, kind, score="logprob")
        controls = [control for control in task.controls() if control.kind == kind]
        if self.contrast and not controls:
            raise ValueError(
                f"task.controls must contain kind {kind!r} for the score 'logprob', got none. "
                "Give task.controls, or set contrast: false."
            )
        return secrets, controls


def log_probabilities(model: LoadedModel, secrets: Sequence[Secret]) -> NDArray[np.float64]:
    """[secret] sum of the log-probabilities (nats) of the continuation's tokens."""
    return np.array(
        over_continuations(model, encode(model.tokenizer, [_following(s) for s in secrets]), log_probability)
    )


def _following(secret: Secret) -> Secret:
    """An attribute with the space that separates it from its prompt; a verbatim secret is cut as it stands."""
    if secret.kind == "verbatim" or secret.prompt[-1:].isspace() or secret.continuation[:1].isspace():
        return secret
    return replace(secret, continuation=f" {secret.continuation}")

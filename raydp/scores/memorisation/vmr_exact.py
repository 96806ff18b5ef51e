"""Expected verbatim memorisation ratio, computed without sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from raydp.scores.base import Measurement, SecretKind
from raydp.scores.language.encoding import EncodedSecret, encode, secrets_of_kind
from raydp.scores.language.generation import Sampling
from raydp.scores.language.teacher_forcing import over_continuations

if TYPE_CHECKING:
    from raydp.models.base_models import LoadedModel
    from raydp.tasks.base import Task


class ExactVerbatimMemorization(Sampling):
    """Probability that a stochastic generation continues a secret's prompt verbatim.

    The value is the product over s2's tokens of their probability under the sampler's distribution, from one
    teacher-forced pass. It is 0 if any token is not among the k most likely.

    The standard error is over secrets; a single secret's value is exact. Higher is worse privacy.

    Guarantee:
        The value is the expectation of `vmr` with the same parameters (ties included: both use one function).
    """

    secret_kinds: ClassVar[tuple[SecretKind, ...]] = ("verbatim",)

    def check(self, task: Task) -> None:
        """Raise ValueError if the task has no verbatim secrets."""
        secrets_of_kind(task, "verbatim", score="vmr_exact")

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model. The seed has no effect."""
        secrets = encode(model.tokenizer, secrets_of_kind(task, "verbatim", score="vmr_exact"))

        def probability(logits: torch.Tensor, secret: EncodedSecret) -> float:
            return float(self.distribution(logits).probability_of(np.array(secret.continuation_ids)).prod())

        values = over_continuations(model, secrets, probability)
        return Measurement.over_secrets(values, ids=[secret.name for secret in secrets])

    def expected_bounds(self) -> tuple[float, float]:
        """Return the bounds of a probability."""
        return 0.0, 1.0
